"""A process that changes the schedule of a recurring timeout; it may be told where to die."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

from tests.support.clock import FakeClock
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.recurrence.task import RecurringTask
from timeoutmgr.satellites import TimeoutManager

PREFIX: Final = "crash_recurring_"
NAME: Final = "tick"


def main(given: dict[str, Any]) -> int:
    """Do the work that *given* names, at the instant that *given* names; return 0."""
    with (
        closing(persistence(given["url"])) as store,
        closing(Endpoint(configuration(given, store))) as endpoint,
    ):
        WORK[given["work"]](endpoint)
    return 0


def persistence(url: str) -> SqlPersistence:
    """Return the store: it goes by the clock of the test, and keeps a full history."""
    return SqlPersistence(url, prefix=PREFIX, settings=SqlSettings(clock="host", history="full"))


def configuration(given: Mapping[str, Any], store: SqlPersistence) -> EndpointConfiguration:
    """Return the configuration with a schedule of one run an hour, which catches all up."""
    config = EndpointConfiguration(given["endpoint"])
    config.use_transport("memory://", accept_loss=True)
    config.use_persistence(store)
    config.enable_feature(TimeoutManager())
    config.clock = FakeClock(given["at"])
    config.recurring(NAME, "Tick", {}, every=given["every"], catch_up="all")
    return config


def _step(endpoint: Endpoint) -> None:
    tasks = endpoint._parts.features.tasks
    [task] = [task for task in tasks if isinstance(task, RecurringTask)]
    task.step()


WORK: Final[Mapping[str, Callable[[Endpoint], object]]] = {
    "step": _step,
    "pause": lambda endpoint: endpoint.recurring.pause(NAME),
    "resume": lambda endpoint: endpoint.recurring.resume(NAME),
}
