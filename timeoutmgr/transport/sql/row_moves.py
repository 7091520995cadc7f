"""Messages that PostgreSQL puts into queues by itself, from rows of its own.

They become the rows that ``envelopes.to_row`` would make of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Insert,
    Text,
    and_,
    case,
    cast,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
)
from sqlalchemy.sql import FromClause

from timeoutmgr.contracts import Transaction
from timeoutmgr.database import as_connection
from timeoutmgr.message.headers import BROKER_HEADERS, DISPATCHED_AT, RELATED_TO_TIMEOUT
from timeoutmgr.transport.sql.queues import SqlQueues
from timeoutmgr.transport.sql.tables import CONTENT_ENCODING_LENGTH, QueueTables

_KEPT_OUT: Final = (*sorted(BROKER_HEADERS), DISPATCHED_AT, RELATED_TO_TIMEOUT)


class PostgreSQLMessageRows:
    """The message table, as ``database.row_moves.MessageRows`` says."""

    def __init__(self, tables: QueueTables, queues: SqlQueues) -> None:
        self._tables = tables
        self._queues = queues

    def takes(self, message: FromClause) -> ColumnElement[bool]:
        """Return the condition that a row needs no change but the headers that are added.

        Names are searched for in the JSON's text. Inside of a value a quote has a backslash
        before it, so that none is found there; were one found, its message would only be sent.
        """
        names = "|".join(name.replace(".", r"\.") for name in _KEPT_OUT)
        return and_(
            message.c.destination.in_(select(self._tables.queues.c.name)),
            message.c.message_id != "",
            func.char_length(message.c.content_encoding) <= CONTENT_ENCODING_LENGTH,
            message.c.headers.like("{%}"),
            message.c.headers.op("!~*")(f'"({names})":'),
        )

    def insert(
        self,
        messages: FromClause,
        added: Mapping[str, ColumnElement[str]],
        at: ColumnElement[int],
        *order: ColumnElement[Any],
    ) -> Insert:
        """Return the insert; the numbers that make up a queue's order are drawn in *order*."""
        source = messages.c
        columns: dict[str, ColumnElement[Any]] = {
            "queue": source.destination,
            "message_id": source.message_id,
            "headers": _with(source.headers, added),
            "body": source.body,
            "content_type": source.content_type,
            "content_encoding": source.content_encoding,
            "enqueued": at,
            "available_at": literal_column("0"),
            "properties": null(),
        }
        rows = select(*columns.values()).order_by(*order)
        return insert(self._tables.messages).from_select(list(columns), rows)

    def announce(self, queues: Collection[str], transaction: Transaction) -> None:
        """Wake the receivers of *queues*, here and in other processes, after the commit."""
        self._queues.announce(set(queues), as_connection(transaction))


def _with(headers: ColumnElement[str], added: Mapping[str, ColumnElement[str]]) -> Any:
    """Return the JSON object *headers* with *added* at its end."""
    text: Any = func.left(headers, -1)
    comma: Any = case((headers == "{}", literal("")), else_=literal(","))
    for name, value in added.items():
        spelled = cast(func.to_json(cast(value, Text)), Text)
        text = text.concat(comma).concat(literal(f'"{name}":')).concat(spelled)
        comma = literal(",")
    return text.concat(literal("}"))
