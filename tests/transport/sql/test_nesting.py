"""A row that a stranger nests too deep stops neither our consumer nor kombu's."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

import kombu as kombu_package
import pytest
from sqlalchemy import insert

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.transport.sql import SqlTransport, register
from timeoutmgr.transport.sql.tables import tables

kombu: Any = kombu_package  # its annotations are too few to check against
register()

DEPTHS: Final = [1, 100, *range(900, 1000), 5_000, 100_000]
"""Readable depths, an unreadable depth, and depths that some versions of Python can read."""


def nested(depth: int) -> str:
    return f'{{"a": {"[" * depth}{"]" * depth}}}'


def put(transport: SqlTransport, prefix: str, rows: list[dict[str, Any]]) -> None:
    whole = {
        "queue": "q",
        "message_id": "1",
        "headers": "{}",
        "body": b"",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "enqueued": 0,
        "properties": None,
    }
    table = tables(None, prefix).messages
    with transport.database.begin() as connection:
        connection.execute(insert(table), [{**whole, **row} for row in rows])


def test_headers_of_any_depth_are_received(transport: SqlTransport, prefix: str) -> None:
    put(transport, prefix, [{"message_id": str(n), "headers": nested(n)} for n in DEPTHS])

    received = transport.session().receiver("q", prefetch=0).receive(len(DEPTHS), 0)

    assert [one.message.id for one in received] == [str(n) for n in DEPTHS]
    assert received[0].message.headers == {"a": "[]"}
    assert [one.defect for one in received[:2]] == [None, None]
    assert "nested too deep" in str(received[-1].defect)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("headers", nested(100_000)),
        ("headers", "{"),
        ("headers", "[]"),
        ("headers", '{"a": {"__type__": "uuid", "__value__": 5}}'),
        ("properties", nested(100_000)),
        ("properties", "[]"),
        ("properties", '{"delivery_info": 5}'),
    ],
)
def test_kombu_receives_a_message_without_its_unreadable_headers(
    transport: SqlTransport, prefix: str, url: str, column: str, text: str
) -> None:
    put(transport, prefix, [{"body": b"strange", column: text}, {"body": b"behind"}])

    with kombu_connection(url, prefix) as connection:
        channel = connection.default_channel
        bodies = []
        while (message := channel.basic_get("q")) is not None:
            bodies.append(bytes(message.body))
            message.ack()

    assert bodies == [b"strange", b"behind"]


def test_kombu_gets_an_error_for_headers_that_are_nested_too_deep(
    transport: SqlTransport, prefix: str, url: str
) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with (
        kombu_connection(url, prefix) as connection,
        closing(connection.Producer()) as producer,
        pytest.raises(InvalidMessage, match="nested too deep"),
    ):
        producer.publish("x", routing_key="q", headers={"a": deep})

    assert transport.session().count("q") == 0


def kombu_connection(url: str, prefix: str) -> Any:
    return kombu.Connection(f"timeoutmgr+{url}", transport_options={"prefix": prefix})
