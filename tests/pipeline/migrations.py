"""A source and a target of timeouts, and a task of Spark that is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.persistence.making import SECOND, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout, TimeoutFilter, TimeoutStore
from timeoutmgr.migration.places import LocationSpec
from timeoutmgr.pipeline.jobs.migrate import Ends, Mover, Outcome
from timeoutmgr.pipeline.stores import Store

ENDPOINT = "sales"
BATCH = 5
DAY = 86_400 * SECOND


def due_tomorrow(amount: int, **changed: Any) -> list[Timeout]:
    """Timeouts due in sequence, from a day ahead on."""
    first = SystemClock().now() + DAY
    return [
        timeout(f"t{number:03}", first + number * SECOND, **changed) for number in range(amount)
    ]


def fill(store: Store, timeouts: list[Timeout]) -> list[Timeout]:
    """Store *timeouts*, and return them."""
    _timeouts(store).store_many(timeouts)
    return timeouts


def pending(store: Store) -> list[Timeout]:
    """Return all pending timeouts, the oldest first."""
    return _timeouts(store).list(TimeoutFilter(), limit=10_000)


def ends(source: Store, target: Store | str, **more: Any) -> Ends:
    """Move from one store into another, or into a named place, in small batches."""
    into = target if isinstance(target, str) else target.name
    return Ends(
        **{"settings": source.name, "target": LocationSpec(url=into), "batch": BATCH, **more}
    )


def dying(mover: Mover, point: str, marker: Path | None) -> Callable[[int], Outcome]:
    """Return a task whose process is killed at the crash point *point*; with *marker* only once."""
    path = None if marker is None else str(marker)

    # A nested function goes to the workers as it is: they cannot import the tests.
    def task(number: int) -> Outcome:
        import os
        import signal

        from timeoutmgr.migration import batch_step as claiming
        from timeoutmgr.migration import batch_step as moving

        def reach(name: str) -> None:
            if name != point:
                return
            if path is not None:
                try:
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return  # it has died before
            os.kill(os.getpid(), signal.SIGKILL)

        modules: list[Any] = [claiming, moving]
        before = [module.reach for module in modules]
        for module in modules:
            module.reach = reach
        try:
            return mover(number)
        finally:
            for module, one in zip(modules, before, strict=True):
                module.reach = one

    return task


def _timeouts(store: Store) -> TimeoutStore:
    return store.persistence.timeouts(ENDPOINT, SystemClock())
