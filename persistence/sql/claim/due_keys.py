"""The keys of one endpoint's pending timeouts, read in the order of their due times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import BindParameter, Connection, Row, bindparam, func, select
from sqlalchemy.sql.selectable import Select

from timeoutmgr.contracts import Key
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.sql.conditions import before_key, from_key
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.locks import BY_KEY

_BY_KEY: Final = "; ".join(f"SET LOCAL {name} = {value}" for name, value in BY_KEY.items())

Pair: TypeAlias = tuple[BindParameter[Any], BindParameter[Any]]
Statement: TypeAlias = Select[tuple[Any, ...]]


class DueKeys:
    """Statements that are made once: they run for every chunk."""

    def __init__(self, context: StoreContext) -> None:
        timeouts = context.tables.timeouts
        due, id_ = timeouts.c.due, timeouts.c.id
        start: Pair = (bindparam("start_due"), bindparam("start_id"))
        end: Pair = (bindparam("end_due"), bindparam("end_id"))
        mine = (timeouts.c.endpoint == context.endpoint, timeouts.c.hidden_by.is_(None))
        seen = from_key(context, due, id_, start)
        now: BindParameter[Any] = bindparam("now")
        self._first: Final[Statement] = (
            select(due, id_, context.now_column)
            .where(*mine, seen)
            .order_by(due, id_)
            .limit(bindparam("limit"))
        )
        self._claimable: Final[Statement] = (
            select(due, id_)
            .where(*mine, seen, due <= now)
            .order_by(due, id_)
            .limit(bindparam("limit"))
        )
        # SQLite takes one upper bound to the index, the first; *end* has to be that, or of ten
        # thousand due at one instant all are read to find that none stands before *end*.
        is_due = due + 0 <= now if context.database.is_sqlite else due <= now
        self._claimable_before: Final[Statement] = (
            select(due, id_)
            .where(*mine, seen, before_key(context, due, id_, end), is_due)
            .order_by(due, id_)
            .limit(bindparam("limit"))
        )
        self._next_due: Final = select(func.min(due)).where(*mine, due > now)
        self._upcoming: Final = select(context.now_column, self._next_due.scalar_subquery())

    def first(self, connection: Connection, start: Key, limit: int) -> Sequence[Row[Any]]:
        """Return the first rows there are from *start* on: due, id, now."""
        return connection.execute(self._first, {**_start(start), "limit": limit}).all()

    def claimable(
        self, connection: Connection, start: Key, end: Key | None, until: Micros, limit: int
    ) -> list[Key]:
        """Return the first keys from *start* on and before *end* that are due by *until*."""
        if end is not None and end <= start:
            return []
        parameters: dict[str, Any] = {**_start(start), "now": until, "limit": limit}
        if end is None:
            rows = connection.execute(self._claimable, parameters)
        else:
            before = {"end_due": end.due, "end_id": end.id}
            rows = connection.execute(self._claimable_before, parameters | before)
        return list(map(Key._make, rows))

    def next_due(self, connection: Connection, until: Micros) -> Micros | None:
        """Return the first due time after *until*."""
        return _micros(connection.execute(self._next_due, {"now": until}).scalar_one())

    def upcoming(self, connection: Connection, behind: Micros) -> tuple[Micros, Micros | None]:
        """Return the database's clock, and the first due time after *behind*; one statement."""
        now, due = connection.execute(self._upcoming, {"now": behind}).one()
        return int(now), _micros(due)


def go_by_key(connection: Connection) -> None:
    """Have PostgreSQL read in the order of the key, by plans it has, in this transaction."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_BY_KEY)


def _micros(value: Any) -> Micros | None:
    return None if value is None else int(value)


def _start(key: Key) -> dict[str, Any]:
    return {"start_due": key.due, "start_id": key.id}
