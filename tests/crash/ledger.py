"""The ledger: the expected messages, the arrived messages, and how often and when."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tests.acceptance.error_queue import ErrorQueue
from tests.crash.site import Site, Worker
from tests.crash.workload import Due, Workload
from timeoutmgr.deadletter import NodeQueue
from timeoutmgr.deadletter import delivery_headers as marks
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message
from timeoutmgr.testing.conformance.transports.suite import with_properties

_OURS: Final = {
    *(headers.DELIVER_AT, headers.RELATED_TO_TIMEOUT, headers.DISPATCHED_AT, marks.HOPS),
}


class Ledger:
    """Reads the target and the error queue while it waits."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._readers: list[ErrorQueue] = []
        self.rounds: Final[list[Workload]] = []
        self._arrived: tuple[list[tuple[Micros, Message]], ...] = ([], [], [])

    def open(self) -> None:
        """Begin to read; the queues exist now."""
        self._readers = self._site.watch()

    def begin(self, one: Workload) -> None:
        """Let *one* leave its seed behind, then expect the messages that it will send."""
        self.rounds.append(one)
        one.seed()

    def send_until_ended(self, worker: Worker, what: str) -> None:
        """Have the work of the last round done by *worker*, until it ends."""
        worker.wait_until_it_runs()
        self.rounds[-1].send()
        self.read_until(lambda: worker.ended, what)

    def read_until(self, holds: Callable[[], bool], what: str, patience: float = 60) -> None:
        """Read until *holds*; otherwise AssertionError with the missing messages."""
        deadline = time.monotonic() + patience
        while not holds():
            assert time.monotonic() < deadline, f"{what}; {self.wanting()}; {self._site.left()}"
            self.read(0.05)

    def read(self, wait: float) -> None:
        """Read the messages that are present, after *wait* seconds at most."""
        for reader, arrived in zip(self._readers, self._arrived, strict=False):
            messages = reader.poll(wait)
            now = self._site.clock.now()
            arrived += [(now, message) for message in messages[len(arrived) :]]

    def wanting(self) -> dict[str, list[str]]:
        """Return the messages that have not arrived."""
        wanting = {}
        for name, expected, arrived in self._columns():
            there = {message.id for _, message in arrived}
            wanting[name] = sorted(set(expected) - there)
        if self._site.pair.dead_letters:
            dead = {name for one in self.rounds for name in one.dead}
            wanting["dead letters"] = sorted(dead - set(self._site.lies_in(NodeQueue.DEADLETTER)))
        return {name: ids for name, ids in wanting.items() if ids}

    def check(self, crashes: int) -> int:
        """Check each promise; return how many repeats there were, each of them due to a crash.

        A lost message, or a message under another id, is found too. *crashes* is 0 where not even
        a crash may repeat.
        """
        repeats = 0
        for name, expected, arrived in self._columns():
            counts = Counter(message.id for _, message in arrived)
            assert sorted(counts) == sorted(expected), f"ids in the {name} queue"
            too_often = {
                one: count
                for one, count in counts.items()
                if count > 1 + crashes * expected[one].steps
            }
            assert not too_often, f"repeated in the {name} queue: {too_often}"
            early = [message.id for at, message in arrived if at < expected[message.id].earliest]
            assert not early, f"early in the {name} queue: {early}"
            if name == "error":
                for _, message in arrived:
                    _check_whole(message, expected[message.id])
            repeats += counts.total() - len(counts)
        if self._site.pair.dead_letters:
            self._check_dead_letters()
        return repeats

    def _check_dead_letters(self) -> None:
        dead = sorted(name for one in self.rounds for name in one.dead)
        assert sorted(self._site.lies_in(NodeQueue.DEADLETTER)) == dead, "one dead letter of each"
        assert self._site.lies_in(NodeQueue.DEADXACT) == []
        assert len(self._site.lies_in(NodeQueue.JOURNAL)) == 4 * len(self.rounds), (
            "one copy of each"
        )

    def _columns(
        self,
    ) -> Sequence[tuple[str, dict[str, Due], list[tuple[Micros, Message]]]]:
        target = {name: due for one in self.rounds for name, due in one.target.items()}
        errors = {name: due for one in self.rounds for name, due in one.errors.items()}
        beside = {name: due for one in self.rounds for name, due in one.beside.items()}
        return [
            *zip(("target", "error", "tasks"), (target, errors, beside), self._arrived, strict=True)
        ]


def _check_whole(copy: Message, due: Due) -> None:
    """Check that *copy* is all of the message that failed, and says where."""
    original = with_properties(due.message)
    assert copy.body == original.body
    assert copy.content_type == original.content_type
    assert copy.headers[headers.FAILED_QUEUE] == due.failed_queue
    assert copy.headers[headers.EXCEPTION_MESSAGE]
    kept = {
        name: value
        for name, value in with_properties(copy).headers.items()
        if name not in headers.FAILURE_HEADERS | _OURS
    }
    assert kept == {name: original.headers[name] for name in original.headers if name not in _OURS}
