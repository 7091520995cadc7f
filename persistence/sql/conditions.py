"""Conditions on keys, in a form whose index use is the same on every database.

A comparison of pairs, ``(due, id) > (:due, :id)``, is not: MySQL reads the whole table for it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Executable,
    and_,
    bindparam,
    func,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.sql.elements import KeyedColumnElement

from timeoutmgr.contracts import Key
from timeoutmgr.database.arrays import TextArray

from .context import StoreContext

Col = KeyedColumnElement[Any]


def after(due: Col, id_: Col, from_due: Any, from_id: Any) -> ColumnElement[bool]:
    """Return the condition that the key is behind (*from_due*, *from_id*)."""
    return and_(due >= from_due, or_(due > from_due, id_ > from_id))


def up_to(due: Col, id_: Col, last_due: Any, last_id: Any) -> ColumnElement[bool]:
    """Return the condition that the key is (*last_due*, *last_id*), or before it."""
    return and_(due <= last_due, or_(due < last_due, id_ <= last_id))


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
    """Return the condition that the id is among the parameter ``ids``.

    PostgreSQL gets the ids as one array, so that its plan serves any number of ids. It compares a
    row with each element of an array in turn, but makes a hash of a subquery. ``IS TRUE`` keeps it
    from a join with that subquery.
    """
    if context.database.dialect.name == "postgresql":
        return id_.in_(select(func.unnest(bindparam("ids", type_=TextArray())))).is_(true())
    return id_.in_(bindparam("ids", expanding=True))


class OnKeys:
    """A statement about some keys, as *make* makes it of the condition that a row is of them."""

    def __init__(
        self, context: StoreContext, make: Callable[[ColumnElement[bool]], Executable]
    ) -> None:
        self._context = context
        self._interval: Final = make(_keyed(context))
        # PostgreSQL does not end a search within one instant where a comparison of pairs would.
        self._instant: Final = (
            make(_of_one_instant(context))
            if context.database.dialect.name == "postgresql"
            else self._interval
        )

    def of(self, keys: Sequence[Key], **others: Any) -> tuple[Executable, dict[str, Any]]:
        """Return the statement for *keys*, at least one key, and its parameters."""
        parameters = _these(self._context, keys) | others
        one_instant = parameters.get("lowest") == parameters.get("highest")
        return (self._instant if one_instant else self._interval), parameters


def _these(context: StoreContext, keys: Sequence[Key]) -> dict[str, Any]:
    """Return the parameters of :func:`_keyed` for *keys*, which must not be empty."""
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


def _keyed(context: StoreContext) -> ColumnElement[bool]:
    """Return the condition that a row's key is among some keys, with false hits.

    It reads the interval of the keys in the order of the primary key, which a claim covers: of ten
    thousand that are due at one instant a hundred, and not all of them. An id that was moved within
    the interval is found too: the caller compares the key. MySQL would read, and lock, the rows
    that its plan makes of an interval, and gets the pairs.
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


def _of_one_instant(context: StoreContext) -> ColumnElement[bool]:
    """Return :func:`_keyed` for keys of one due time, as an index finds their first and last."""
    timeouts = context.tables.timeouts
    return and_(
        timeouts.c.endpoint == bindparam("endpoint"),
        timeouts.c.due == bindparam("lowest"),
        timeouts.c.id >= bindparam("lowest_id"),
        timeouts.c.id <= bindparam("highest_id"),
        among(context, timeouts.c.id.concat("")),
    )
