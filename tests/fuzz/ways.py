"""Ways into a queue past this package's own door: a stranger's AMQP client, a stranger's INSERT."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import amqp
from hypothesis import strategies as st
from sqlalchemy import insert

from tests.fuzz.letters import AMQP_VALUES, JSON_VALUES, TEXT, Manner, RawMessage
from timeoutmgr.database import Database
from timeoutmgr.transport.sql.tables import tables

RAW_HEADERS: Final = "raw_headers"
"""A property of a letter to the SQL queue: the text of the column, in place of its headers."""


class Way(Protocol):
    """How letters get into queues."""

    def manner(self, bystander: str) -> Manner:
        """Return the kinds of hostile message; *bystander* is a queue that copies may go to."""
        ...

    def put(self, queue: str, letters: Iterable[RawMessage]) -> None:
        """Put *letters* into *queue* as they are."""
        ...


class _Doubled(dict[Any, Any]):
    """A table whose names may be doubled, as py-amqp would write no other."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = list(pairs)

    def items(self) -> Any:
        return self._pairs


class Amqp:
    """py-amqp, which writes any bytes."""

    def __init__(self, channel: amqp.Channel) -> None:
        self._channel = channel

    def manner(self, bystander: str) -> Manner:
        short = TEXT.filter(lambda text: len(text.encode("utf-8", "surrogatepass")) < 250)
        shorts = short | st.binary(max_size=40)
        return Manner(
            value=AMQP_VALUES | TEXT,
            longest_name=255,
            properties=st.fixed_dictionaries(
                {},
                optional={
                    **dict.fromkeys(
                        ("content_type", "content_encoding", "correlation_id", "reply_to", "type"),
                        shorts,
                    ),
                    "app_id": shorts,
                    "message_id": short.filter(
                        lambda text: len(text.encode("utf-8", "surrogatepass")) < 240
                    ),
                    "priority": st.integers(0, 255),
                    "delivery_mode": st.sampled_from([1, 2]),
                    "expiration": st.just("3600000"),
                },
            ),
            brokers=st.sampled_from(
                [
                    ("CC", [bystander]),
                    ("BCC", [bystander]),
                    ("x-death", [{"queue": bystander, "count": 2**40, "reason": "rejected"}]),
                    ("x-delivery-count", 2**40),
                    ("X-Delay", 2**40),
                    ("compression", "application/x-gzip"),
                ]
            ),
        )

    def put(self, queue: str, letters: Iterable[RawMessage]) -> None:
        for raw in letters:
            message = amqp.Message(
                raw.body, application_headers=_Doubled(raw.headers), **raw.properties
            )
            self._channel.basic_publish(message, routing_key=queue)
        self._channel.queue_declare(queue, passive=True)  # a round trip: all of it is there


@contextmanager
def amqp_way(url: str) -> Iterator[Amqp]:
    """Open a connection to the broker of *url*."""
    parts = urlsplit(url)
    with amqp.Connection(
        f"{parts.hostname}:{parts.port or 5672}",
        userid=parts.username,
        password=parts.password,
        virtual_host=unquote(parts.path[1:]),
    ) as connection:
        yield Amqp(connection.channel())


class Insert:
    """Rows of the SQL queue's table, with any content."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = tables(None, "timeoutmgr_").messages

    def manner(self, bystander: str) -> Manner:
        text = TEXT.filter(lambda text: text.isascii() or "\ud800" not in text)
        return Manner(
            value=JSON_VALUES | TEXT,
            longest_name=300,
            properties=st.fixed_dictionaries(
                {},
                optional={
                    "message_id": text,
                    "content_type": text,
                    "content_encoding": text,
                    RAW_HEADERS: st.sampled_from(
                        [
                            "",
                            "{",
                            "[]",
                            "5",
                            "null",
                            '"x"',
                            '{"a": NaN}',
                            '{"a": 1e400}',
                            "{'a': 1}",
                        ]
                    ),
                },
            ),
            brokers=st.sampled_from([("CC", [bystander]), ("x-death", [1]), ("compression", "x")]),
        )

    def put(self, queue: str, letters: Iterable[RawMessage]) -> None:
        rows = [self._row(queue, number, raw) for number, raw in enumerate(letters)]
        self._database.run(lambda connection: connection.execute(insert(self._table), rows))

    def _row(self, queue: str, number: int, raw: RawMessage) -> dict[str, Any]:
        given = raw.properties
        spelt = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in raw.headers)
        return {
            "queue": queue,
            "message_id": given.get("message_id", f"{queue} {number}"),
            "headers": given.get(RAW_HEADERS, f"{{{', '.join(spelt)}}}"),
            "body": raw.body,
            "content_type": given.get("content_type", "application/json"),
            "content_encoding": given.get("content_encoding", "utf-8"),
            "enqueued": 0,
        }
