"""Messages leased when the database went away return with it, at once and in their old places."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import kombu as kombu_package
import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import IntegrityError

from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.testing.faultproxy import FaultProxy
from timeoutmgr.transport.sql import SqlQueueSettings, SqlTransport, register
from timeoutmgr.transport.sql.leases import Leases, UnreleasedLeases
from timeoutmgr.transport.sql.tables import LeaseTag
from timeoutmgr.transport.sql.wakeups import QueueWakeups

kombu: Any = kombu_package  # its annotations are too few to check against
register()

Make = Callable[..., list[Outgoing]]
SELDOM = timedelta(seconds=30)
"""Longer than any test: a repeated search is not the cause of an event before its end."""


@dataclass
class Away:
    """A transport on a server that a test takes away."""

    proxy: FaultProxy
    transport: SqlTransport

    def go(self) -> None:
        """Break each connection, and refuse new connections."""
        self.proxy.refuse()
        self.proxy.reset()

    def come_back(self) -> None:
        """Accept new connections again."""
        self.proxy.heal()


@pytest.fixture(params=["postgres", "mysql"])
def away(request: pytest.FixtureRequest, prefix: str) -> Iterator[Away]:
    """A transport with the queue ``q``, whose owner is checked every 30 s."""
    url = request.getfixturevalue(f"{request.param}_url")
    with FaultProxy.before(url) as proxy:
        settings = SqlQueueSettings(owner_check=SELDOM)
        transport = SqlTransport(proxy.url(url), prefix=prefix, settings=settings)
        transport.install()
        transport.session().create_queues(["q"])
        yield Away(proxy, transport)
        transport.close()


@pytest.fixture
def make_seldom(postgres_url: str, prefix: str) -> Iterator[Callable[[], SqlTransport]]:
    """A maker of a transport that seldom checks whether other owners are alive."""
    with ExitStack() as stack:

        def make() -> SqlTransport:
            settings = SqlQueueSettings(owner_check=SELDOM)
            transport = SqlTransport(postgres_url, prefix=prefix, settings=settings)
            stack.callback(transport.close)
            return transport

        yield make


def ids(received: list[Received]) -> list[str]:
    return [one.message.id for one in received]


def test_unreleased_leases_come_first_once_the_database_answers(away: Away, messages: Make) -> None:
    session = away.transport.session()
    session.send(messages(4))
    receiver = session.receiver("q", prefetch=0)
    receiver.receive(2, 0)
    away.go()
    with pytest.raises(TransportUnavailable):
        receiver.close()
    away.come_back()

    received = session.receiver("q", prefetch=0).receive(10, 0)

    assert [(one.message.id, one.delivery_count) for one in received] == [
        ("0", 1),
        ("1", 1),
        ("2", 0),
        ("3", 0),
    ]


def test_a_second_outage_forgets_nothing(away: Away, messages: Make) -> None:
    session = away.transport.session()
    session.send(messages(2))
    first, second = (session.receiver("q", prefetch=0) for _ in range(2))
    first.receive(1, 0)
    away.go()
    with pytest.raises(TransportUnavailable):
        first.close()
    with pytest.raises(TransportUnavailable):
        second.receive(10, 0)
    away.come_back()
    away.go()
    with pytest.raises(TransportUnavailable):
        second.receive(10, 0)
    away.come_back()

    assert ids(second.receive(10, 0)) == ["0", "1"]


def test_a_lease_of_another_receiver_on_the_same_transport_is_kept(
    away: Away, messages: Make
) -> None:
    session = away.transport.session()
    session.send(messages(2))
    closing, holding, free = (session.receiver("q", prefetch=0) for _ in range(3))
    closing.receive(1, 0)
    held = holding.receive(1, 0)
    away.go()
    with pytest.raises(TransportUnavailable):
        closing.close()
    away.come_back()

    assert ids(free.receive(10, 0)) == ["0"]
    holding.ack(held)


def test_a_lease_whose_commit_was_lost_is_released(away: Away, messages: Make) -> None:
    session = away.transport.session()
    session.send(messages(2))
    receiver = session.receiver("q", prefetch=0)

    with losing_the_next_commit(away), pytest.raises(TransportUnavailable):
        receiver.receive(1, 0)

    assert ids(receiver.receive(10, 0)) == ["0", "1"]


def test_a_lease_of_kombu_whose_answer_was_lost_is_released_beside_the_kept_leases(
    postgres_url: str, prefix: str
) -> None:
    options = {"prefix": prefix, "owner_check": SELDOM.total_seconds()}
    with FaultProxy.before(postgres_url) as proxy:
        url = f"timeoutmgr+{proxy.url(postgres_url)}"
        with kombu.Connection(url, transport_options=options) as connection:
            got: list[Any] = []
            with connection.Consumer(
                [kombu.Queue("q")], on_message=got.append, prefetch_count=3
            ) as consumer:
                publish = partial(consumer.channel.basic_publish, exchange="", routing_key="q")
                publish(consumer.channel.prepare_message("kept"))
                connection.drain_events(timeout=10)
                publish(consumer.channel.prepare_message("first"))
                publish(consumer.channel.prepare_message("second"))
                proxy.lose_reply()

                with pytest.raises(TransportUnavailable):
                    connection.drain_events(timeout=10)
                proxy.wait_until_fired()

                for _ in range(2):
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=10)
            assert [one.body for one in got] == [b"kept", b"first", b"second"]
            assert [one.delivery_info["redelivered"] for one in got] == [False, True, True]
            for one in got:
                one.ack()
            assert connection.default_channel.queue_declare("q", passive=True).message_count == 0


def test_an_acknowledgement_whose_commit_failed_leaves_the_lease(
    away: Away, messages: Make
) -> None:
    session = away.transport.session()
    session.send(messages(1))
    receiver = session.receiver("q", prefetch=0)
    received = receiver.receive(1, 0)

    def acknowledge() -> None:
        with session.transaction() as transaction:
            receiver.ack(received, transaction=transaction)
            away.go()

    with pytest.raises(TransportUnavailable):
        acknowledge()
    held = receiver.held()
    with pytest.raises(TransportUnavailable):
        receiver.close()
    away.come_back()

    assert held == [received[0].tag]
    assert ids(session.receiver("q", prefetch=0).receive(1, 0)) == ["0"]


def test_a_refused_commit_leaves_the_lease(postgres_url: str, prefix: str, messages: Make) -> None:
    transport = SqlTransport(postgres_url, prefix=prefix)
    transport.install()
    session = transport.session()
    session.create_queues(["q"])
    session.send(messages(1))
    receiver = session.receiver("q", prefetch=0)
    received = receiver.receive(1, 0)

    def acknowledge() -> None:
        with session.transaction() as transaction:
            receiver.ack(received, transaction=transaction)
            # Seen at the commit only.
            late = "n int UNIQUE DEFERRABLE INITIALLY DEFERRED"
            transaction.execute(text(f"CREATE TEMPORARY TABLE late ({late}) ON COMMIT DROP"))
            transaction.execute(text("INSERT INTO late VALUES (1), (1)"))

    with pytest.raises(IntegrityError):
        acknowledge()

    assert receiver.held() == [received[0].tag]
    transport.close()


def test_a_file_that_another_program_writes_for_long_is_an_outage_too(
    sqlite_url: str, prefix: str, messages: Make
) -> None:
    database = Database(sqlite_url, DatabaseSettings(write_wait=0.1))
    transport = SqlTransport(database, prefix=prefix)
    transport.install()
    session = transport.session()
    session.create_queues(["q"])
    session.send(messages(2))
    receiver = session.receiver("q", prefetch=0)
    receiver.receive(1, 0)
    assert database.path is not None
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransportUnavailable):
            receiver.close()
        other.execute("ROLLBACK")

    assert ids(session.receiver("q", prefetch=0).receive(10, 0)) == ["0", "1"]
    transport.close()


class StandIn(Leases):
    """Leases without a database."""

    def __init__(self, ours: set[LeaseTag]) -> None:
        self.ours = ours
        self.released: list[tuple[str, set[LeaseTag]]] = []
        self.is_away = False

    def leased(self, tags: Any) -> set[LeaseTag]:
        if self.is_away:
            raise StorageUnavailable("away")
        return self.ours & set(tags)

    def release(self, queue: str, tags: Any, *, patient: bool = True) -> None:
        self.released.append((queue, set(tags)))


def test_a_released_lease_wakes_a_waiting_receiver() -> None:
    wakeups = QueueWakeups()
    unreleased = UnreleasedLeases(StandIn({(1, 1)}), wakeups)
    wakeup = wakeups.wakeup("q")
    count = wakeup.count
    unreleased.add("q", [(1, 1)])

    unreleased.give_back(list)

    assert wakeup.wait(count, 0)


def test_no_lease_is_released_twice() -> None:
    leases = StandIn({(1, 1), (2, 1)})
    unreleased = UnreleasedLeases(leases, QueueWakeups())
    unreleased.add("q", [(1, 1)])
    unreleased.add("q", [])
    unreleased.give_back(list)
    unreleased.add("q", [(2, 1)])
    unreleased.give_back(list)
    unreleased.give_back(list)

    assert leases.released == [("q", {(1, 1)}), ("q", {(2, 1)})]


def test_only_an_existing_lease_that_no_receiver_holds_is_released() -> None:
    leases = StandIn({(1, 1), (2, 1)})
    unreleased = UnreleasedLeases(leases, QueueWakeups())
    unreleased.add("q", [(1, 1), (2, 1), (3, 1)])

    unreleased.give_back(lambda: [(2, 1)])

    assert leases.released == [("q", {(1, 1)})]


def test_leases_stay_to_be_released_after_a_failed_release() -> None:
    leases = StandIn({(1, 1)})
    unreleased = UnreleasedLeases(leases, QueueWakeups())
    unreleased.add("q", [(1, 1)])
    leases.is_away = True
    with pytest.raises(StorageUnavailable):
        unreleased.give_back(list)
    leases.is_away = False

    unreleased.give_back(list)

    assert leases.released == [("q", {(1, 1)})]


def test_the_lease_renewer_releases_leases_of_a_closed_receiver(
    postgres_url: str, make_seldom: Callable[[], SqlTransport], prefix: str, messages: Make
) -> None:
    with FaultProxy.before(postgres_url) as proxy:
        settings = SqlQueueSettings(owner_check=timedelta(seconds=0.1))
        ours = SqlTransport(proxy.url(postgres_url), prefix=prefix, settings=settings)
        ours.install()
        session = ours.session()
        session.create_queues(["q"])
        session.send(messages(1))
        receiver = session.receiver("q", prefetch=0)
        receiver.receive(1, 0)
        other = make_seldom().session().receiver("q", prefetch=0)
        # The last check for 30 s whether our owner is alive: no other process frees our leases.
        assert other.receive(1, 0) == []
        proxy.refuse()
        proxy.reset()
        with pytest.raises(TransportUnavailable):
            receiver.close()
        proxy.heal()

        assert ids(other.receive(1, 10)) == ["0"]
        ours.close()


@contextmanager
def losing_the_next_commit(away: Away) -> Iterator[None]:
    """Lose the answer to the next commit after an update; the commit itself succeeds."""
    if away.transport.database.can_pipeline:
        away.proxy.lose_reply(containing=b"UPDATE")  # has the commit in it too
        yield
        away.proxy.wait_until_fired()
        return
    engine = away.transport.database.engine

    def arm(_c: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("UPDATE"):
            away.proxy.lose_reply(containing=b"COMMIT")

    event.listen(engine, "before_cursor_execute", arm)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", arm)
    away.proxy.wait_until_fired()
