"""Delayed tasks of Celery rest in the store, and reach their queue as Celery would send them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Retry, SoftTimeLimitExceeded
from django.db import transaction
from kombu.exceptions import OperationalError
from sqlalchemy import Engine, create_engine, event, text

from tests.contrib.celery.conftest import MakeSite, Site, add, flaky, kombu
from tests.support.clock import FakeClock
from tests.support.redis_keys import forget_keys
from tests.support.waiting import eventually
from timeoutmgr import BulkInterrupted, Endpoint, ToSend
from timeoutmgr.contracts import ChangeResult
from timeoutmgr.contrib.celery import DurableDelays, delays
from timeoutmgr.contrib.celery.tasks import RUN
from timeoutmgr.contrib.process_endpoint import store
from timeoutmgr.database import Database
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    ContentConflict,
    InvalidMessage,
    MessageTooLarge,
    StorageUnavailable,
)
from timeoutmgr.message.instants import to_micros

SOON = 1.2
HOUR = 3600


def later(hours: float = 1) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


def seen(message: Any) -> dict[str, Any]:
    """All that a worker sees of *message*, but for what differs in each send."""
    headers = {
        name: value
        for name, value in message.headers.items()
        if name not in (RUN, "id", "root_id", "eta", "origin")
    }
    properties = {
        name: value
        for name, value in message.properties.items()
        if name
        not in ("delivery_tag", "correlation_id", "application_headers", "message_id", "reply_to")
    }
    return {
        "headers": headers,
        "properties": properties,
        "body": message.body.encode() if isinstance(message.body, str) else bytes(message.body),
        "content": (message.content_type, message.content_encoding),
    }


def test_a_delayed_task_rests_in_the_store_and_arrives_as_celery_sends_it(site: Site) -> None:
    delayed = site.add.apply_async((1, 2), countdown=HOUR, headers={"tenant": "a"}, priority=3)
    assert site.stored() == [delayed.id]
    assert site.waiting() == 0

    site.dispatching()
    site.delays.send_now(delayed.id)
    ours = site.arrival()
    site.add.apply_async((1, 2), headers={"tenant": "a"}, priority=3)
    stock = site.arrival()

    assert ours.headers["id"] == delayed.id
    assert datetime.fromisoformat(ours.headers["eta"]) <= datetime.now(UTC)
    assert seen(ours) == seen(stock)
    eventually(lambda: site.stored() == [], "the task is closed")


def test_a_delayed_task_for_the_default_exchange_arrives_as_celery_sends_it(site: Site) -> None:
    queue = kombu.Queue(site.queue, exchange=kombu.Exchange(""), routing_key=site.queue)
    site.app.conf.task_queues = [queue]
    site.add.apply_async((1, 2))  # so the queue exists: a message to no queue is not moved into it
    stock = site.arrival()
    site.add.apply_async((1, 2), countdown=SOON)

    site.dispatching()

    assert seen(site.arrival()) == seen(stock)


def test_a_task_that_is_due_is_published_at_once(embedded: Site) -> None:
    embedded.add.apply_async((1, 2))
    embedded.add.apply_async((1, 2), countdown=0.5)
    embedded.add.apply_async((1, 2), eta=later(-1))

    assert embedded.waiting() == 3
    assert embedded.stored() == []


@pytest.mark.parametrize(
    "eta",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
)
def test_an_eta_outside_the_calendar_is_refused(embedded: Site, eta: datetime) -> None:
    with pytest.raises(InvalidMessage, match="outside the years"):
        embedded.add.apply_async((1, 2), eta=eta)


def test_the_same_id_and_eta_is_one_task(embedded: Site) -> None:
    eta = later()
    for _ in range(2):
        embedded.add.apply_async((1, 2), eta=eta, task_id="sum")

    assert embedded.stored() == ["sum"]


def test_a_used_id_with_other_arguments_is_refused_and_not_dropped(embedded: Site) -> None:
    eta = later()
    embedded.add.apply_async((1, 2), eta=eta, task_id="sum")

    with pytest.raises(ContentConflict):
        embedded.add.apply_async((3, 4), eta=eta, task_id="sum")
    assert [task.args for task in embedded.delays.list()] == ["(1, 2)"]


def test_the_same_id_with_another_eta_is_a_second_task(embedded: Site) -> None:
    for hours in (1, 2):
        embedded.add.apply_async((1, 2), eta=later(hours), task_id="sum")

    assert embedded.stored() == ["sum", "sum"]


def test_a_replaced_task_has_the_new_eta_and_the_new_arguments(make_site: MakeSite) -> None:
    site = make_site("sqlite", on_duplicate="replace")
    eta = later(2)
    site.add.apply_async((1, 2), eta=later(1), task_id="sum")
    site.add.apply_async((3, 4), eta=eta, task_id="sum")

    [task] = site.delays.list()
    assert (task.id, task.args) == ("sum", "(3, 4)")
    assert abs(task.eta - eta) < timedelta(milliseconds=1)


@contextmanager
def with_session(site: Site) -> Iterator[None]:
    with create_engine(site.store).begin() as connection, site.delays.inside(connection):
        yield


def ended(site: Site, *, runs: bool) -> None:
    """Run or revoke the stored task ``sum``."""
    if not runs:
        assert site.delays.revoke("sum")
        return
    site.delays.send_now("sum")
    with Endpoint(site.delays.configuration()):
        site.arrival()
        eventually(lambda: not site.stored(), "the task was dispatched")


@pytest.mark.parametrize("around", [nullcontext, lambda site: site.delays.batch(), with_session])
def test_the_id_of_a_task_that_ran_or_was_revoked_is_used_again(
    make_site: MakeSite,
    around: Callable[[Site], AbstractContextManager[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = make_site("sqlite", on_duplicate="replace")
    for number in range(4):
        for hours in (1, 2):  # the second replaces the first, whatever ended before
            with around(site):
                for more in (0, 10):
                    site.add.apply_async((number, hours + more), eta=later(hours), task_id="sum")
        assert [task.args for task in site.delays.list()] == [f"({number}, 12)"]
        ended(site, runs=bool(number % 2))
    assert "used id" not in caplog.text


@pytest.mark.parametrize("around", [nullcontext, lambda site: site.delays.batch(), with_session])
@pytest.mark.parametrize("protocol", [1, 2])
def test_the_same_send_of_a_task_that_ran_or_was_revoked_is_no_task(
    make_site: MakeSite, around: Callable[[Site], AbstractContextManager[Any]], protocol: int
) -> None:
    site = make_site("sqlite", on_duplicate="replace")
    site.app.conf.task_protocol = protocol
    etas = [later(1), later(2)]

    def send(eta: datetime) -> None:
        with around(site):
            site.add.apply_async((1, 2), eta=eta, task_id="sum")

    for runs in (False, True, False):
        send(etas[0])
        send(etas[1])
        ended(site, runs=runs)

        send(etas[1])

        assert site.stored() == []


def test_a_task_that_a_clock_behind_sends_after_the_end_of_another_is_stored(
    make_site: MakeSite,
) -> None:
    clock = FakeClock(to_micros(later(0)))
    site = make_site(
        "sqlite", on_duplicate="replace", configure=lambda config: setattr(config, "clock", clock)
    )
    site.add.apply_async((1, 2), eta=later(1), task_id="sum")
    ended(site, runs=False)
    clock.step_wall(-timedelta(seconds=1))
    site.add.apply_async((3, 4), eta=later(2), task_id="sum")

    assert [task.args for task in site.delays.list()] == ["(3, 4)"]


@pytest.mark.parametrize("within", [nullcontext, lambda site: site.delays.batch(), with_session])
@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("countdown", [None, 0.5, -HOUR])
def test_a_task_that_is_due_replaces_the_pending_task(
    make_site: MakeSite,
    within: Callable[[Site], AbstractContextManager[Any]],
    protocol: int,
    countdown: float | None,
) -> None:
    site = make_site("sqlite", on_duplicate="replace")
    site.app.conf.task_protocol = protocol
    site.delays.endpoint.install()  # before a transaction
    began = datetime.now(UTC)
    with within(site):
        site.add.apply_async((1, 2), countdown=HOUR, task_id="sum")
        site.add.apply_async((3, 4), countdown=countdown, task_id="sum")

    [task] = site.delays.list()
    assert task.args == ("(3, 4)" if protocol == 2 else None)
    assert began + timedelta(seconds=max(countdown or 0, 0)) <= task.eta < later(0.5)
    assert site.waiting() == 0


def test_a_task_that_is_due_is_published_if_its_id_has_no_pending_task(make_site: MakeSite) -> None:
    site = make_site("sqlite", on_duplicate="replace")
    site.add.apply_async((1, 2), countdown=HOUR, task_id="other")
    for _ in range(2):
        site.add.apply_async((3, 4), task_id="sum")

    assert (site.stored(), site.waiting()) == (["other"], 2)


def test_a_replacement_leaves_the_retry_of_the_running_task(make_site: MakeSite) -> None:
    site = make_site("sqlite", on_duplicate="replace")
    with pytest.raises(Retry):
        retried(site)
    site.add.apply_async((1, 2), countdown=HOUR, task_id="t")

    assert site.stored() == ["t", "t"]


def test_a_retry_of_a_redelivered_task_is_stored_once(embedded: Site) -> None:
    request = {"id": "t", "retries": 0, "headers": {RUN: "r1"}, "called_directly": False}
    task: Any = embedded.app.task(flaky, name="flaky", bind=True, max_retries=3)
    for _ in range(2):
        task.push_request(**request)
        task.retry(countdown=HOUR, throw=False)
        task.pop_request()

    assert embedded.stored() == ["t"]


def retry_once(site: Site, message: Any) -> None:
    """Run a task as a worker that received *message* does; it retries."""
    task: Any = site.app.task(flaky, name="flaky", bind=True, max_retries=3)
    task.push_request(message.headers, called_directly=False, delivery_info={})
    task.retry(countdown=HOUR, throw=False)
    task.pop_request()


def test_a_task_without_a_delay_that_is_delivered_again_stores_its_retry_once(site: Site) -> None:
    site.app.send_task("flaky")
    message = site.arrival()
    for _ in range(2):
        retry_once(site, message)

    assert site.stored() == [message.headers["id"]]


def test_a_task_that_sets_its_retries_back_keeps_each_of_its_retries(embedded: Site) -> None:
    headers = {"id": "t", "task": "flaky", "retries": 2, RUN: "run"}
    for eta in (None, "2030-01-01T00:00:00+00:00"):
        task: Any = embedded.app.task(flaky, name="flaky", bind=True, max_retries=3)
        given = {**headers, "eta": eta, "headers": headers}
        task.push_request(**given, called_directly=False, delivery_info={})
        task.request.retries -= 1
        task.retry(countdown=HOUR, throw=False)
        task.pop_request()

    assert embedded.stored() == ["t", "t"]


def test_a_task_that_is_sent_again_with_its_headers_keeps_its_retry(embedded: Site) -> None:
    embedded.app.send_task("flaky", task_id="t")
    first = embedded.arrival()
    retry_once(embedded, first)
    embedded.app.send_task("flaky", task_id="t", headers={RUN: first.headers[RUN]})
    retry_once(embedded, embedded.arrival())

    assert embedded.stored() == ["t", "t"]


def retried(site: Site, countdown: float = HOUR) -> None:
    """Retry a task as a worker that runs it does."""
    task: Any = site.app.task(flaky, name="flaky", bind=True, max_retries=3)
    task.push_request(id="t", retries=0, headers={RUN: "r1"}, called_directly=False)
    try:
        raise task.retry(countdown=countdown)
    finally:
        task.pop_request()


def test_a_retry_that_ends_a_batch_is_stored_once(embedded: Site) -> None:
    def run(countdown: float) -> None:
        with embedded.delays.batch():
            embedded.add.apply_async((1, 2), countdown=HOUR)
            retried(embedded, countdown)

    for hours in (1, 2):  # the second time as a redelivered task
        with pytest.raises(Retry):
            run(hours * HOUR)

    assert embedded.stored() == ["t"]


def test_a_retry_that_rolls_a_transaction_back_is_stored(make_site: MakeSite) -> None:
    site = make_site("postgres")
    engine = create_engine(site.delays._store)

    def run() -> None:
        with engine.begin() as connection, site.delays.inside(connection):
            site.add.delay(1, 2)
            retried(site)

    with pytest.raises(Retry):
        run()
    engine.dispose()

    assert site.stored() == ["t"]


def test_two_runs_of_one_id_keep_their_retries(embedded: Site) -> None:
    task: Any = embedded.app.task(flaky, name="flaky", bind=True, max_retries=3)
    for run in ("r1", "r2"):
        task.push_request(id="t", retries=0, headers={RUN: run}, called_directly=False)
        task.retry(countdown=HOUR, throw=False)
        task.pop_request()

    assert embedded.stored() == ["t", "t"]


def test_a_task_that_is_sent_now_waits_for_no_eta(site: Site) -> None:
    delayed = site.add.apply_async((1, 2), countdown=HOUR)
    site.dispatching()

    assert site.delays.send_now(delayed.id) is ChangeResult.CHANGED

    message = site.arrival()
    assert message.headers["id"] == delayed.id
    assert datetime.fromisoformat(message.headers["eta"]) <= datetime.now(UTC)


def test_a_task_is_moved(embedded: Site) -> None:
    delayed = embedded.add.apply_async((1, 2), countdown=HOUR)
    eta = later(3)

    assert embedded.delays.reschedule(delayed.id, eta=eta) is ChangeResult.CHANGED
    assert embedded.delays.reschedule("unknown", eta=eta) is None

    [task] = embedded.delays.list()
    assert abs(task.eta - eta) < timedelta(milliseconds=1)


def test_tasks_are_listed_by_name_and_eta(embedded: Site) -> None:
    other: Any = embedded.app.task(add, name="other")
    other.apply_async((0, 0), countdown=HOUR)
    embedded.add.apply_async((1, 2), eta=later(2))
    embedded.add.apply_async((3, 4), eta=later(4))

    assert [task.args for task in embedded.delays.list(task="add")] == ["(1, 2)", "(3, 4)"]
    assert [task.args for task in embedded.delays.list(task="add", before=later(3))] == ["(1, 2)"]
    assert [task.name for task in embedded.delays.list(limit=1)] == ["other"]


def test_a_name_with_a_semicolon_is_listed_whole(embedded: Site) -> None:
    embedded.app.send_task("shop;charge", countdown=HOUR)

    assert [task.name for task in embedded.delays.list(task="shop;charge")] == ["shop;charge"]


def test_a_list_is_read_by_the_page(embedded: Site) -> None:
    with embedded.delays.batch():
        for number in range(20):
            embedded.add.apply_async((number, 0), countdown=HOUR)
    asked: list[str] = []
    listener = lambda *given: asked.append(given[2])  # noqa: E731  # named to be removed
    event.listen(Engine, "before_cursor_execute", listener)
    try:
        assert len(embedded.stored()) == 20
    finally:
        event.remove(Engine, "before_cursor_execute", listener)

    assert len([each for each in asked if each.startswith("SELECT")]) == 1


def test_the_tasks_of_a_batch_are_stored_in_one_transaction(embedded: Site) -> None:
    with embedded.delays.batch():
        for number in range(50):
            embedded.add.apply_async((number, 0), countdown=HOUR)
        assert embedded.stored() == []

    assert len(embedded.stored()) == 50


def test_a_batch_that_fails_stores_nothing(embedded: Site) -> None:
    def fails() -> None:
        with embedded.delays.batch():
            embedded.add.apply_async((1, 2), countdown=HOUR)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()

    assert embedded.stored() == []


def test_a_wrong_task_of_a_batch_raises_when_it_is_sent_and_the_others_are_stored(
    embedded: Site,
) -> None:
    with embedded.delays.batch():
        for number in (1, 2, 3):
            headers = {"x": "y" * 100_000} if number == 2 else {}
            with pytest.raises(MessageTooLarge) if headers else nullcontext():
                embedded.add.apply_async((number, 0), countdown=HOUR, headers=headers)

    assert [task.args for task in embedded.delays.list()] == ["(1, 0)", "(3, 0)"]


def add_all(site: Site, numbers: range, eta: datetime) -> None:
    """Send a task of a fixed id for each of *numbers*, in a batch."""
    with site.delays.batch():
        for number in numbers:
            site.add.apply_async((number, 0), eta=eta, task_id=f"t{number}")


def test_a_batch_that_an_outage_interrupts_knows_its_stored_tasks_and_is_completed(
    embedded: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0}
    windows: list[Any] = []
    eta = later()

    def away_behind_a_window(endpoint: Any, tasks: Any, on_sent: Any) -> None:
        windows.append(tasks)
        store(endpoint, tasks[:2], on_sent)
        raise StorageUnavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(delays, "store", away_behind_a_window)
        with pytest.raises(OperationalError, match=r"away; 4 tasks .* and 2 are not") as away:
            add_all(embedded, range(6), eta)

    interrupted = away.value.__cause__
    assert isinstance(interrupted, BulkInterrupted)
    assert (interrupted.sent, [len(tasks) for tasks in windows]) == (4, [6, 4])
    assert [one.options.saga_id for one in interrupted.unsent] == ["t4", "t5"]
    add_all(embedded, range(6), eta)
    assert sorted(embedded.stored()) == [f"t{number}" for number in range(6)]


def test_a_batch_with_a_used_id_knows_that_the_others_are_stored(embedded: Site) -> None:
    eta = later()
    embedded.add.apply_async((0, 1), eta=eta, task_id="t1")

    with pytest.raises(BulkInterrupted) as interrupted:
        add_all(embedded, range(3), eta)

    assert isinstance(interrupted.value.__cause__, ContentConflict)
    assert [one.options.saga_id for one in interrupted.value.unsent] == ["t1"]
    assert sorted(embedded.stored()) == ["t0", "t1", "t2"]


@pytest.mark.parametrize("kind", ["postgres", "redis", "rabbitmq"])
@pytest.mark.parametrize("countdown", [None, HOUR], ids=["at-once", "delayed"])
def test_a_task_inside_a_transaction_exists_if_and_only_if_it_commits(
    make_site: MakeSite, kind: str, countdown: float | None
) -> None:
    site = make_site(kind)
    engine = create_engine(site.delays._store)
    assert site.delays.endpoint is not None  # installed before the transactions
    for number, commits in ((1, True), (2, False)):
        with engine.connect() as connection, site.delays.inside(connection):
            connection.execute(text("SELECT 1"))
            site.add.apply_async((number, 0), countdown=countdown, task_id=f"t{number}")
            (connection.commit if commits else connection.rollback)()
    engine.dispose()

    assert site.stored() == ["t1"]
    assert site.waiting() == 0
    if countdown is None:
        site.dispatching()
        assert site.arrival().headers["id"] == "t1"


def test_a_task_joins_a_transaction_of_django(make_site: MakeSite, database: Any) -> None:
    site = make_site(f"sqlite:///{database.settings_dict['NAME']}")
    assert site.stored() == []  # installed before the transactions
    with transaction.atomic(), site.delays.inside(using="default"):
        site.add.delay(1, 2)
    with transaction.atomic(), site.delays.inside(using="default"):
        site.add.delay(3, 4)
        transaction.set_rollback(True)

    assert [task.args for task in site.delays.list()] == ["(1, 2)"]


def test_a_database_of_django_without_a_transaction_is_refused(
    embedded: Site, database: Any
) -> None:
    with pytest.raises(CombinationRefused, match="autocommit"):
        embedded.delays.inside(using=database.alias).__enter__()
    with pytest.raises(ConfigurationError, match="either"):
        embedded.delays.inside().__enter__()


def test_protocol_one_is_delayed_as_well(make_site: MakeSite) -> None:
    site = make_site("rabbitmq")
    site.app.conf.task_protocol = 1
    delayed = site.add.apply_async((1, 2), countdown=HOUR)
    assert [task.id for task in site.delays.list(task="add")] == [delayed.id]

    site.dispatching()
    site.delays.send_now(delayed.id)

    assert site.arrival().payload["id"] == delayed.id


@pytest.fixture
def without_store(
    request: pytest.FixtureRequest, make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> Site:
    """An app whose store is away, and whose broker is not; a test may give its options."""
    site = make_site("redis", **getattr(request, "param", {}))
    site.app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0}
    persistence: Any = site.delays.endpoint._parts.settings.persistence

    def away(*_: Any, **__: Any) -> Any:
        raise StorageUnavailable("the database is away")

    for call in ("run", "begin", "read"):
        monkeypatch.setattr(persistence.database, call, away)
    return site


def test_a_policy_without_a_number_of_retries_tries_until_the_store_is_back(
    without_store: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_store.app.conf.task_publish_retry_policy = {"max_retries": None, "interval_max": 0}
    tries: list[object] = []

    def back_at_the_tenth(endpoint: Any, tasks: Any, on_sent: Any) -> None:
        tries.append(tasks)
        if len(tries) < 10:
            raise StorageUnavailable("the database is away")

    monkeypatch.setattr(delays, "store", back_at_the_tenth)

    without_store.add.apply_async((1, 2), countdown=HOUR)

    assert len(tries) == 10


def test_the_time_limit_of_a_task_that_stores_another_is_raised_as_itself(
    make_site: MakeSite,
) -> None:
    def interrupt(message: ToSend) -> ToSend:
        raise SoftTimeLimitExceeded

    site = make_site("sqlite", configure=lambda config: config.add_send_middleware(interrupt))

    with pytest.raises(SoftTimeLimitExceeded):
        site.add.apply_async((1, 2), countdown=HOUR)


def test_a_store_that_is_away_in_a_transaction_is_an_operational_error(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site("redis")

    def away(*_: Any, **__: Any) -> Any:
        raise StorageUnavailable("the database is away")

    monkeypatch.setattr(site.delays.endpoint, "send", away)

    with with_session(site), pytest.raises(OperationalError, match="away"):
        site.add.apply_async((1, 2), countdown=HOUR)


def test_a_store_that_is_away_is_an_operational_error(without_store: Site) -> None:
    with pytest.raises(OperationalError, match="away"):
        without_store.add.apply_async((1, 2), countdown=HOUR)

    assert without_store.waiting() == 0


@pytest.mark.parametrize("without_store", [{"on_duplicate": "replace"}], indirect=True)
def test_a_task_that_is_due_is_published_while_the_store_is_away(
    without_store: Site, caplog: pytest.LogCaptureFixture
) -> None:
    without_store.add.apply_async((1, 2), task_id="t")

    assert without_store.arrival().headers["id"] == "t"
    assert any("could not store task t (retry 0)" in line for line in caplog.messages)


def test_a_retry_is_published_with_its_eta_while_the_store_is_away(
    without_store: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Retry):
        retried(without_store)

    message = without_store.arrival()
    assert (message.headers["id"], message.headers["retries"]) == ("t", 1)
    assert datetime.fromisoformat(message.headers["eta"]) > later(0.9)
    assert any("could not store task t (retry 1)" in line for line in caplog.messages)


@pytest.mark.parametrize("follows", ["chain", "callbacks"])
def test_what_follows_a_task_is_published_with_its_eta_while_the_store_is_away(
    without_store: Site, follows: str
) -> None:
    step = without_store.add.s(2).set(countdown=HOUR, task_id="next")
    run_by_a_worker(without_store, follows, **{follows: [step]})

    message = without_store.arrival()
    assert (message.headers["id"], message.payload[0]) == ("next", [3, 2])
    assert datetime.fromisoformat(message.headers["eta"]) > later(0.9)
    assert without_store.app.AsyncResult(follows).state == "SUCCESS"


def test_a_transaction_of_a_running_task_raises_while_the_store_is_away(
    without_store: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise StorageUnavailable("the database is away")

    def send_inside(x: int, y: int) -> None:
        with with_session(without_store):
            without_store.add.apply_async((x, y), countdown=HOUR)

    monkeypatch.setattr(without_store.delays.endpoint, "send", away)
    without_store.add.run = send_inside
    run_by_a_worker(without_store, "inside")

    assert without_store.waiting() == 0
    assert without_store.app.AsyncResult("inside").state == "FAILURE"


def run_by_a_worker(site: Site, task_id: str, **request: Any) -> None:
    """Run the task as a worker does, with what follows it in *request*."""
    run = build_tracer(site.add.name, site.add, app=site.app)
    run(task_id, (1, 2), {}, {"id": task_id, "delivery_info": {}, **request})


def test_a_task_of_another_that_runs_is_no_retry_of_it(without_store: Site) -> None:
    without_store.add.push_request(id="t", retries=0, called_directly=False)
    with pytest.raises(OperationalError):
        without_store.add.apply_async((1, 2), countdown=HOUR, task_id="u", retries=1)
    without_store.add.pop_request()


@pytest.mark.parametrize("protocol", [1, 2])
def test_an_event_of_a_task_is_published_and_not_stored(make_site: MakeSite, protocol: int) -> None:
    site = make_site("rabbitmq")
    site.app.conf.update(task_send_sent_event=True, task_protocol=protocol)
    events: list[Any] = []
    with site.app.connection_for_read() as connection:
        receiver = site.app.events.Receiver(connection, handlers={"task-sent": events.append})
        with receiver.consumer_context(wakeup=False) as (drained, _, _):
            sent = site.add.apply_async((1, 2), countdown=HOUR)
            while not events:
                drained.drain_events(timeout=30)

    assert site.stored() == [sent.id]
    assert events[0]["uuid"] == sent.id


def test_the_tables_of_the_app_get_its_due_tasks(embedded: Site) -> None:
    site = embedded
    site.app.conf.broker_transport_options = {"prefix": "c_"}
    delayed = site.add.apply_async((1, 2), countdown=HOUR)

    site.dispatching()
    site.delays.send_now(delayed.id)

    assert site.arrival().headers["id"] == delayed.id


def transport_of(broker: Any, **settings: Any) -> Any:
    """Return the transport of the due tasks of an app, which is never opened."""
    app: Any = Celery("app", broker=broker, set_as_current=False)
    app.conf.update(settings)
    return DurableDelays(app, store="sqlite:///unused.db").configuration().settings().transport


@pytest.mark.parametrize("hosts", ["amqp://localhost/a;amqp://[::1]/b", ["amqp://localhost/a"]])
def test_due_tasks_reach_every_host_of_the_broker(hosts: Any) -> None:
    expected = hosts if isinstance(hosts, str) else ";".join(hosts)

    assert transport_of(hosts).describe().endswith(f"with destinations at {expected}")


@pytest.mark.parametrize(
    ("broker", "settings", "text"),
    [
        ("amqp://h//", {"broker_use_ssl": {"ca_certs": "/dev/null"}}, "are checked"),
        ("amqp://h//", {"broker_use_ssl": True}, "are checked"),
        ("rediss://h/0?ssl_cert_reqs=required&ssl_ca_certs=/dev/null", {}, "are checked"),
        ("rediss://h/0", {"broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE}}, "without any"),
        ("rediss://h/0?ssl_cert_reqs=none;rediss://i/0", {}, "without any"),
    ],
)
def test_due_tasks_are_protected_as_the_app_says(
    broker: str, settings: dict[str, Any], text: str
) -> None:
    security = transport_of(broker, **settings)._destinations.link_security

    assert "TLS" in security.text
    assert text in security.text


@pytest.mark.parametrize("broker", ["amqp://u:p@rabbit/v", "redis://redis/0"])
def test_due_tasks_go_over_a_plain_network_as_other_tasks_of_the_app_do(broker: str) -> None:
    security = transport_of(broker)._destinations.link_security

    assert security.text.startswith("plain, over the network")


@pytest.mark.parametrize(
    "settings",
    [
        {"broker_transport_options": {"global_keyprefix": "p_", "max_retries": 3}},
        {"broker_transport_options": {"fanout_prefix": False}},
        {"broker_use_ssl": {"ssl_check_hostname": False}},
        {"broker_login_method": "EXTERNAL"},
    ],
)
def test_an_option_that_cannot_be_passed_on_is_refused(settings: dict[str, Any]) -> None:
    url = "redis://localhost/0" if "broker_use_ssl" in settings else "amqp://localhost//"
    with pytest.raises(
        ConfigurationError, match=r"global_key|fanout|check_host|EXTERNAL"
    ) as refused:
        transport_of(url, **settings)

    assert "max_retries" not in str(refused.value)


def test_an_option_that_leads_to_no_other_place_is_let_in() -> None:
    options = {"visibility_timeout": 9, "fanout_prefix": True}

    assert transport_of("redis://localhost/0", broker_transport_options=options)


def test_the_options_of_an_app_are_those_of_its_database_whoever_comes_first(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/broker.db"

    transport_of(f"timeoutmgr+{url}", broker_transport_options={"connect_timeout": 7})

    assert Database.shared(url).settings.connect_timeout == 7


def test_due_tasks_are_where_the_workers_of_an_app_read(make_site: MakeSite) -> None:
    site = make_site("redis")
    site.app.conf.broker_transport_options = {
        "global_keyprefix": f"{site.queue}:",
        "priority_steps": [0, 3, 6, 9],
        "sep": ":",
        "queue_order_strategy": "priority",
    }
    site.dispatching()
    task_id = site.add.apply_async((1, 2), countdown=2, priority=6).id

    assert site.arrival().headers["id"] == task_id


def test_a_task_for_another_broker_is_left_alone(make_site: MakeSite, redis_url: str) -> None:
    site = make_site("sqlite")
    with site.app.connection_for_write(redis_url) as other:
        site.add.apply_async((1, 2), countdown=HOUR, connection=other)
        other.default_channel.queue_delete(site.queue)
    forget_keys(redis_url, site.queue)

    assert site.stored() == []


def test_a_connection_that_failed_over_is_of_the_same_broker() -> None:
    app: Any = Celery("app", broker="amqp://a//;amqp://b//", set_as_current=False)
    delays = DurableDelays(app, store="sqlite:///unused.db", in_worker=False)
    with app.connection_for_write() as connection, app.connection_for_write("amqp://c") as other:
        connection.switch("amqp://b//")

        assert not delays._is_of_another_broker(SimpleNamespace(connection=connection))
        assert delays._is_of_another_broker(SimpleNamespace(connection=other))


@pytest.mark.parametrize("url", ["amqp://", "amqp://guest@localhost//", "amqp://rabbit/shop"])
def test_a_connection_that_kombu_opened_is_of_the_same_broker(url: str) -> None:
    app: Any = Celery("app", broker=url, set_as_current=False)
    delays = DurableDelays(app, store="sqlite:///unused.db", in_worker=False)
    connection = app.connection_for_write()
    connection.transport.Connection = lambda **_: SimpleNamespace(connect=lambda: None)
    connection.transport.establish_connection()

    assert not delays._is_of_another_broker(SimpleNamespace(connection=connection))


def test_an_app_has_delays_once(embedded: Site) -> None:
    with pytest.raises(ConfigurationError, match="already"):
        DurableDelays(embedded.app, store="sqlite:///x.db")


@pytest.mark.parametrize("options", [{"min_delay": -1}, {"on_duplicate": "drop"}])
def test_settings_are_checked_at_the_door(make_site: MakeSite, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        make_site("sqlite", **options)
