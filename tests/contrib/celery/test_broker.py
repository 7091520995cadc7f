"""Celery on the SQL queue alone: canvas, retries, revoke, inspection, events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.contrib.testing import worker as celery_worker
from celery.signals import setup_logging

from timeoutmgr.transport.sql import register

register()
_WAIT = 60


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('broker')}/queue.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(scope="module")
def app(url: str) -> Iterator[Any]:
    """An app whose broker is a database, with a worker in a thread of this process."""
    made: Any = Celery(
        "broker",
        broker=f"timeoutmgr+{url}",
        backend="cache+memory://",
        set_as_current=False,
    )
    made.conf.worker_send_task_events = True
    made.conf.broker_transport_options = {"poll_max": 0.05, "prefix": f"c{secrets.token_hex(4)}_"}
    made.task(_add, name="add", shared=False)  # or later apps would have it too
    made.task(_retried, name="retried", shared=False, bind=True, max_retries=2)
    setup_logging.connect(_keep_logging)
    try:
        with celery_worker.start_worker(made, perform_ping_check=False, pool="solo"):
            yield made
    finally:
        setup_logging.disconnect(_keep_logging)
    made.close()


def _keep_logging(**_given: Any) -> None:
    """Stand in for Celery's own set-up, which would quieten the log of later tests."""


def _add(*numbers: Any) -> int:
    (one, *others) = numbers
    return sum([*one, *others]) if isinstance(one, list) else sum(numbers)


def _retried(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


def test_a_chain_passes_its_results_on(app: Any) -> None:
    add = app.tasks["add"]

    assert chain(add.s(1, 2), add.s(3), add.s(4)).delay().get(timeout=_WAIT) == 10


def test_a_group_has_each_result(app: Any) -> None:
    add = app.tasks["add"]

    assert group(add.s(n, n) for n in range(4))().get(timeout=_WAIT) == [0, 2, 4, 6]


def test_a_chord_adds_up_its_parts(app: Any) -> None:
    add = app.tasks["add"]

    assert chord([add.s(n, n) for n in range(3)], add.s()).delay().get(timeout=_WAIT) == 6


def test_a_retried_task_ends(app: Any) -> None:
    assert app.tasks["retried"].delay().get(timeout=_WAIT) == 2


def test_a_worker_answers_an_inspection(app: Any) -> None:
    inspection = app.control.inspect(timeout=5, limit=1)

    assert [list(answer) for answer in (inspection.registered() or {}).values()] != []


def test_a_revoked_task_does_not_run(app: Any) -> None:
    app.control.revoke("gone", reply=True, timeout=5, limit=1)
    result = app.tasks["add"].apply_async((1, 1), task_id="gone")

    with pytest.raises(Exception, match="revoked"):
        result.get(timeout=_WAIT)


def test_events_of_tasks_arrive_and_the_queue_goes_with_its_monitor(app: Any) -> None:
    kinds: list[str] = []

    def note(event: dict[str, Any]) -> None:
        kinds.append(event["type"])

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": note})
        with receiver.consumer_context(wakeup=False) as (drained, _, _):
            app.tasks["add"].delay(1, 1)
            while "task-succeeded" not in kinds:
                drained.drain_events(timeout=_WAIT)
            queues = connection.transport.sql.queues
            assert queues.missing([receiver.queue.name]) == []
        assert queues.missing([receiver.queue.name]) == [receiver.queue.name]

    assert {"task-received", "task-succeeded"} <= set(kinds)
