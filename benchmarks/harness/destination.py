"""The end of the way: a process that takes what arrives, notes when, and does nothing with it."""

import contextlib
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from timeoutmgr import headers
from timeoutmgr.instants import from_wire

from .bare import broker

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What came: each message's id, when it came (microseconds), and when it was due."""

    ids: Sequence[str]
    stamps: Sequence[int]
    dues: Sequence[str]

    @property
    def repeats(self) -> int:
        return len(self.ids) - len(set(self.ids))

    @property
    def last(self) -> int:
        return max(self.stamps)

    def lateness(self) -> list[float]:
        """Return by how many milliseconds each was late, the least first; early is negative."""
        late = (stamp - from_wire(due) for stamp, due in zip(self.stamps, self.dues, strict=True))
        return sorted(micros / 1000 for micros in late)


class Destination:
    """The process. It ends after *count* different messages, and *linger* seconds for repeats."""

    def __init__(self, transport: str, queue: str, count: int, *, linger: float = 0.0) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_consume, args=(theirs, transport, queue, count, linger), daemon=True
        )

    def __enter__(self) -> Self:
        self._process.start()
        assert self._pipe.recv() == "consuming"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def arrivals(self, seconds: float = 300) -> Arrivals:
        """Wait for the end and return what came."""
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"not all has arrived within {seconds} s")
        arrivals: Arrivals = self._pipe.recv()
        return arrivals


def _consume(pipe: Any, transport: str, queue: str, count: int, linger: float) -> None:
    ids: list[str] = []
    stamps: list[int] = []
    dues: list[str] = []
    different: set[str] = set()
    unacknowledged = 0
    with broker(transport) as connection:
        channel = connection.channel()
        channel.auto_decode = False

        def on_message(message: Any) -> None:
            nonlocal unacknowledged
            stamps.append(time.time_ns() // 1000)
            name = message.properties["message_id"]
            ids.append(name)
            different.add(name)
            dues.append(message.headers[headers.DELIVER_AT])
            unacknowledged += 1
            if unacknowledged == 100:
                channel.basic_ack(message.delivery_tag, multiple=True)
                unacknowledged = 0

        channel.queue_purge(queue)  # of a run before this one, whose messages nobody took
        channel.basic_qos(0, 500, False)
        channel.basic_consume(queue, callback=on_message)
        pipe.send("consuming")
        until = None
        while until is None or time.monotonic() < until:
            if until is None and len(different) >= count:
                until = time.monotonic() + linger
                continue
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
        channel.basic_ack(0, multiple=True)
    pipe.send(Arrivals(ids, stamps, dues))
