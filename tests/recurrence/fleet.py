"""Processes of one endpoint with recurring timeouts: real stores, a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any, Final

from tests.support.clock import FakeClock
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.contracts import Outcome, OutcomeKind, Persistence, Timeout, TimeoutFilter
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, from_micros, to_micros
from timeoutmgr.recurrence.task import RecurringTask
from timeoutmgr.satellites import TimeoutManager

NOON: Final = datetime(2030, 6, 1, 12, tzinfo=UTC)


class Process:
    """An endpoint that is not started: the test calls the step of its recurring task."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.recurring = endpoint.recurring
        tasks = endpoint._parts.features.tasks
        self.task = next((task for task in tasks if isinstance(task, RecurringTask)), None)
        self.woken: list[Micros] = []
        if self.task is not None:
            self.task._wake = self.woken.append

    def step(self) -> float:
        """Run the step; return the seconds until the next step."""
        assert self.task is not None
        return self.task.step()


class Fleet:
    """Processes of the endpoint *name* that share a clock and a store."""

    def __init__(self, name: str, persistence: Callable[[], Persistence]) -> None:
        self.name: Final = name
        self.clock: Final = FakeClock(to_micros(NOON))
        self.closing: Final = ExitStack()
        self.persistence: Final = persistence
        self.store: Final = persistence().timeouts(name, self.clock)

    def configuration(self) -> EndpointConfiguration:
        """Return the configuration of a process without recurring timeouts."""
        config = EndpointConfiguration(self.name)
        config.error_queue = f"{self.name}.error"
        config.use_transport("memory://", accept_loss=True)
        config.use_persistence(self.persistence())
        config.enable_feature(TimeoutManager())
        config.clock = self.clock
        config.check_destinations = False
        return config

    def process(self, *every: Any, **settings: Any) -> Process:
        """Return a process with a schedule "tick"; without *every* and *settings*, with none."""
        config = self.configuration()
        if every or settings:
            given = {"every": every[0] if every else "1 hour", **settings}
            config.recurring("tick", given.pop("type", "Tick"), given.pop("body", {}), **given)
        return self.of(config)

    def of(self, config: EndpointConfiguration) -> Process:
        """Return a process of *config*."""
        return Process(self.closing.enter_context(closing(Endpoint(config))))

    def move_to(self, day: int, hour: int, minute: int = 0, second: int = 0) -> None:
        """Move the clock to a time of UTC in June 2030."""
        self.clock._now = to_micros(datetime(2030, 6, day, hour, minute, second, tzinfo=UTC))

    def pending(self) -> list[str]:
        """Return when the stored runs are due, in order."""
        return [shown(one.due) for one in self.store.list(TimeoutFilter())]

    def timeouts(self) -> list[Timeout]:
        """Return the stored runs."""
        return self.store.list(TimeoutFilter())

    def dispatch(self) -> list[str]:
        """Send all that is due, as a dispatcher closes it; return the instants of the runs."""
        now = self.clock.now()
        chunk = self.store.claim(now, 5000, "dispatcher")
        with self.store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            sent = list(locked.timeouts)
            locked.close(
                [Outcome(key=one.key, kind=OutcomeKind.DISPATCHED, at=now) for one in sent]
            )
        for one in sent:
            assert one.due <= now, "early"
            assert one.message.headers[headers.RECURRING] == "tick"
        return [shown(one.due) for one in sent]


def shown(instant: Micros) -> str:
    """Return *instant* as day and time of UTC."""
    return from_micros(instant).strftime("%d %H:%M:%S").removesuffix(":00")
