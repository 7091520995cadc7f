"""MySQL limits a statement to its packet: a larger message is its own fault, not an outage."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql import converters
from sqlalchemy import Connection

from tests.persistence.making import timeout
from timeoutmgr.contracts import Timeout
from timeoutmgr.database.batch_inserts import _ROW, _STATEMENT, _size, in_statements, misfit
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.persistence.sql.rows import to_row
from timeoutmgr.transport.sql import tables

PACKET = 100_000


def a_connection(packet: int, dialect: str = "mysql") -> Connection:
    """A connection of which the packet is known."""
    known = {"timeoutmgr_packet": packet}
    return cast(Connection, SimpleNamespace(dialect=SimpleNamespace(name=dialect), info=known))


def a_row(size: int) -> dict[str, Any]:
    """A row that takes *size* bytes at most."""
    headers = len(to_row("e", timeout("a"))["headers"])
    return to_row("e", timeout("a", body=bytes((size - _ROW) // 2 - headers)))


def written(row: dict[str, Any]) -> int:
    """Return how many bytes the driver writes for *row*."""
    return sum(len(converters.escape_item(value).encode()) + 1 for value in row.values())


words = st.text(max_size=255)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=64)


@given(
    ids=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=255),
    headers=st.dictionaries(words, words, max_size=5),
    body=st.binary(max_size=500),
)
def test_no_row_of_a_store_takes_more_than_is_counted_for_it(
    ids: str, headers: dict[str, str], body: bytes
) -> None:
    message = Message(id=ids, headers=headers, body=body, content_type=ids, content_encoding=ids)
    row = to_row(
        "e" * 255,
        Timeout(id=ids, due=2**62, destination=ids, saga_id=ids, created=2**62, message=message),
    )

    assert written(row) <= _size(row)


@given(
    text=texts,
    headers=st.dictionaries(words, words, max_size=5),
    properties=st.none() | st.dictionaries(words, words, max_size=5).map(json.dumps),
    body=st.binary(max_size=500),
)
def test_no_row_of_a_queue_takes_more_than_is_counted_for_it(
    text: str, headers: dict[str, str], properties: str | None, body: bytes
) -> None:
    message = Message(id=text, headers=headers, body=body, content_type=text, content_encoding=text)
    row = tables.to_row(Outgoing("q" * 255, message), 2**62) | {"properties": properties}

    assert written(row) <= _size(row)


@pytest.mark.parametrize(("more", "fits"), [(0, True), (2, False)])
def test_a_statement_may_fill_its_packet_to_the_byte(more: int, fits: bool) -> None:
    row, connection = a_row(PACKET - _STATEMENT + more), a_connection(PACKET)

    reason = misfit(connection, [row])

    assert (reason is None) is fits
    assert fits or "'m a' takes 100002 bytes to write" in str(reason)
    assert fits or "max_allowed_packet is 100000; raise that" in str(reason)


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


def test_only_mysql_has_a_packet() -> None:
    rows, connection = [a_row(PACKET)] * 3, a_connection(1, "postgresql")

    assert misfit(connection, rows) is None
    assert list(in_statements(connection, rows)) == [rows]
