"""Conditions on keys, in a form whose index use is the same on every database.

A comparison of pairs, ``(due, id) > (:due, :id)``, is not: MySQL reads the whole table for it.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, BindParameter, ColumnElement, Text, and_, any_, bindparam, or_, tuple_
from sqlalchemy.sql.elements import KeyedColumnElement

from timeoutmgr.contracts import Key

from .context import StoreContext

Col = KeyedColumnElement[Any]


def after(due: Col, id_: Col, from_due: Any, from_id: Any) -> ColumnElement[bool]:
    """Return the condition that the key is behind (*from_due*, *from_id*)."""
    return and_(due >= from_due, or_(due > from_due, id_ > from_id))


def from_key(context: StoreContext, due: Col, id_: Col, first: Any) -> ColumnElement[bool]:
    """Return the condition that the key is the pair *first*, or behind it.

    Where pairs can be compared by the index, a thousand that stand before it at the same instant
    are not read.
    """
    if context.locks_what_it_reads:
        return and_(due >= first[0], or_(due > first[0], id_ >= first[1]))
    return _on_partitions(context, due >= first[0], tuple_(due, id_) >= tuple_(*first))


def before_key(context: StoreContext, due: Col, id_: Col, end: Any) -> ColumnElement[bool]:
    """Return the condition that the key stands before the pair *end*."""
    if context.locks_what_it_reads:
        return and_(due <= end[0], or_(due < end[0], id_ < end[1]))
    return _on_partitions(context, due <= end[0], tuple_(due, id_) < tuple_(*end))


def _on_partitions(
    context: StoreContext, span: ColumnElement[bool], pairs: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return *pairs*, with the *span* of their due times where that is of use.

    It lets PostgreSQL leave out partitions. SQLite would go by it, and read all of one instant.
    """
    return and_(span, pairs) if context.database.dialect.name == "postgresql" else pairs


def within(due: Col, id_: Col, first: Any, last: Any) -> ColumnElement[bool]:
    """Return the condition that the key is in the closed interval of the two pairs."""
    return and_(
        due >= first[0],
        due <= last[0],
        or_(due > first[0], id_ >= first[1]),
        or_(due < last[0], id_ <= last[1]),
    )


def among(context: StoreContext, id_: ColumnElement[Any]) -> ColumnElement[bool]:
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
    first, last = min(keys), max(keys)
    return {
        "endpoint": context.endpoint,
        "lowest": first.due,
        "lowest_id": first.id,
        "highest": last.due,
        "highest_id": last.id,
        "ids": [key.id for key in keys],
    }


def keyed(context: StoreContext) -> ColumnElement[bool]:
    """Return the condition that a row's key is one of some keys, with false hits.

    It reads the interval of the keys in the order of the primary key, which is what a claim
    covers: of ten thousand that are due at one instant a hundred, and not all of them. An id that
    was moved within the interval is found too: the caller compares the key. MySQL would read, and
    lock, whatever its plan makes of an interval, and is given the pairs.
    """
    timeouts = context.tables.timeouts
    mine = timeouts.c.endpoint == bindparam("endpoint")
    pair = tuple_(timeouts.c.due, timeouts.c.id)
    if context.locks_what_it_reads:
        return and_(mine, pair.in_(bindparam("keys", expanding=True)))
    lowest: BindParameter[Any] = bindparam("lowest")
    highest: BindParameter[Any] = bindparam("highest")
    return and_(
        mine,
        _on_partitions(
            context, timeouts.c.due >= lowest, pair >= tuple_(lowest, bindparam("lowest_id"))
        ),
        _on_partitions(
            context, timeouts.c.due <= highest, pair <= tuple_(highest, bindparam("highest_id"))
        ),
        # No column any more, but an expression: an index on ids is not to be thought of.
        among(context, timeouts.c.id.concat("")),
    )
