"""Rows of labels: one per label of a pending timeout, at the timeout's key.

A header of the message has the labels. So each change of a row of ``timeouts``, with its headers at
hand, knows the whole primary key of each row of labels, and whether there are any.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, bindparam, case, delete, exists, update
from sqlalchemy.sql import FromClause

from timeoutmgr.contracts import Key, Timeout
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.labels import labels_of
from timeoutmgr.message.message import Message

from .batch_writes import insert_missing
from .context import StoreContext
from .rows import to_json

Headers = tuple[Key, str | None]
"""The key of a row of ``timeouts``, and its headers as they are stored; None without labels."""
_SIGN: Final = f'"{headers.LABELS}"'


class LabelRows:
    """Writes the labels of one endpoint's timeouts, each within a transaction.

    Each method takes timeouts as keys and stored headers, and needs no statement for timeouts
    without labels.
    """

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        table = self._table = context.tables.labels
        one = [
            table.c[name] == bindparam(f"{name}_") for name in ("endpoint", "label", "due", "id")
        ]
        self._remove = delete(table).where(*one)
        self._move = update(table).where(*one).values(due=bindparam("to_"))

    def insert(self, connection: Connection, timeouts: Iterable[Headers]) -> None:
        """Insert the labels of *timeouts*."""
        rows = self._rows(timeouts)
        if rows:
            insert_missing(connection, self._table, rows)

    def remove(self, connection: Connection, timeouts: Iterable[Headers]) -> None:
        """Remove the labels of *timeouts* that end or leave."""
        rows = self._rows(timeouts)
        if rows:
            execute_many(connection, self._remove, _keyed(rows))

    def move(self, connection: Connection, timeouts: Sequence[tuple[Headers, Micros]]) -> None:
        """Move the labels of *timeouts* from their old keys to the due times of their new keys."""
        moved = [{**row, "to_": to} for one, to in timeouts for row in _keyed(self._rows([one]))]
        if moved:
            execute_many(connection, self._move, moved)

    def _rows(self, timeouts: Iterable[Headers]) -> list[dict[str, Any]]:
        endpoint = self._context.endpoint
        return [
            {"endpoint": endpoint, "label": label, "due": key.due, "id": key.id}
            for key, text in timeouts
            if text is not None and _SIGN in text
            for label in labels_of(Message(id="stored", headers=json.loads(text)))
        ]


def _keyed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{f"{name}_": value for name, value in row.items()} for row in rows]


def of_timeouts(timeouts: Iterable[Timeout]) -> list[Headers]:
    """Return the labelled members of *timeouts* in the form that LabelRows takes."""
    found = ((one.key, dict(one.message.headers)) for one in timeouts)
    return [
        (key, to_json({headers.LABELS: given[headers.LABELS]}))
        for key, given in found
        if headers.LABELS in given
    ]


def is_labelled(timeouts: FromClause) -> ColumnElement[bool]:
    """Return the condition that a row of *timeouts* has labels; it has false hits."""
    return timeouts.c.headers.contains(_SIGN)


def headers_of_labelled(timeouts: FromClause) -> ColumnElement[str | None]:
    """Return the headers of a row of *timeouts* with labels; NULL for other rows."""
    return case((is_labelled(timeouts), timeouts.c.headers)).label("labelled")


def of_label(context: StoreContext, label: str) -> list[ColumnElement[bool]]:
    """Return the conditions that a row of ``timeouts`` has *label*.

    The rows of the labels table are in the order of keys: a search that is ordered and bounded by
    its columns reads no other rows.
    """
    return _joined(context, context.tables.labels, label)


def has_labels(context: StoreContext, labels: Sequence[str]) -> list[ColumnElement[bool]]:
    """Return the conditions, tested per row of ``timeouts``, that it has all *labels*."""
    own = context.tables.labels
    tables = [own.alias(f"label{place}") for place in range(len(labels))]
    pairs = zip(tables, labels, strict=True)
    return [exists().where(*_joined(context, table, label)) for table, label in pairs]


def _joined(context: StoreContext, table: FromClause, label: str) -> list[ColumnElement[bool]]:
    timeouts = context.tables.timeouts
    return [
        table.c.endpoint == context.endpoint,
        table.c.label == label,
        table.c.due == timeouts.c.due,
        table.c.id == timeouts.c.id,
    ]
