"""The destination: a process that receives messages and records the times."""

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Self

from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire

from .bare import broker

WARM = 2
"""Seconds of a steady flow before the measurement begins: pages of idle programs may have been
swapped out, and then the first messages of any product wait for the disk."""
FEW = 8
"""Prefetch that delivers messages as they come: for a larger batch a receiver waits a little."""
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals: each message's id, its time of arrival in microseconds, and its due time."""

    ids: Sequence[str]
    stamps: Sequence[int]
    dues: Sequence[str]

    @property
    def repeats(self) -> int:
        return len(self.ids) - len(set(self.ids))

    @property
    def last(self) -> int:
        return max(self.stamps)

    def lateness(self, since: int = 0) -> list[float]:
        """Return the sorted lateness of messages in milliseconds; negative if early.

        Include only messages that were due from the instant *since* (microseconds) on.
        """
        dues = map(from_wire, self.dues)
        late = (stamp - due for stamp, due in zip(self.stamps, dues, strict=True) if due >= since)
        return sorted(micros / 1000 for micros in late)


class Destination:
    """The process, which ends after *count* different messages and *linger* more seconds."""

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
        """Wait for the end and return the arrivals."""
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"not all has arrived within {seconds} s")
        arrivals: Arrivals = self._pipe.recv()
        return arrivals


def _consume(pipe: Any, transport: str, queue: str, count: int, linger: float) -> None:
    ids: list[str] = []
    stamps: list[int] = []
    dues: list[str] = []
    different: set[str] = set()
    with broker(transport) as connection:
        # An earlier run may have left messages.
        connection.channel().queue_purge(queue)
    # Receive like an endpoint: this process shares the cores with the measured process.
    with (
        closing(transport_from_url(transport)) as ours,
        closing(ours.session()) as session,
        closing(session.receiver(queue, prefetch=500)) as receiver,
    ):
        receiver.receive(1, 0.0)
        pipe.send("consuming")
        until, held = None, []
        while until is None or time.monotonic() < until:
            batch = receiver.receive(FEW, 0.2)
            now = time.time_ns() // 1000
            for received in batch:
                stamps.append(now)
                ids.append(received.message.id)
                different.add(received.message.id)
                dues.append(received.message.headers[headers.DELIVER_AT])
            held += batch
            if len(held) >= 100 or not batch:
                receiver.ack(held)
                held = []
            if until is None and len(different) >= count:
                until = time.monotonic() + linger
    pipe.send(Arrivals(ids, stamps, dues))
