"""Tasks of Django Tasks: enqueued in the ORM's transaction, executed by a handler."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import DataError, OperationalError, connection, connections, transaction
from django.test import override_settings
from django.utils import timezone

from tests.contrib import some_tasks
from tests.contrib.some_tasks import (
    attempts,
    default_task_backend,
    fail,
    fail_with,
    fork,
    fork_and_go_on,
    give,
    leave_open,
    note,
    note_later,
)
from tests.support.waiting import eventually
from timeoutmgr import Endpoint
from timeoutmgr.contracts import TimeoutState
from timeoutmgr.contrib.default_database import configuration_in
from timeoutmgr.contrib.django import configuration, database_url, endpoint
from timeoutmgr.contrib.django.endpoint import DjangoEndpoint
from timeoutmgr.contrib.django_tasks.backend import _aware
from timeoutmgr.contrib.django_tasks.framework import (
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from timeoutmgr.contrib.django_tasks.handlers import _run, claimed, execute
from timeoutmgr.contrib.django_tasks.models import TaskRecord
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import HandlerFailed, InvalidMessage

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def project(database: Any) -> Iterator[None]:
    """The endpoint and the table are installed."""
    endpoint.install()
    call_command("migrate", "timeoutmgr_tasks", verbosity=0)
    yield
    some_tasks.ran.clear()


class Context:
    """The part of a handler's context that tasks use."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id


def handle(result: Any) -> None:
    """Handle the message of an enqueued task."""
    execute({}, Context(result.id))  # type: ignore[arg-type]  # a part of it


def test_a_task_is_executed_and_its_result_is_kept() -> None:
    result: Any = note.enqueue(what="a")
    assert result.status == TaskResultStatus.READY

    with DjangoEndpoint(configuration(), using="default"):
        eventually(lambda: note.get_result(result.id).is_finished, "the task is finished")

    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", "a", 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert some_tasks.ran == ["a"]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("delay", [None, HOUR])
def test_a_task_exists_if_and_only_if_the_transaction_commits(
    commits: bool, delay: timedelta | None
) -> None:
    with transaction.atomic():
        task = note if delay is None else note.using(run_after=timezone.now() + delay)
        result = task.enqueue("a")
        transaction.set_rollback(not commits)

    session = endpoint._parts.settings.transport.session()
    waiting = session.count("shop") + session.count("shop.Timeouts")
    session.close()
    assert (TaskRecord.objects.filter(pk=result.id).exists(), waiting) == (commits, int(commits))


@pytest.mark.parametrize("commits", [True, False])
def test_a_task_joins_the_transaction_where_the_queues_are_on_a_broker(
    commits: bool, unique: str
) -> None:
    TIMEOUTMGR = {
        "endpoint": "shop",
        "features": ["timeout-manager"],
        "transport": f"memory://{unique}",
        "accept_loss": True,
    }
    with override_settings(TIMEOUTMGR=TIMEOUTMGR):
        endpoint.install()
        with transaction.atomic():
            result = note.enqueue("a")
            transaction.set_rollback(not commits)

        assert endpoint.timeouts.count() == int(commits)
        if commits:
            with DjangoEndpoint(configuration(), using="default"):
                eventually(lambda: note.get_result(result.id).is_finished, "the task is finished")
    assert some_tasks.ran == ["a"] * commits


def test_a_deferred_task_rests_in_the_store_until_it_may_run() -> None:
    result = note.using(run_after=timezone.now() + HOUR).enqueue("a")
    with DjangoEndpoint(configuration(), using="default") as worker:
        eventually(lambda: list(worker.timeouts.list()), "the task is stored")
        [stored] = worker.timeouts.list()
        assert some_tasks.ran == []
        worker.timeouts.send_now(stored.id)
        eventually(lambda: note.get_result(result.id).is_finished, "the task is finished")

    assert some_tasks.ran == ["a"]


@pytest.mark.parametrize(
    "run_after",
    [
        datetime.max.replace(tzinfo=timezone.get_fixed_timezone(-720)),
        datetime.min.replace(tzinfo=timezone.get_fixed_timezone(840)),
    ],
)
def test_a_time_outside_the_calendar_is_refused(run_after: datetime) -> None:
    with pytest.raises(InvalidMessage, match="outside the years"):
        note.using(run_after=run_after).enqueue("a")

    assert not TaskRecord.objects.exists()


def test_the_most_urgent_task_runs_first_and_each_task_runs_once() -> None:
    slow, plain, urgent = (
        note.using(priority=priority).enqueue(str(priority)) for priority in (-5, 0, 50)
    )
    for result in (slow, plain, urgent):
        handle(result)

    assert some_tasks.ran == ["50", "0", "-5"]
    assert {one.status for one in TaskRecord.objects.all()} == {"SUCCESSFUL"}


@contextmanager
def satellites() -> Iterator[Endpoint]:
    """The endpoint without handlers: it stores and dispatches."""
    url = database_url(connections["default"].settings_dict)
    with Endpoint(configuration_in({**settings.TIMEOUTMGR}, "TIMEOUTMGR", lambda: url)) as running:
        yield running


def await_dispatch(timeouts: Timeouts, task_id: str) -> None:
    dispatched = (TimeoutState.DISPATCHED, None)
    eventually(lambda: timeouts.show(task_id) == dispatched, "the task was dispatched")


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_a_deferred_task_runs_in_no_others_place_without_time_zones(
    zone: str,
) -> None:
    with override_settings(USE_TZ=False, TIME_ZONE=zone):
        plain = note.enqueue("plain")
        for priority, delay in ((50, HOUR), (40, -HOUR)):
            task = note.using(priority=priority, run_after=timezone.now() + delay)
            deferred = task.enqueue(f"deferred {priority}")
        with satellites() as running:
            await_dispatch(running.timeouts, deferred.id)
        handle(plain)

    assert some_tasks.ran == ["deferred 40"]


def postpone(timeouts: Timeouts, task_id: str) -> None:
    timeouts.reschedule(task_id, delay=2 * HOUR)


def dispatch(timeouts: Timeouts, task_id: str) -> None:
    timeouts.send_now(task_id)
    await_dispatch(timeouts, task_id)


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        (None, "plain"),  # not stored yet
        (Timeouts.show, "plain"),
        (Timeouts.cancel, "plain"),
        (postpone, "plain"),
        (dispatch, "deferred"),
    ],
)
def test_a_deferred_task_gets_a_place_only_once_it_was_dispatched(
    change: Callable[[Timeouts, str], object] | None, runs: str
) -> None:
    plain = note.enqueue("plain")
    deferred = note.using(priority=50, run_after=timezone.now() + HOUR).enqueue("deferred")
    if change is not None:
        with satellites() as running:
            eventually(lambda: [*running.timeouts.list()], "the task is stored")
            change(running.timeouts, deferred.id)
    TaskRecord.objects.filter(pk=deferred.id).update(run_after=timezone.now() - HOUR)
    handle(plain)

    assert some_tasks.ran == [runs]


def test_an_undelayed_task_that_is_stored_gives_its_message_to_none(unique: str) -> None:
    broker = {"transport": f"memory://{unique}", "accept_loss": True}
    with override_settings(TIMEOUTMGR={**settings.TIMEOUTMGR, **broker}):
        endpoint.install()
        plain, urgent = note.enqueue("plain"), note.using(priority=50).enqueue("urgent")
        endpoint.timeouts.cancel(urgent.id)
        handle(plain)

    assert some_tasks.ran == ["plain"]


def test_a_naive_time_is_of_the_zone_of_the_settings() -> None:
    instant = datetime(2030, 1, 1, 12)
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"), timezone.override("UTC"):
        assert _aware(instant) == datetime(2030, 1, 1, 3, tzinfo=UTC)


def test_a_message_that_comes_again_executes_its_task_no_second_time() -> None:
    result = note.enqueue("a")
    handle(result)
    handle(result)

    assert some_tasks.ran == ["a"]


def test_a_task_whose_process_died_is_executed_again_by_its_message() -> None:
    plain, dying = note.enqueue("plain"), note.using(priority=50).enqueue("dying")

    def end(**_given: Any) -> None:
        raise SystemExit

    task_started.connect(end)
    with pytest.raises(SystemExit):
        handle(plain)
    task_started.disconnect(end)
    for message in (plain, dying):
        handle(message)

    assert some_tasks.ran == ["dying", "plain"]
    dying.refresh()
    assert (dying.status, dying.attempts) == ("SUCCESSFUL", 2)


def test_a_claim_that_another_process_overtakes_is_tried_again() -> None:
    plain = note.enqueue("plain")
    urgent = note.using(priority=50).enqueue("urgent")
    own = TaskRecord.objects.get(pk=plain.id)
    assert claimed(urgent.id) is not None  # after the look, before the claim
    from timeoutmgr.contrib.django_tasks import handlers

    stale = TaskRecord.objects.get(pk=urgent.id)
    stale.permit = urgent.id
    assert not handlers._claims(own, plain.id, stale)

    found = claimed(plain.id)
    assert found is not None
    assert found.pk == plain.id


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, CancelledError])
def test_an_error_is_the_result_of_a_task(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    result = fail.enqueue(kind.__name__)
    handle(result)

    [logged] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert logged.exc_info is not None
    assert logged.exc_info[0] is kind

    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is kind
    assert kind.__name__ in result.errors[0].traceback


def test_a_child_that_a_task_forked_has_no_result() -> None:
    result = fork.enqueue()
    handle(result)

    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", "parent of 3")


@pytest.mark.parametrize("waits", [True, False])
def test_a_child_that_a_coroutine_task_forked_ends(waits: bool) -> None:
    result: Any = fork_and_go_on.enqueue(waits)
    with DjangoEndpoint(configuration(), using="default"):
        eventually(lambda: fork_and_go_on.get_result(result.id).is_finished, "the task is finished")

    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", "parent of 0")


@pytest.mark.parametrize(
    ("how", "ends", "kind", "kept"),
    [
        ("atomic", "returns", HandlerFailed, 0),
        ("atomic", "raises", ValueError, 0),
        ("autocommit", "returns", HandlerFailed, 0),
        ("autocommit", "raises", ValueError, 0),
        ("autocommit", "commits", HandlerFailed, 1),
    ],
)
def test_a_task_that_leaves_a_transaction_open_has_failed_and_the_next_succeeds(
    how: str, ends: str, kind: type[Exception], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
    left, following = leave_open.enqueue(how, ends), note.enqueue("a")
    config = configuration()
    config.concurrency = 1
    with DjangoEndpoint(config, using="default"):
        eventually(lambda: note.get_result(following.id).is_finished, "the next is finished")

    left.refresh()
    following.refresh()
    assert (left.status, following.status) == ("FAILED", "SUCCESSFUL")
    assert left.errors[0].exception_class is kind
    assert "it left a transaction open in Django's database 'default'" in left.errors[0].traceback
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        assert cursor.fetchone() == (kept,)


@pytest.mark.parametrize("value", ["nan", "nul"])
def test_a_value_that_a_database_may_refuse_fails_the_task(value: str) -> None:
    result = give.enqueue(value)
    handle(result)

    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert result.errors[0].exception_class is ValueError


def test_a_value_that_shows_an_escape_is_kept() -> None:
    result = give.enqueue("escape")
    handle(result)

    result.refresh()
    assert result.return_value == "\\u0000"


def test_a_task_whose_result_the_database_refuses_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save = TaskRecord.save

    def refuse_values(record: TaskRecord) -> None:
        if record.return_value is not None:
            raise DataError("unsupported value")
        save(record)

    result = note.enqueue("a")
    monkeypatch.setattr(TaskRecord, "save", refuse_values)
    handle(result)

    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert "unsupported value" in result.errors[0].traceback


@pytest.mark.parametrize(
    ("failures", "status"), [(1, TaskResultStatus.SUCCESSFUL), (2, TaskResultStatus.FAILED)]
)
def test_a_value_that_ends_the_connection_twice_is_refused(
    monkeypatch: pytest.MonkeyPatch, failures: int, status: TaskResultStatus
) -> None:
    save, tries = TaskRecord.save, list[TaskRecord]()

    def end_connections(record: TaskRecord) -> None:
        if record.return_value is not None:
            tries.append(record)
            if len(tries) <= failures:
                raise OperationalError("server has gone away")
        save(record)

    result = note.enqueue("a")
    monkeypatch.setattr(TaskRecord, "save", end_connections)
    handle(result)

    result.refresh()
    assert (result.status, result.attempts) == (status, 1)


def test_an_outage_while_a_value_is_saved_has_the_task_executed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = connections["default"]
    save, connect, is_away = TaskRecord.save, own.connect, list[bool]()

    def lose_connections(record: TaskRecord) -> None:
        if record.return_value is None:
            is_away.clear()  # by then, the server is back
            save(record)
            return
        is_away.append(True)
        own.close()
        raise OperationalError("server closed the connection")

    def connect_if_there() -> None:
        if is_away:
            raise OperationalError("connection refused")
        connect()

    result = note.enqueue("a")
    with monkeypatch.context() as outage:
        outage.setattr(TaskRecord, "save", lose_connections)
        outage.setattr(own, "connect", connect_if_there)
        with pytest.raises(OperationalError, match="refused"):
            handle(result)
    handle(result)

    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)


def test_an_error_that_quotes_what_no_database_stores_is_the_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "django_tasks")  # what runs the tests cannot pass it on
    caplog.set_level(logging.CRITICAL, "django.tasks")
    result = fail_with.enqueue("a")
    record = TaskRecord.objects.get(pk=result.id)
    record.args = ["\0\ud800"]
    _run(record)

    result.refresh()
    assert "\\x00\\ud800" in result.errors[0].traceback


def test_a_coroutine_and_a_context_are_given() -> None:
    later, counted = note_later.enqueue("b"), attempts.enqueue()
    handle(later)
    handle(counted)

    counted.refresh()
    assert counted.return_value == 1
    assert some_tasks.ran == ["b"]


def test_signals_follow_a_task() -> None:
    received: list[tuple[str, str]] = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    listeners = [
        lambda task_result, name=name, **_: received.append((name, task_result.status))
        for name in signals
    ]
    for signal, listener in zip(signals.values(), listeners, strict=True):
        signal.connect(listener)
    handle(note.enqueue("a"))

    assert received == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


def test_an_unknown_result_does_not_exist() -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result("unknown")


def test_the_migration_makes_the_table_of_the_model(database: Any) -> None:
    call_command("makemigrations", "timeoutmgr_tasks", check=True, dry_run=True, verbosity=0)
    assert "timeoutmgr_django_tasks" in connections["default"].introspection.table_names()
