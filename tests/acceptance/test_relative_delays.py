"""A relative delay counts by the clock of the database that holds the queue, or of the session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration, RecoverabilitySettings, SendOptions, ToSend
from timeoutmgr.clock import SystemClock
from timeoutmgr.database import Database
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.message.instants import Micros, to_micros
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.sender.composer import Sent

MINUTE = 60_000_000
WRONG = [timedelta(minutes=-10), timedelta(minutes=10)]


class WrongClock(SystemClock):
    """A sender's clock that is set wrong."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead // timedelta(microseconds=1)

    def now(self) -> Micros:
        return super().now() + self._ahead


@pytest.fixture(params=["postgres_url", "mysql_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def sales(unique: str, url: str, ahead: timedelta, queues: str | None = None) -> Endpoint:
    """Return an endpoint whose clock is *ahead*; *queues* are its own, or in the database."""
    config = EndpointConfiguration(unique)
    config.error_queue = f"{unique}.error"
    config.use_transport(queues or url)
    config.use_persistence(url)
    config.enable_feature(TimeoutManager())
    config.clock = WrongClock(ahead)
    endpoint = Endpoint(config)
    endpoint.install()
    return endpoint


@contextmanager
def a_minute_by_the_database(url: str, due: list[Sent]) -> Iterator[None]:
    """Check that each send inside is due a minute later, by the clock of the database."""
    database, clock = Database.shared(url), SystemClock()
    before = database.now(clock)
    yield
    after = database.now(clock)
    assert due
    for sent in due:
        assert sent.due is not None
        assert before + MINUTE <= to_micros(sent.due) <= after + MINUTE


@pytest.mark.behaviour(55)
@pytest.mark.parametrize("ahead", WRONG)
def test_a_delay_counts_by_the_queues_database(url: str, unique: str, ahead: timedelta) -> None:
    sent: list[Sent] = []
    message = ToSend(unique, "Ping", None, SendOptions(delay=60))
    with (
        closing(sales(unique, url, ahead)) as endpoint,
        a_minute_by_the_database(url, sent),
    ):
        sent.append(endpoint.send_local("Ping", None, delay=60))
        endpoint.send_many([message] * 3, on_sent=sent.extend)
        endpoint.store_many([message] * 3, on_sent=sent.extend)

    assert len(sent) == 7


@pytest.mark.behaviour(55)
@pytest.mark.parametrize("ahead", WRONG)
def test_a_delay_in_a_session_counts_by_its_database(
    url: str, unique: str, ahead: timedelta, rabbitmq_url: str
) -> None:
    sent: list[Sent] = []
    engine = create_engine(url)
    with (
        closing(sales(unique, url, ahead, rabbitmq_url)) as endpoint,
        a_minute_by_the_database(url, sent),
        Session(engine) as session,
    ):
        sent.append(endpoint.send_local("Ping", None, delay=60, session=session))
        session.commit()
        endpoint.store_many(
            [ToSend(unique, "Ping", None, SendOptions(delay=60))], on_sent=sent.extend
        )
    engine.dispose()


@pytest.mark.behaviour(55)
def test_delays_of_a_handler_count_by_the_queues_database(url: str, unique: str) -> None:
    sent: list[Sent] = []
    config = EndpointConfiguration(unique)
    config.error_queue = f"{unique}.error"
    config.use_transport(url)
    config.use_persistence(url)
    config.enable_feature(TimeoutManager())
    config.critical_error_action = "log"  # of a clock that is wrong
    config.clock = WrongClock(WRONG[0])
    config.recoverability = RecoverabilitySettings(
        immediate=1, delayed=1, increase=timedelta(minutes=1)
    )

    @config.handler("Order")
    def remind_and_fail(_body: object, context: HandlerContext) -> None:
        sent.append(context.send_local("Reminder", None, delay=60))
        raise ValueError("a bug, so that it is retried later")

    with a_minute_by_the_database(url, sent), Endpoint(config) as endpoint:
        before = Database.shared(url).now(SystemClock())
        endpoint.send_local("Order", None)
        eventually(lambda: endpoint.timeouts.count() == 1, "the delayed retry is stored")
        [retry] = endpoint.timeouts.list()
        after = Database.shared(url).now(SystemClock())

    assert before + MINUTE <= to_micros(retry.due) <= after + MINUTE


def test_a_delayed_send_asks_for_the_time_once_and_a_bulk_once_for_a_window(
    url: str, unique: str
) -> None:
    database = Database.shared(url)
    assert database.dialect.now is not None
    asked: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement == f"SELECT {database.dialect.now}".replace("%", "%%"):
            asked.append(statement)

    message = ToSend(unique, "Ping", None, SendOptions(delay=60))
    with closing(sales(unique, url, timedelta(0))) as endpoint:
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            endpoint.send_local("Ping", None)
            endpoint.send_local("Ping", None, deliver_at=datetime.now(UTC))
            assert asked == []
            endpoint.send_local("Ping", None, delay=60)
            assert len(asked) == 1
            endpoint.send_many([message] * 500)
            assert len(asked) == 2
            endpoint.store_many([message] * 500)
            assert len(asked) == 3
        finally:
            event.remove(database.engine, "before_cursor_execute", note)


def test_a_store_on_the_hosts_clock_counts_delays_by_the_hosts_clock(
    postgres_url: str, unique: str
) -> None:
    config = EndpointConfiguration(unique)
    config.use_transport(postgres_url)
    config.use_persistence(SqlPersistence(postgres_url, settings=SqlSettings(clock="host")))
    config.enable_feature(TimeoutManager())
    config.check_destinations = False
    config.clock = WrongClock(timedelta(minutes=-10))

    with closing(Endpoint(config)) as endpoint:
        endpoint.install()
        sent = endpoint.send_local("Ping", None, delay=60)

    assert sent.due is not None
    assert to_micros(sent.due) < SystemClock().now() - 8 * MINUTE
