"""Options of queues under kombu: priority, time to live, expiry, limit, owners."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from typing import Any

import kombu as kombu_package
import pytest
from amqp.exceptions import ChannelError
from sqlalchemy import event, func, select, update

from chaos.forkserver_client import ForkServer
from tests.transport.sql.killing import kill_holding
from timeoutmgr.cli.doctor.findings import dead_owner_findings
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlQueueSettings, SqlTransport, register
from timeoutmgr.transport.sql.owned_queues import OwnedQueues, Standing

kombu: Any = kombu_package  # its annotations are too few to check against
register()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database, of each kind in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


EACH_DATABASE = pytest.mark.parametrize("url", ["sqlite", "postgres", "mysql"], indirect=True)


def connect(url: str, prefix: str, **options: Any) -> Any:
    return kombu.Connection(f"timeoutmgr+{url}", transport_options={"prefix": prefix, **options})


@pytest.fixture
def connection(url: str, prefix: str) -> Iterator[Any]:
    with connect(url, prefix) as connection:
        yield connection


@pytest.fixture
def file_connection(sqlite_url: str, prefix: str) -> Iterator[Any]:
    with connect(sqlite_url, prefix) as connection:
        yield connection


class MovedClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.time = 1_000_000_000_000_000

    def now(self) -> Micros:
        return self.time


def declare(connection: Any, name: str = "q", **options: Any) -> Any:
    queue = kombu.Queue(name, **options)(connection.default_channel)
    queue.declare()
    return queue


def publish(connection: Any, *bodies: object, **options: Any) -> None:
    for body in bodies:
        connection.Producer().publish(body, routing_key="q", **options)


def payloads(queue: Any) -> list[object]:
    found = []
    while (message := queue.get(no_ack=True)) is not None:
        found.append(message.payload)
    return found


def rows(connection: Any) -> dict[str, int]:
    """Return the number of rows of each table that a temporary queue has rows in."""
    tables = connection.transport.sql.tables
    with connection.transport.sql.database.read() as own:
        return {
            name: own.execute(select(func.count()).select_from(getattr(tables, name))).scalar_one()
            for name in ("queues", "bindings", "messages", "owners")
        }


def end_of_use(connection: Any) -> int:
    """Return when the queue of *connection* would be deleted."""
    sql = connection.transport.sql
    with sql.database.read() as own:
        return int(own.execute(select(sql.tables.queues.c.expires_at)).scalar_one())


@EACH_DATABASE
def test_higher_priorities_arrive_first_and_equal_priorities_in_order(connection: Any) -> None:
    queue = declare(connection, max_priority=5)
    for body, priority in (("a0", 0), ("b3", 3), ("c9", 9), ("d3", 3), ("e5", 5), ("f0", None)):
        publish(connection, body, priority=priority)

    assert payloads(queue) == ["c9", "e5", "b3", "d3", "a0", "f0"]


@EACH_DATABASE
@pytest.mark.parametrize("no_ack", [True, False])
def test_a_message_without_a_rank_arrives_behind_those_with_a_rank(
    connection: Any, url: str, prefix: str, no_ack: bool
) -> None:
    declare(connection)
    publish(connection, "plain")  # a sender knows for a second what the queue is
    with connect(url, prefix) as other:
        other.default_channel.queue_delete("q")
        queue = declare(other, max_priority=5)
        publish(connection, "plain", "plain too")
        publish(other, "low", priority=0)
        publish(other, "high", priority=9)

        found = [queue.get(no_ack=no_ack).payload for _ in range(4)]

    assert found == ["high", "low", "plain", "plain too"]


def test_a_plain_queue_keeps_the_order_of_arrival(file_connection: Any) -> None:
    queue = declare(file_connection)
    publish(file_connection, "low", priority=0)
    publish(file_connection, "high", priority=9)

    assert payloads(queue) == ["low", "high"]


def test_a_message_whose_time_to_live_is_over_is_never_received(file_connection: Any) -> None:
    clock = MovedClock()
    sql = file_connection.transport.sql
    sql.queues._clock = sql._leases._clock = sql.owned_queues._clock = clock
    queue = declare(file_connection, message_ttl=10)
    publish(file_connection, "of the queue")
    publish(file_connection, "of the message", expiration=5)
    clock.time += 6_000_000

    assert payloads(queue) == ["of the queue"]
    publish(file_connection, "late")
    clock.time += 10_000_000
    assert queue.queue_declare(passive=True).message_count == 0
    assert rows(file_connection)["messages"] == 2

    sql.owned_queues.sweep()

    assert rows(file_connection)["messages"] == 0


@EACH_DATABASE
def test_a_time_to_live_of_zero_is_over_on_the_servers_clock(connection: Any) -> None:
    queue = declare(connection)
    publish(connection, "gone", expiration=0)
    publish(connection, "stays", expiration=3600)

    assert payloads(queue) == ["stays"]


@EACH_DATABASE
def test_a_full_queue_refuses_a_message_and_keeps_its_messages(connection: Any) -> None:
    queue = declare(connection, max_length=2)
    publish(connection, 1, 2)

    with pytest.raises(ChannelError, match="full"):
        publish(connection, 3)
    sent = connection.transport.sql.session().send([Outgoing("q", Message(id="4", body=b"4"))])

    assert sent == [SendResult.REFUSED]
    assert payloads(queue) == [1, 2]


@EACH_DATABASE
def test_a_batch_fills_a_queue_up_to_its_limit(connection: Any) -> None:
    declare(connection, max_length=2)
    declare(connection, "other")
    batch = [Outgoing(queue, Message(id=queue + n)) for n in "123" for queue in ("q", "other")]

    sent = connection.transport.sql.session().send(batch)

    assert sent == [SendResult.CONFIRMED] * 4 + [SendResult.REFUSED, SendResult.CONFIRMED]
    assert [connection.transport.sql.queues.count(queue) for queue in ("q", "other")] == [2, 3]


@EACH_DATABASE
def test_a_full_queue_drops_its_oldest_message_only_if_asked(
    connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = declare(connection, max_length=2, queue_arguments={"x-overflow": "drop-head"})
    with caplog.at_level(logging.WARNING):
        publish(connection, 1, 2, 3, 4)

    sql = connection.transport.sql
    with sql.database.read() as own:
        assert own.execute(select(sql.tables.queues.c.dropped)).scalar_one() == 2
    assert [getattr(each, "event", "") for each in caplog.records].count("messages_dropped") == 2
    assert payloads(queue) == [3, 4]


def test_a_full_queue_drops_more_messages_than_a_statement_has_parameters(
    file_connection: Any,
) -> None:
    queue = declare(file_connection, max_length=1, queue_arguments={"x-overflow": "drop-head"})
    sql = file_connection.transport.sql

    @event.listens_for(sql.database.engine, "checkout")
    def limit(driver: Any, *_: object) -> None:
        driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 1_100)

    sql.session().send([Outgoing("q", Message(id=f"{n}", body=b"%d" % n)) for n in range(1_300)])

    assert payloads(queue) == [1_299]


@pytest.mark.parametrize(
    "arguments", [{"x-max-length": -1}, {"x-max-priority": 256}, {"x-overflow": "other"}]
)
def test_an_option_out_of_range_is_refused(
    file_connection: Any, arguments: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        declare(file_connection, queue_arguments=arguments)


@pytest.mark.parametrize("exchange", ["", "dlx"])
def test_a_queue_whose_rejected_messages_would_be_lost_is_refused(
    file_connection: Any, exchange: str
) -> None:
    with pytest.raises(ConfigurationError, match="no dead-letter exchanges, got"):
        declare(file_connection, queue_arguments={"x-dead-letter-exchange": exchange})


def test_an_unused_queue_expires_and_a_consumed_queue_does_not(
    sqlite_url: str, prefix: str
) -> None:
    clock = MovedClock()
    with connect(sqlite_url, prefix) as connection, connect(sqlite_url, prefix) as other:
        for each in (connection, other):
            each.transport.sql.owned_queues._clock = clock
        declare(connection, "unused", expires=10, durable=True)
        consumed = declare(connection, "consumed", expires=10, durable=True)
        consumer = connection.Consumer([consumed], callbacks=[lambda *_: None])
        consumer.consume()
        clock.time += 11_000_000
        other.transport.sql.owned_queues.sweep()
        assert other.transport.sql.queues.missing(["unused", "consumed"]) == ["unused"]

        consumer.cancel()
        other.transport.sql.owned_queues.sweep()
        assert other.transport.sql.queues.missing(["consumed"]) == []
        clock.time += 11_000_000
        other.transport.sql.owned_queues.sweep()
        assert other.transport.sql.queues.missing(["consumed"]) == ["consumed"]


@pytest.mark.parametrize("url", ["postgres", "mysql"], indirect=True)
def test_an_unused_queue_expires_by_the_clock_of_the_server(connection: Any) -> None:
    for name in ("old", "new"):
        declare(connection, name, expires=10, durable=True)
    sql = connection.transport.sql
    queues = sql.tables.queues
    earlier = update(queues).where(queues.c.name == "old")
    with sql.database.begin() as own:
        own.execute(earlier.values(expires_at=queues.c.expires_at - 12_000_000))

    sql.owned_queues.sweep()

    assert sql.queues.missing(["old", "new"]) == ["old"]


def test_a_declaration_writes_no_more_while_the_queue_has_its_time_left(
    sqlite_url: str, prefix: str
) -> None:
    clock = MovedClock()
    with connect(sqlite_url, prefix) as connection:
        owned = connection.transport.sql.owned_queues
        owned._clock = clock
        declare(connection, expires=100, durable=False)
        written = end_of_use(connection)
        clock.time += 9_000_000
        declare(connection, expires=100, durable=False)
        assert end_of_use(connection) == written >= clock.time + 100_000_000

        clock.time += 2_000_000
        declare(connection, expires=100, durable=False)

        assert end_of_use(connection) > written
        owned.leave_all()
        assert owned.standing("q") is None
        declare(connection, expires=100, durable=False)
        assert rows(connection)["owners"] == 1


def test_a_queue_that_ends_during_its_declaration_is_created_again(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(connection, expires=100)
    declaring = OwnedQueues.declare

    def sweep_and_declare(owned: OwnedQueues, *args: Any, **options: Any) -> str | None:
        monkeypatch.setattr(OwnedQueues, "declare", declaring)
        with connection.transport.sql.database.begin() as own:
            own.execute(update(connection.transport.sql.tables.queues).values(expires_at=1))
        owned.sweep()
        return owned.declare(*args, **options)

    monkeypatch.setattr(OwnedQueues, "declare", sweep_and_declare)
    monkeypatch.setattr(Standing, "meets", lambda *_: False)

    declare(connection, expires=100)

    assert end_of_use(connection) > 1


def test_a_declaration_makes_us_an_owner_of_an_existing_queue(url: str, prefix: str) -> None:
    with connect(url, prefix) as one, connect(url, prefix) as two:
        declare(one, auto_delete=True)
        publish(one, "hello")

        assert declare(two, auto_delete=True).queue_declare().message_count == 1

        assert rows(one)["owners"] == 2


@EACH_DATABASE
def test_an_auto_delete_queue_goes_with_its_last_consumer(url: str, prefix: str) -> None:
    with connect(url, prefix) as one, connect(url, prefix) as two:
        consumers = [
            each.Consumer(
                [declare(each, exchange=kombu.Exchange("x"), auto_delete=True)],
                callbacks=[lambda *_: None],
            )
            for each in (one, two)
        ]
        for consumer in consumers:
            consumer.consume()
        consumers[0].cancel()
        assert rows(one)["queues"] == 1
        consumers[1].cancel()

        assert rows(one) == {"queues": 0, "bindings": 0, "messages": 0, "owners": 0}


@EACH_DATABASE
def test_an_exclusive_queue_is_of_one_living_owner(url: str, prefix: str) -> None:
    with connect(url, prefix) as other:
        with connect(url, prefix) as owner:
            declare(owner, exclusive=True)
            with pytest.raises(ChannelError, match="exclusive"):
                declare(other, exclusive=True)
        assert rows(other)["queues"] == 0
        declare(other, exclusive=True)
        assert rows(other)["owners"] == 1


def test_a_killed_process_leaves_its_durable_queue_and_nothing_else(
    url: str, prefix: str, fork_server: ForkServer
) -> None:
    with connect(url, prefix) as connection:
        for name, options in (("tasks", {}), ("temporary", {"auto_delete": True})):
            declare(connection, name, exchange=kombu.Exchange("x"), routing_key=name, **options)
            connection.Producer().publish("hello", exchange="x", routing_key=name)
        owned = connection.transport.sql.owned_queues
        kill_holding(fork_server, url, prefix, "temporary", 1, "kombu")
        assert owned.count_dead() == 0  # the other owner lives
        owned.sweep()
        assert connection.transport.sql.queues.missing(["temporary"]) == []

        owned.leave_all()

        assert connection.transport.sql.queues.missing(["tasks", "temporary"]) == ["temporary"]
        assert rows(connection) == {"queues": 1, "bindings": 1, "messages": 1, "owners": 0}


def test_a_thousand_dead_workers_leave_nothing_after_one_sweep(
    connection: Any, messages: Any
) -> None:
    sql: SqlTransport = connection.transport.sql
    channel = connection.default_channel
    declare(connection, "tasks")
    declare(connection, "pattern", auto_delete=True, exchange=kombu.Exchange("x", "fanout"))
    numbers = [f"worker{number}" for number in range(1000)]
    tables = sql.tables
    with sql.database.begin() as own:
        text = own.execute(
            select(tables.queues.c.options).where(tables.queues.c.name == "pattern")
        ).scalar_one()
        own.execute(
            tables.queues.insert(),
            [{"name": name, "created": 0, "options": text} for name in numbers],
        )
        own.execute(
            tables.bindings.insert(),
            [
                {"exchange": "x", "routing_key": "", "queue": name, "kind": "fanout"}
                for name in numbers
            ],
        )
        own.execute(
            tables.owners.insert(),
            [{"queue": name, "owner": name, "consuming": 1} for name in numbers],
        )
    sql.session().send([one for name in numbers for one in messages(1, name)])

    channel.basic_publish(channel.prepare_message("x"), "x", "")

    assert rows(connection) == {"queues": 2, "bindings": 1, "messages": 1, "owners": 1}


def test_transport_options_reach_the_settings(sqlite_url: str, prefix: str) -> None:
    options = {"lease": 7, "poll_min": 0.5, "poll_max": 2, "owner_check": 3, "notify": False}
    with connect(sqlite_url, prefix, **options) as connection:
        settings: SqlQueueSettings = connection.transport.sql.settings

    assert settings.lease.total_seconds() == 7
    assert settings.polling("sqlite") == (0.5, 2)
    assert settings.owner_check.total_seconds() == 3
    assert settings.notify is False


@pytest.mark.parametrize(("name", "value"), [("leese", 7), ("lease", "7"), ("lease", True)])
def test_a_wrong_transport_option_is_refused_by_its_name(
    sqlite_url: str, prefix: str, name: str, value: object
) -> None:
    with (
        connect(sqlite_url, prefix, **{name: value}) as connection,
        pytest.raises(ConfigurationError, match=name),
    ):
        connection.transport.sql  # noqa: B018 - opens the transport


def test_words_of_a_topic_may_be_none(file_connection: Any) -> None:
    queue = declare(file_connection, exchange=kombu.Exchange("t", "topic"), routing_key="a.#")
    for key in ("a", "a.b.c", "ab"):
        file_connection.Producer().publish(key, exchange="t", routing_key=key)

    assert payloads(queue) == ["a", "a.b.c"]


def test_a_durable_queue_that_expires_outlives_its_dead_consumer(
    sqlite_url: str, prefix: str, fork_server: ForkServer
) -> None:
    with connect(sqlite_url, prefix) as connection:
        declare(connection, expires=3600, durable=True)
        publish(connection, "kept")
        kill_holding(fork_server, sqlite_url, prefix, "q", 1, "kombu")
        assert rows(connection)["owners"] == 1
        [finding] = dead_owner_findings(connection.transport.sql)
        assert finding.text.startswith("1 queues")

        connection.transport.sql.owned_queues.sweep()

        assert list(dead_owner_findings(connection.transport.sql)) == []
        assert rows(connection) == {"queues": 1, "bindings": 0, "messages": 1, "owners": 0}
