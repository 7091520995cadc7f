"""The poller's step, and its loop on a running scheduler, whose polls a test can wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_breaker, a_timeout
from tests.support.ports import FakeTransport
from tests.support.store import ScriptedStore
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock, Key, TransactionMode
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.satellites.control import ChunkOrder, read_control
from timeoutmgr.satellites.poller import Poller, PollTimeouts
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.telemetry import Counters

RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE
CONTROL = "sales.TimeoutsDispatcher"
AWAY = StorageUnavailable("away")
DAY = 86_400 * SECOND
SOON = 10.0
"""Seconds that a busy machine may take; nothing waits this long when all is well."""


class PollHarness:
    """The step over a real store and a simulated broker."""

    def __init__(
        self, mode: TransactionMode = RECEIVE, chunk: int = 100, clock: Clock | None = None
    ) -> None:
        self.fake = FakeClock()
        self.store = ScriptedStore(clock or self.fake)
        self.transport = FakeTransport(CONTROL)
        self.telemetry = Counters()
        self.step = PollTimeouts(
            store=self.store,
            queue=CONTROL,
            owner="me",
            mode=mode,
            chunk=chunk,
            clock=clock or self.fake,
            new_id=lambda: "c1",
            telemetry=self.telemetry,
        )

    def put(self, count: int, due: Micros = START) -> list[Key]:
        timeouts = [a_timeout(f"m{due}-{number}", due) for number in range(count)]
        self.store.store_many(timeouts)
        return sorted(timeout.key for timeout in timeouts)

    def poll(self) -> Micros | None:
        return self.step(self.transport.session())

    def claimed(self) -> list[list[Key]]:
        orders = [read_control(message) for message in self.transport.messages(CONTROL)]
        return [list(order.keys) for order in orders if isinstance(order, ChunkOrder)]


class Watching(Counters):
    """Counters that a test can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def count(self, event: str, amount: int = 1) -> None:
        super().count(event, amount)
        with self.changed:
            self.changed.notify_all()

    def reaches(self, event: str, count: int, within: float = SOON) -> bool:
        with self.changed:
            return self.changed.wait_for(
                lambda: self.snapshot().get(event, 0) >= count, timeout=within
            )


class ShiftedClock(SystemClock):
    """This host's clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall = 0
        self.mono = 0.0

    def now(self) -> Micros:
        return super().now() + self.wall

    def monotonic(self) -> float:
        return super().monotonic() + self.mono


class Loop:
    """A poller of one minute on a running scheduler."""

    def __init__(self, interval: float = 60.0, offset: Micros = 0) -> None:
        self.clock = ShiftedClock()
        self.harness = PollHarness(clock=self.clock)
        self.store = self.harness.store
        self.store._offset = offset
        self.transport = self.harness.transport
        self.telemetry = Watching()
        self.fetch = a_breaker(FakeClock(), 0.02)
        self.offsets: list[float] = []
        self.ready: Callable[[], None] = lambda: None
        self.poller = Poller(
            self.harness.step,
            interval=timedelta(seconds=interval),
            sessions=SessionPool(self.transport),
            fetch=self.fetch,
            ready=lambda: self.ready(),
            clock=self.clock,
            telemetry=self.telemetry,
            on_clock_offset=self.offsets.append,
        )

    def started(self) -> Loop:
        """Start, and wait for the first poll."""
        self.poller.start()
        assert self.telemetry.reaches("polls", 1)
        return self
