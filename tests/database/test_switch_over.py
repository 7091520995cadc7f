"""New connections reach another server, while the server of before still answers.

Two databases of PostgreSQL stand for two servers: neither has the advisory locks of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg import OperationalError
from sqlalchemy import Engine, event, make_url, text

from tests.database.test_idle_connections import BE_READ_ONLY
from tests.services import mysql, postgres
from tests.services.private import PrivateServer
from tests.support.waiting import eventually
from timeoutmgr.database import Database
from timeoutmgr.database.notifications import NOTIFY, NotificationListener
from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlTransport

WHERE = {"postgresql": "SELECT current_database()", "mysql": "SELECT @@port"}
MOVED = "session locks follow a new connection to another server"


@dataclass
class Pair:
    """The server of before, and the *other* server, which the databases of processes change to."""

    url: str
    other_url: str
    stack: ExitStack
    is_switched: bool = field(default=False, init=False)

    def process(self) -> Database:
        """Return the database as another process has it."""
        made = Database(self.url)
        parameters = made.engine.dialect.create_connect_args(make_url(self.other_url))[1]

        def lead(dialect: object, _record: object, _given: object, more: dict[str, Any]) -> None:
            if self.is_switched and dialect in (made.engine.dialect, made.apart.dialect):
                more |= parameters

        # Of the class: a listener of an engine comes after the listener that connects.
        event.listen(Engine, "do_connect", lead)
        self.stack.callback(event.remove, Engine, "do_connect", lead)
        self.stack.callback(made.dispose)
        return made

    def other(self) -> Database:
        """Return the other server's database."""
        made = Database(self.other_url)
        self.stack.callback(made.dispose)
        return made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(postgres_url: str, unique: str, stack: ExitStack) -> Pair:
    other_url = postgres.create(postgres_url, unique)
    stack.callback(postgres.sweep, postgres_url, unique.__eq__)
    return Pair(postgres_url, other_url, stack)


@pytest.fixture
def mysql_pair(
    mysql_url: str, unique: str, private_server: Callable[[str], PrivateServer], stack: ExitStack
) -> Pair:
    return Pair(mysql_url, mysql.create(private_server("mysql").url, unique), stack)


@pytest.fixture(params=["pair", pytest.param("mysql_pair", marks=pytest.mark.slow)])
def any_pair(request: pytest.FixtureRequest) -> Pair:
    made: Pair = request.getfixturevalue(request.param)
    return made


def where(database: Database) -> object:
    """Return what names the server of the next connection of the pool."""
    with database.read() as connection:
        return connection.execute(text(WHERE[database.dialect.name])).scalar_one()


def be_read_only(database: Database) -> None:
    """Have the idle sessions of the pool refuse writes, as their server does from now on."""
    with ExitStack() as lent:
        for _ in range(2):
            connection = lent.enter_context(database.engine.connect())
            connection.execute(text(BE_READ_ONLY[database.dialect.name]))
            connection.commit()


def write_in_vain(database: Database, name: str) -> None:
    with pytest.raises(StorageUnavailable, match=r"(?i)read.only"), database.begin() as connection:
        connection.execute(text(f"CREATE TABLE {name} (n INT)"))


def test_session_locks_follow_the_first_new_connection(
    any_pair: Pair, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    process, before, behind = any_pair.process(), Database(any_pair.url), any_pair.other()
    mine = SessionLocks(process)
    for owner in (f"{unique}-1", f"{unique}-2"):
        mine.acquire(owner)
        any_pair.stack.callback(mine.release, owner)
    be_read_only(process)
    any_pair.is_switched = True

    write_in_vain(process, unique)
    found = where(process)

    assert found == where(behind)
    assert all(mine.is_unbroken(owner) and mine.holds(owner) for owner in mine._mine)
    assert SessionLocks(behind).dead_owners(mine._mine) == set()
    assert SessionLocks(before).dead_owners(mine._mine) == {*mine._mine}
    assert [line[: len(MOVED)] for line in caplog.messages] == [MOVED]
    before.dispose()


def test_a_connection_that_is_older_than_the_locks_is_replaced(pair: Pair, unique: str) -> None:
    process, behind = pair.process(), pair.other()
    mine = SessionLocks(process)
    where(process)
    pair.is_switched = True

    mine.acquire(unique)
    pair.stack.callback(mine.release, unique)

    assert where(process) == where(behind)
    assert mine.holds(unique)
    assert SessionLocks(behind).dead_owners([unique]) == set()


def test_session_locks_that_cannot_follow_are_lost(
    pair: Pair, unique: str, stack: ExitStack
) -> None:
    process = pair.process()
    mine = SessionLocks(process)
    mine.acquire(unique)
    stack.callback(mine.release, unique)
    pair.is_switched = True

    def refuse(*_given: object) -> None:
        raise OperationalError("too many connections")

    event.listen(process.apart, "connect", refuse)
    where(process)
    event.remove(process.apart, "connect", refuse)

    assert not mine.is_unbroken(unique)
    mine.renew(unique)
    assert mine.holds(unique)


def test_session_locks_stay_through_a_read_only_window_of_their_server(
    pair: Pair, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    process = pair.process()
    mine = SessionLocks(process)
    mine.acquire(unique)
    pair.stack.callback(mine.release, unique)
    opened: list[object] = []
    event.listen(process.apart, "connect", lambda driver, _record: opened.append(driver))
    be_read_only(process)

    write_in_vain(process, unique)
    where(process)

    assert mine.holds(unique)
    assert opened == []
    assert caplog.messages == []


def test_each_process_has_its_leases_guarded_on_the_other_server(pair: Pair, unique: str) -> None:
    behind = pair.other()
    transports = [SqlTransport(pair.process(), prefix=unique) for _ in range(2)]
    receivers = []
    for made in (pair.process(), behind):
        SqlTransport(made, prefix=unique).install()
        SqlTransport(made, prefix=unique).session().create_queues(["q"])
    for transport in transports:
        pair.stack.callback(transport.close)
        receivers.append(transport.session().receiver("q", prefetch=1))
        be_read_only(transport.database)
    pair.is_switched = True
    sender = SqlTransport(behind, prefix=unique)
    pair.stack.callback(sender.close)
    sender.session().send([Outgoing("q", Message(id=each, body=b"")) for each in "ab"])
    arrived = []
    for receiver in receivers:
        with pytest.raises(TransportUnavailable, match="read-only"):
            receiver.receive(1, 5)
        arrived += [each.message.id for each in receiver.receive(1, 5)]

    assert arrived == ["a", "b"]
    owners = {transport.owner for transport in transports}
    assert SessionLocks(behind).dead_owners(owners) == set()
    assert [receiver.receive(1, 0) for receiver in receivers] == [[], []]


def test_listeners_hear_the_other_server(pair: Pair, unique: str) -> None:
    process, behind = pair.process(), pair.other()
    mine = SessionLocks(process)
    mine.acquire(unique)
    pair.stack.callback(mine.release, unique)
    heard: list[str] = []
    listener = NotificationListener(
        process, unique, hear=heard.append, missed=lambda: heard.append("begun")
    )
    listener.start()
    pair.stack.callback(listener.stop)
    eventually(lambda: heard == ["begun"], "the listener listens")
    pair.is_switched = True

    where(process)

    eventually(lambda: heard == ["begun"] * 2, "the listener begins anew")
    with behind.begin() as connection:
        connection.execute(NOTIFY, {"channel": unique, "payload": "of the other"})
    eventually(lambda: heard[2:] == ["of the other"], "the other server is heard")
