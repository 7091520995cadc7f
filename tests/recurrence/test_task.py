"""The loop around the step: it goes on after failures, and stops at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import pytest

from tests.recurrence.fleet import Fleet
from timeoutmgr.errors import SchemaMissing, StorageUnavailable
from timeoutmgr.recurrence.task import RecurringTask


@pytest.fixture
def task(memory_fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecurringTask]:
    """A task of a running process; it tries again without a pause."""
    monkeypatch.setattr("timeoutmgr.recurrence.task._AFTER_FAILURE", 0.0)
    made = memory_fleet.process("1 hour").task
    assert made is not None
    yield made
    made.stop()


@pytest.mark.parametrize(
    "error",
    [
        SchemaMissing("run `timeoutmgr install`"),
        StorageUnavailable("the database is away"),
        RuntimeError("a defect"),
    ],
)
def test_the_task_goes_on_after_a_failure(
    memory_fleet: Fleet, task: RecurringTask, error: Exception
) -> None:
    stored, errors = threading.Event(), deque([error, error])

    def ready() -> None:
        if errors:
            raise errors.popleft()

    task._ready = ready
    task._wake = lambda _due: stored.set()

    task.start()
    stored.wait()
    task.stop()

    assert not errors
    assert memory_fleet.pending() == ["01 13:00"]


def test_the_task_asks_once_whether_the_tables_are_there(task: RecurringTask) -> None:
    asked: list[bool] = []
    task._ready = lambda: asked.append(True)

    task.step()
    task.step()

    assert asked == [True]


def test_a_task_stops_before_its_start_and_twice(task: RecurringTask) -> None:
    task.stop()
    task.start()
    task.stop()
    task.stop()
