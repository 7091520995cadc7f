"""A message that is larger than a packet of MySQL is the message's fault, not an outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, text

from tests.persistence.making import SetClock, timeout
from tests.services import mysql
from tests.services.private import PrivateServer
from timeoutmgr.contracts import TimeoutFilter, TimeoutStore, TransactionMode
from timeoutmgr.database import Database
from timeoutmgr.errors import MessageRejected
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.delayed import SqlDelayedMessageStore

ALL = TimeoutFilter()
PACKET = 100_000
FITS = PACKET // 2 - 6_000
"""A body with which a message surely fits: its headers have less than a hundred bytes."""


@pytest.fixture
def database(mysql_url: str) -> Iterator[Database]:
    """A database of which every connection knows a small packet."""
    made = Database(mysql_url)

    @event.listens_for(made.engine, "connect")
    def know(_driver: Any, record: Any) -> None:
        record.info["timeoutmgr_packet"] = PACKET

    yield made
    made.dispose()


@pytest.fixture
def store(database: Database, unique: str) -> Iterator[TimeoutStore]:
    persistence = SqlPersistence(database, prefix=f"{unique}_")
    persistence.install()
    yield persistence.timeouts("e", SetClock())
    persistence.close()


def test_a_message_that_no_packet_carries_is_rejected_and_nothing_stored(
    store: TimeoutStore,
) -> None:
    with pytest.raises(MessageRejected):
        store.store_many([timeout("a"), timeout("b", body=bytes(PACKET)), timeout("c")])

    assert store.count(ALL) == 0


def test_its_neighbours_are_stored_each_on_its_own(store: TimeoutStore) -> None:
    # A pump does the same with a batch in which the store rejected a message.
    for one in (timeout("a"), timeout("b", body=bytes(FITS)), timeout("c")):
        store.store_many([one])
    with pytest.raises(MessageRejected):
        store.store_many([timeout("d", body=bytes(PACKET // 2))])

    assert [one.id for one in store.list(ALL)] == ["a", "b", "c"]


def test_a_callers_transaction_survives_a_rejected_message(
    store: TimeoutStore, database: Database
) -> None:
    with database.begin() as transaction:
        store.store_many([timeout("a")], transaction=transaction)
        with pytest.raises(MessageRejected):
            store.store_many(
                [timeout("a"), timeout("b"), timeout("c", body=bytes(PACKET))],
                transaction=transaction,
            )

    assert [one.id for one in store.list(ALL)] == ["a"]


def test_a_batch_goes_in_as_many_statements_as_it_needs(
    store: TimeoutStore, database: Database
) -> None:
    sizes: list[int] = []

    def note(_connection: Any, _cursor: Any, statement: str, rows: Any, *_: Any) -> None:
        if statement.startswith("INSERT INTO") and "body" in statement:
            sizes.append(len(rows) if isinstance(rows, list) else 1)

    event.listen(database.engine, "before_cursor_execute", note)
    names = [f"{number}" for number in range(7)]

    store.store_many([timeout(name, body=bytes(FITS // 3)) for name in names])

    assert sizes == [2, 2, 2, 1]
    assert [one.id for one in store.list(ALL)] == names


def test_a_server_is_asked_once_for_each_connection(mysql_url: str, unique: str) -> None:
    database = Database(mysql_url)
    persistence = SqlPersistence(database, prefix=f"{unique}_")
    persistence.install()
    database.dispose()
    store = persistence.timeouts("e", SetClock())
    asked: list[str] = []
    connected: list[object] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "max_allowed_packet" in statement:
            asked.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    event.listen(database.engine, "connect", lambda *each: connected.append(each))
    for number in range(20):
        store.store_many([timeout(f"{number}"), timeout(f"{number}b")])

    assert len(asked) == len(connected) == 1
    persistence.close()


def test_a_delayed_message_store_rejects_it_too(database: Database, unique: str) -> None:
    store = SqlDelayedMessageStore(database)
    store.setup_infrastructure(unique)
    store.initialize(unique, TransactionMode.RECEIVE_ONLY)

    store.store_many([timeout("a"), timeout("b", body=bytes(FITS))])
    with pytest.raises(MessageRejected):
        store.store_many([timeout("c"), timeout("d", body=bytes(PACKET))])

    assert store.count() == 2
    store.close()


def test_a_delayed_message_store_writes_a_batch_in_as_many_statements_as_it_needs(
    database: Database, unique: str
) -> None:
    store = SqlDelayedMessageStore(database)
    store.setup_infrastructure(unique)
    store.initialize(unique, TransactionMode.RECEIVE_ONLY)
    sizes: list[int] = []

    def note(_connection: Any, _cursor: Any, statement: str, rows: Any, *_: Any) -> None:
        if statement.startswith("INSERT") and "body" in statement:
            sizes.append(len(rows) if isinstance(rows, list) else 1)

    event.listen(database.engine, "before_cursor_execute", note)
    store.store_many([timeout(f"{number}", body=bytes(FITS // 3)) for number in range(7)])

    assert sizes == [2, 2, 2, 1]
    assert store.count() == 7
    store.close()


def test_a_server_with_a_small_packet_gets_no_larger_packet(
    private_server: Callable[[str], PrivateServer],
) -> None:
    server = private_server("mysql")
    database = Database(mysql.create(server.url, "ours"))
    with database.begin() as connection:
        connection.execute(text("SET GLOBAL max_allowed_packet = 524288"))
    database.dispose()
    persistence = SqlPersistence(database)
    persistence.install()
    store = persistence.timeouts("e", SetClock())
    names = [f"{number}" for number in range(9)]

    with pytest.raises(MessageRejected):
        store.store_many([timeout("small"), timeout("large", body=b"\xff" * 270_000)])
    store.store_many([timeout("largest", body=b"\xff" * 256_000)])
    store.store_many([timeout(name, body=b"\xff" * 100_000) for name in names])

    assert [one.id for one in store.list(ALL)] == [*names, "largest"]
    persistence.close()
