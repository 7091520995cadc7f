"""MySQL takes a statement up to its packet: what is larger is a message's fault, and no outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql import converters
from sqlalchemy import Connection, event, text

from tests.persistence.making import SetClock, timeout
from tests.services import mysql
from tests.services.private import PrivateServer
from timeoutmgr.contracts import Timeout, TimeoutFilter, TimeoutStore, TransactionMode
from timeoutmgr.database import Database
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message import Message
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.delayed import SqlDelayedMessageStore
from timeoutmgr.persistence.sql.packets import _ROW, _STATEMENT, _size, in_statements, require_fit
from timeoutmgr.persistence.sql.rows import to_row

ALL = TimeoutFilter()
PACKET = 100_000
FITS = (PACKET - _STATEMENT - _ROW) // 2 - 100
"""A body with which a message surely fits: its headers have less than a hundred bytes."""


def a_connection(packet: int, dialect: str = "mysql") -> Connection:
    """A connection of which the packet is known."""
    known = {"timeoutmgr_packet": packet}
    return cast(Connection, SimpleNamespace(dialect=SimpleNamespace(name=dialect), info=known))


def a_row(size: int) -> dict[str, Any]:
    """A row that takes *size* bytes at most."""
    headers = len(to_row("e", timeout("a"))["headers"])
    return to_row("e", timeout("a", body=bytes((size - _ROW) // 2 - headers)))


words = st.text(max_size=255)


@given(
    ids=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=255),
    headers=st.dictionaries(words, words, max_size=5),
    body=st.binary(max_size=500),
)
def test_no_row_takes_more_than_is_counted_for_it(
    ids: str, headers: dict[str, str], body: bytes
) -> None:
    message = Message(id=ids, headers=headers, body=body, content_type=ids, content_encoding=ids)
    row = to_row(
        "e" * 255,
        Timeout(id=ids, due=2**62, destination=ids, saga_id=ids, created=2**62, message=message),
    )

    written = sum(len(converters.escape_item(value).encode()) + 1 for value in row.values())

    assert written <= _size(row)


@pytest.mark.parametrize(("more", "fits"), [(0, True), (2, False)])
def test_what_fits_a_packet_to_the_byte_fits(more: int, fits: bool) -> None:
    row, connection = a_row(PACKET - _STATEMENT + more), a_connection(PACKET)

    if fits:
        require_fit(connection, [row])
    else:
        with pytest.raises(MessageRejected, match=r"'m a' takes 100002 bytes .* is 100000; raise"):
            require_fit(connection, [row])


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], [0]),
        ([PACKET], [1]),
        ([PACKET, PACKET], [1, 1]),
        ([PACKET // 2, PACKET // 2, PACKET // 2], [2, 1]),
        ([PACKET // 2, PACKET // 2 + 2, PACKET // 2], [1, 1, 1]),
        ([PACKET // 4] * 9, [4, 4, 1]),
    ],
)
def test_a_batch_is_cut_where_a_packet_is_full(sizes: list[int], parts: list[int]) -> None:
    rows = [a_row(size) for size in sizes]

    cut = list(in_statements(a_connection(PACKET + _STATEMENT), rows))

    assert [len(part) for part in cut] == parts
    assert [row for part in cut for row in part] == rows


def test_others_than_mysql_have_no_packet() -> None:
    rows, connection = [a_row(PACKET)] * 3, a_connection(1, "postgresql")

    require_fit(connection, rows)

    assert list(in_statements(connection, rows)) == [rows]


# --- on a server


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
    # What a pump does with a batch of which one was rejected.
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


def test_a_server_with_a_small_packet_gets_no_larger_one(
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
