"""Conditions on keys, in a form whose index use is the same on every database.

A comparison of pairs, ``(due, id) > (:due, :id)``, is not: MySQL reads the whole table for it.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Text, and_, any_, bindparam, or_, tuple_
from sqlalchemy.sql.elements import KeyedColumnElement

from timeoutmgr.contracts import Key

from .context import StoreContext

Col = KeyedColumnElement[Any]


def after(due: Col, id_: Col, from_due: Any, from_id: Any) -> ColumnElement[bool]:
    """Return the condition that the key is behind (*from_due*, *from_id*)."""
    return and_(due >= from_due, or_(due > from_due, id_ > from_id))


def within(due: Col, id_: Col, first: Any, last: Any) -> ColumnElement[bool]:
    """Return the condition that the key is in the closed interval of the two pairs."""
    return and_(
        due >= first[0],
        due <= last[0],
        or_(due > first[0], id_ >= first[1]),
        or_(due < last[0], id_ <= last[1]),
    )


def outside(due: Col, id_: Col, first: Any, last: Any) -> ColumnElement[bool]:
    """Return the condition that the key is not in the closed interval of the two pairs."""
    return or_(
        due < first[0],
        and_(due == first[0], id_ < first[1]),
        due > last[0],
        and_(due == last[0], id_ > last[1]),
    )


def among(context: StoreContext, id_: Col) -> ColumnElement[bool]:
    """Return the condition that the id is one of the parameter ``ids``.

    PostgreSQL gets them as one array, so that its plan serves any number of them.
    """
    if context.database.dialect.name == "postgresql":
        return id_ == any_(bindparam("ids", type_=ARRAY(Text)))
    return id_.in_(bindparam("ids", expanding=True))


def these(context: StoreContext, keys: Sequence[Key]) -> dict[str, Any]:
    """Return the parameters of :func:`keyed` for *keys*, which must not be empty."""
    if context.locks_what_it_reads:
        return {"endpoint": context.endpoint, "keys": [tuple(key) for key in keys]}
    return {
        "endpoint": context.endpoint,
        "lowest": min(key.due for key in keys),
        "highest": max(key.due for key in keys),
        "ids": [key.id for key in keys],
    }


def keyed(context: StoreContext) -> ColumnElement[bool]:
    """Return the condition that a row's key is one of some keys, with false hits.

    A range of due with the ids lets PostgreSQL leave out partitions. An id that was moved within
    the range is found too: the caller compares the key. MySQL would lock the whole range for it,
    and is given the pairs.
    """
    timeouts = context.tables.timeouts
    mine = timeouts.c.endpoint == bindparam("endpoint")
    if context.locks_what_it_reads:
        pair = tuple_(timeouts.c.due, timeouts.c.id)
        return and_(mine, pair.in_(bindparam("keys", expanding=True)))
    return and_(
        mine,
        timeouts.c.due >= bindparam("lowest"),
        timeouts.c.due <= bindparam("highest"),
        among(context, timeouts.c.id),
    )
