"""Queries of stored timeouts: by id and by filter."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    union_all,
)

from timeoutmgr.contracts import HistoryEntry, Key, Timeout, TimeoutFilter, TimeoutState
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.routes import ids_of
from timeoutmgr.resilience.after_fork import cached_property

from .context import StoreContext
from .rows import from_placed_row
from .searches import end_of
from .walks import Conditions, IndexChoice, Walk, Walks

OF_AN_EVENT: Final = tuple(each.name for each in fields(HistoryEntry))
"""The columns of an event."""
_PLACE: Final = ("endpoint", "due", "id")
_TOGETHER: Final = 50
"""Names that one statement looks up, by two ids each: SQLite allows at most 500 joined queries."""
_ROWS_A_MATCH: Final = 4
"""Rows that a plan's statement reads per match that it may find."""
SORTED: Final = 5_000
"""Maximum timeouts that wait for a retry, or are parked, up to which a page sorts them."""


class TimeoutQueries:
    """Reads the timeouts of one endpoint, without locking or waiting for transactions."""

    _history = cached_property(lambda s: _history_of_one(s._context))

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._walks = Walks(context)
        timeouts, keys = context.tables.timeouts, context.tables.keys
        at = timeouts.c
        self._columns: Final = (at.due, at.id, at.original_due, at.version)
        self._find = (
            select(keys.c.state, timeouts)
            .select_from(keys)
            .outerjoin(timeouts, and_(*(timeouts.c[name] == keys.c[name] for name in _PLACE)))
            .where(keys.c.endpoint == context.endpoint, keys.c.id == bindparam("wanted"))
        )
        self._key_of = select(keys.c.due, keys.c.id).where(
            keys.c.endpoint == context.endpoint,
            keys.c.id == bindparam("wanted"),
            keys.c.state == TimeoutState.PENDING.value,
        )

    def find(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of an id; state and row are from the same moment."""
        with self._context.database.read() as connection:
            row = connection.execute(self._find, {"wanted": timeout_id}).first()
        if row is None:
            return None
        return TimeoutState(row.state), from_placed_row(row) if row.due is not None else None

    def history(self, timeout_id: str, *, limit: int = 100) -> list[HistoryEntry]:
        """Return the newest *limit* events of an id, in order from oldest to newest.

        They include a dispatch as long as the id's tombstone, which has its time, is kept.
        """
        given = {"wanted": timeout_id, "limit": limit}
        with self._context.database.read() as connection:
            rows = connection.execute(self._history, given).all()
        return [HistoryEntry(**row._mapping) for row in reversed(rows)]

    def key_of(self, timeout_id: str) -> Key | None:
        """Return the key of a pending timeout."""
        with self._context.database.read() as connection:
            row = connection.execute(self._key_of, {"wanted": timeout_id}).first()
        return Key(*row) if row else None

    def page(self, which: TimeoutFilter, limit: int, behind: Key | None) -> list[Timeout]:
        """Return a page in the order of keys, after the key *behind*."""
        timeouts = self._context.tables.timeouts
        found: list[Timeout] = []
        with self._context.reading() as connection:
            for walk in self._walks.of(which, self._choice(connection, which), behind):
                page = select(timeouts).where(*walk.matching).order_by(*walk.order).limit(limit)
                found += [from_placed_row(row) for row in connection.execute(page)]
        return sorted(found, key=lambda timeout: _in_order(timeout.key))[:limit]

    def key_pages(
        self, which: TimeoutFilter | Sequence[str], more: Sequence[ColumnElement[bool]], size: int
    ) -> Iterator[Sequence[Row[Any]]]:
        """Yield due time, id and version of all matches that meet *more*, by due time and id.

        Each page is a separate read, so that a plan of millions keeps no database snapshot.
        """
        if not isinstance(which, TimeoutFilter):
            yield self._page_of_ids(list(dict.fromkeys(which)), more)
            return
        with self._context.reading() as connection:
            choice = self._choice(connection, which)
        # The second walk, if there are two, follows the first in the order of keys.
        for number in range(len(self._walks.of(which, choice))):
            behind: Key | None = None
            while True:
                walk = self._walks.of(which, choice, behind)[number]
                page, end = self._page_of(walk, more, size)
                yield page
                if len(page) == size:
                    end = Key(page[-1].due, page[-1].id)
                if end is None:
                    break
                behind = end

    def _choice(self, connection: Connection, which: TimeoutFilter) -> IndexChoice:
        """Return how to walk to all of *which*, without sorting many waiting timeouts per page."""
        if which.due_before is None:
            return IndexChoice()
        waiting = self._walks.waiting_before(which.due_before)
        return IndexChoice(waiting_apart=self._number(connection, waiting, SORTED) <= SORTED)

    def _number(self, connection: Connection, conditions: Conditions, most: int) -> int:
        """Return how many rows meet *conditions*, which an index serves, up to *most* + 1."""
        some = select(self._context.tables.timeouts.c.due).where(*conditions).limit(most + 1)
        counted = select(func.count()).select_from(some.subquery())
        return int(connection.execute(counted).scalar_one())

    def _page_of(
        self, walk: Walk, more: Sequence[ColumnElement[bool]], size: int
    ) -> tuple[Sequence[Row[Any]], Key | None]:
        """Return at most *size* matches from a few times as many rows, and the last row's key."""
        with self._context.reading() as connection:
            end = end_of(connection, walk, _ROWS_A_MATCH * size)
            part = walk if end is None else walk.until(end)
            found: Select[Any] = select(*self._columns).where(*part.matching, *more)
            return connection.execute(found.order_by(*part.order).limit(size)).all(), end

    def _page_of_ids(
        self, names: Sequence[str], more: Sequence[ColumnElement[bool]]
    ) -> Sequence[Row[Any]]:
        found: dict[str, Row[Any]] = {}
        with self._context.reading() as connection:
            for start in range(0, len(names), _TOGETHER):
                pairs = [
                    ids_of(self._context.endpoint, name)
                    for name in names[start : start + _TOGETHER]
                ]
                each = [self._of_id(one, more) for one in dict.fromkeys(chain(*pairs))]
                # Key and row are from the same moment: no timeout that moves is missed.
                rows = {row.named: row for row in connection.execute(union_all(*each))}
                known = (next((one for one in pair if one in rows), None) for pair in pairs)
                pending = (rows[one] for one in known if one is not None)
                found |= {row.id: row for row in pending if row.id is not None}
        return sorted(found.values(), key=lambda row: _in_order(Key(row.due, row.id)))

    def _of_id(self, one: str, more: Sequence[ColumnElement[bool]]) -> Select[Any]:
        """Return the statement that finds an id by primary keys, and its row if it meets *more*.

        With a list of ids in one condition, PostgreSQL may read a whole endpoint.
        """
        timeouts, keys = self._context.tables.timeouts, self._context.tables.keys
        place = [timeouts.c[name] == keys.c[name] for name in _PLACE]
        return (
            select(keys.c.id.label("named"), *self._columns)
            .select_from(keys)
            .outerjoin(timeouts, and_(*place, *more))
            .where(keys.c.endpoint == self._context.endpoint, keys.c.id == one)
        )

    def count(self, which: TimeoutFilter) -> int:
        """Return how many match."""
        timeouts = self._context.tables.timeouts
        with self._context.database.read() as connection:
            return sum(
                connection.execute(
                    select(func.count()).select_from(timeouts).where(*walk.matching)
                ).scalar_one()
                for walk in self._walks.of(which, IndexChoice())
            )


def _in_order(key: Key) -> tuple[Micros, bytes]:
    return key.due, key.id.encode()  # as every database compares ids


def _history_of_one(context: StoreContext) -> Select[Any]:
    """Return the statement for the newest events of one id.

    Revision 0007 says which events an index on ids has. The other outcomes are dispatches: the
    index on instants has them at the instant of their tombstone. Without statistics, a plan may
    walk the whole endpoint, or the whole table from its end: the expressions prevent the use of
    these indexes.
    """
    keys, events = context.tables.keys.c, context.tables.history.c
    is_wanted = events.id == bindparam("wanted")
    dispatched: ColumnElement[Any] = literal_column("'dispatched'")  # as in the index
    if context.database.dialect.name == "mssql":  # a text would be compared by collation
        dispatched = literal(TimeoutState.DISPATCHED.value, events.event.type)
    is_indexed = events.run_id.is_not(None) | (events.event != dispatched)
    closed_at = (
        select(keys.closed_at)
        .where(keys.endpoint == context.endpoint, keys.id == bindparam("wanted"))
        .scalar_subquery()
    )
    columns = [events[name] for name in (*OF_AN_EVENT, "sequence")]
    indexed = select(*columns).where(
        is_wanted, is_indexed, events.endpoint.concat("") == context.endpoint
    )
    dispatches = select(*columns).where(
        *(events.endpoint == context.endpoint, events.at == closed_at),
        *(events.id.concat("") == bindparam("wanted"), ~is_indexed),
    )
    found = indexed.union_all(dispatches).subquery()
    return (
        select(*(found.c[name] for name in OF_AN_EVENT))
        .order_by(found.c.sequence.desc())
        .limit(bindparam("limit", type_=Integer))
    )
