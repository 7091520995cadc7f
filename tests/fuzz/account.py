"""The account of messages put into the satellites' queues: none is lost, none comes twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tests.acceptance.error_queue import ErrorQueue
from tests.acceptance.place import SOON, Party
from tests.fuzz.letters import Fate, RawMessage
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutFilter

COUNTS: Final = {Fate.KEPT: {1}, Fate.DROPPED: {0}, Fate.EITHER: {0, 1}}
"""How often a body may be found in store, destination and error queue together."""

_LOOKS: Final = 100
"""How often queues are read for a message that is not found; a lost one fails all of them."""


class Account:
    """One endpoint with a queue *sink* for its dispatches."""

    def __init__(self, party: Party, sink: str, bystander: str) -> None:
        self._party = party
        self._place = party.place
        self._sink = self._place.received(self._place.queue(sink))
        self._bystander = self._place.queue(bystander)
        self._store = self._place.persistence().timeouts(party.name, SystemClock())

    def settle(self, patience: float = 30) -> None:
        """Return when all that was put in is dealt with, and good messages still get through."""
        for number in range(2):  # the second sentinel is in a later batch than all letters
            sentinel = self._party.endpoint.send_local("Fence", number, delay=SOON)
            self._party.inbox.wait_for_id(sentinel.message_id, timeout=patience)
        eventually(lambda: self._store.statistics().due == 0, "due ones are sent", patience)
        for queue in (self._sink, self._party.errors):
            _empty(queue)

    def check(self, letters: Sequence[RawMessage]) -> None:
        """Check that all queues and the inbox have exactly the fates of *letters*."""
        found = self._found_all(letters)
        wrong = [raw for raw in letters if found[raw.body] not in COUNTS[raw.fate]]
        assert not wrong, f"{len(wrong)}, the first {found[wrong[0].body]} times: {wrong[0]}"
        assert not found.keys() - {raw.body for raw in letters}, "what is this?"

    def check_one(self, raw: RawMessage) -> None:
        """Check that all queues and the inbox have the fate of *raw*."""
        count = self._found_all([raw])[raw.body]
        assert count in COUNTS[raw.fate], f"{count} times: {raw}"

    def _found_all(self, letters: Sequence[RawMessage]) -> Counter[bytes]:
        """Return how often each body was found, with time for a queue that answers late."""
        kept = {raw.body for raw in letters if raw.fate is Fate.KEPT}
        found = self._found()
        for _ in range(_LOOKS):
            if kept <= found.keys():
                break
            for queue in (self._sink, self._party.errors):
                queue.poll(0.2)
            found = self._found()
        return found

    def _found(self) -> Counter[bytes]:
        stored = self._store.list(TimeoutFilter(), limit=100_000)
        found = Counter([row.message.body for row in stored])
        found.update(message.body for message in self._sink.messages)
        found.update(message.body for message in self._party.errors.messages)
        return found

    def check_bystander(self, letters: Sequence[RawMessage]) -> None:
        """Check that the broker made each requested copy, once."""
        asked = sum(any(name in ("CC", "BCC") for name, _ in one.headers) for one in letters)
        assert self._place.session.count(self._bystander) == asked

    def check_satellites(self) -> None:
        """No satellite died, or was close to it."""
        assert self._party.endpoint.critical_error is None
        failures = ("pump_failures", "transport_failures", "storage_failures", "polls_failed")
        assert {name: self._party.telemetry.counted(name) for name in failures} == dict.fromkeys(
            failures, 0
        )


def _empty(queue: ErrorQueue) -> None:
    """Read *queue* until nothing comes any more; all of it is there already."""
    while (before := len(queue.messages)) < len(queue.poll(0.2)):
        assert before < 100_000
