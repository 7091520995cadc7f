"""Queries of stored timeouts: by id, by filter, and as numbers."""

from dataclasses import fields, replace
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    case,
    func,
    literal_column,
    select,
)

from timeoutmgr.contracts import (
    Count,
    HistoryEntry,
    Key,
    Page,
    StoreStatistics,
    Timeout,
    TimeoutFilter,
    TimeoutState,
)
from timeoutmgr.contracts.reports import COUNTED, DAY, LOOKED_AT, RECENT, percentile
from timeoutmgr.message.instants import Micros

from . import rows
from .context import StoreContext
from .rows import from_placed_row, up_to

_OF_AN_EVENT: Final = tuple(each.name for each in fields(HistoryEntry))


class TimeoutQueries:
    """Reads the timeouts of one endpoint; it locks nothing and waits for no transaction."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        timeouts, keys = context.tables.timeouts, context.tables.keys
        self._find = (
            select(keys.c.state, timeouts)
            .select_from(keys)
            .outerjoin(
                timeouts,
                (timeouts.c.endpoint == keys.c.endpoint)
                & (timeouts.c.due == keys.c.due)
                & (timeouts.c.id == keys.c.id),
            )
            .where(keys.c.endpoint == context.endpoint, keys.c.id == bindparam("wanted"))
        )
        self._key_of = select(keys.c.due, keys.c.id).where(
            keys.c.endpoint == context.endpoint,
            keys.c.id == bindparam("wanted"),
            keys.c.state == TimeoutState.PENDING.value,
        )
        self._history = _history_of_one(context)

    def find(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of an id; state and row are of one moment."""
        with self._context.database.read() as connection:
            row = connection.execute(self._find, {"wanted": timeout_id}).first()
        if row is None:
            return None
        return TimeoutState(row.state), from_placed_row(row) if row.due is not None else None

    def history(self, timeout_id: str, *, limit: int = 100) -> list[HistoryEntry]:
        """Return the newest *limit* events of an id, oldest first.

        A dispatch is among them as long as the id's tombstone is kept, which says when it was.
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
        """Return a page in the order of keys, behind the key *behind*."""
        found: list[Timeout] = []
        with self._context.database.read() as connection:
            for matching in self._matching(which, behind):
                found += self._first(connection, matching, limit)
        return sorted(found, key=lambda timeout: _in_order(timeout.key))[:limit]

    def list_in_bounds(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> Page:
        """Return a page as ``page`` does; no more rows are read than LOOKED_AT."""
        if _has_index(which):
            return Page(self.page(which, limit, after))
        destination = self._context.tables.timeouts.c.destination == which.destination
        found: list[Timeout] = []
        with self._context.database.read() as connection:
            # In the order of keys: the second list, if there are two, begins behind the first.
            for matching in self._matching(replace(which, destination=None), after):
                # Before the rows: rows that are dispatched meanwhile must not move the end on.
                end = self._end_of_search(connection, matching)
                within = [*matching, destination, *self._up_to(end)]
                found += self._first(connection, within, limit - len(found))
                if len(found) == limit:
                    return Page(found)
                if end is not None:
                    return Page(found, searched_to=end)
        return Page(found)

    def _first(
        self, connection: Connection, matching: list[ColumnElement[bool]], limit: int
    ) -> list[Timeout]:
        timeouts = self._context.tables.timeouts
        statement = select(timeouts).where(*matching).order_by(timeouts.c.due, timeouts.c.id)
        return [from_placed_row(row) for row in connection.execute(statement.limit(limit))]

    def _end_of_search(
        self, connection: Connection, matching: list[ColumnElement[bool]]
    ) -> Key | None:
        """Return the key of the last row to look at; None if there are no rows behind it."""
        timeouts = self._context.tables.timeouts
        in_order = (
            select(timeouts.c.due, timeouts.c.id)
            .where(*matching)
            .order_by(timeouts.c.due, timeouts.c.id)
        )
        last = connection.execute(in_order.offset(LOOKED_AT - 1).limit(2)).all()
        return Key(*last[0]) if len(last) > 1 else None

    def _up_to(self, end: Key | None) -> list[ColumnElement[bool]]:
        timeouts = self._context.tables.timeouts
        return [] if end is None else [up_to(timeouts.c.due, timeouts.c.id, end.due, end.id)]

    def count(self, which: TimeoutFilter) -> int:
        """Return how many match."""
        timeouts = self._context.tables.timeouts
        with self._context.database.read() as connection:
            return sum(
                connection.execute(
                    select(func.count()).select_from(timeouts).where(*matching)
                ).scalar_one()
                for matching in self._matching(which)
            )

    def count_in_bounds(self, which: TimeoutFilter) -> Count:
        """Return how many match; no more rows are read than the bounds allow."""
        with self._context.database.read() as connection:
            return self._count_in_bounds(connection, which)

    def _count_in_bounds(self, connection: Connection, which: TimeoutFilter) -> Count:
        if _has_index(which):
            counts = [self._counted(connection, each) for each in self._matching(which)]
        else:
            others = self._matching(replace(which, destination=None))
            counts = [self._sent_to(connection, each, which.destination) for each in others]
        number = sum(count.number for count in counts)
        exact = number <= COUNTED and all(count.exact for count in counts)
        return Count(min(number, COUNTED), exact)

    def _counted(self, connection: Connection, matching: list[ColumnElement[bool]]) -> Count:
        timeouts = self._context.tables.timeouts
        some = select(timeouts.c.id).where(*matching).limit(COUNTED + 1).subquery()
        counted = select(func.count()).select_from(some)
        return _up_to(COUNTED, connection.execute(counted).scalar_one())

    def _sent_to(
        self, connection: Connection, matching: list[ColumnElement[bool]], destination: str | None
    ) -> Count:
        """Count the rows for *destination* among the first *matching* rows."""
        timeouts = self._context.tables.timeouts
        first = (
            select(timeouts.c.destination)
            .where(*matching)
            .order_by(timeouts.c.due, timeouts.c.id)
            .limit(LOOKED_AT + 1)
            .subquery()
        )
        goes_there = case((first.c.destination == destination, 1), else_=0)
        read, found = connection.execute(
            select(func.count(), func.coalesce(func.sum(goes_there), 0)).select_from(first)
        ).one()
        return Count(int(found), exact=read <= LOOKED_AT)

    def statistics(self) -> StoreStatistics:
        """Return the numbers of ``timeoutmgr status``; outcomes are of the last 24 hours."""
        claims, history = self._context.tables.claims, self._context.tables.history
        ours = history.c.endpoint == self._context.endpoint
        latest = (
            select(history.c.at, history.c.due)
            .where(ours, history.c.event == TimeoutState.DISPATCHED.value)
            .order_by(history.c.at.desc())
            .limit(RECENT)
        )
        with self._context.database.read() as connection:
            now = self._context.now(connection)
            pending = self._count_in_bounds(connection, TimeoutFilter())
            due = self._count_in_bounds(connection, TimeoutFilter(due_before=now + 1))
            claimed = select(func.coalesce(func.sum(claims.c.size), 0)).where(
                claims.c.endpoint == self._context.endpoint, claims.c.claimed_until > now
            )
            day = (
                select(history.c.event)
                .where(ours, history.c.at > now - DAY)
                .order_by(history.c.at.desc())
                .limit(LOOKED_AT + 1)
                .subquery()
            )
            events = select(day.c.event, func.count()).group_by(day.c.event)
            outcomes = {event: count for event, count in connection.execute(events)}
            exact = {
                "pending": pending.exact,
                "due": due.exact,
                "outcomes": sum(outcomes.values()) <= LOOKED_AT,
            }
            late = sorted(row.at - row.due for row in connection.execute(latest))
            return StoreStatistics(
                pending=pending.number,
                due=due.number,
                oldest_due=self._oldest_due(connection),
                claimed=int(connection.execute(claimed).scalar_one()),
                outcomes=outcomes,
                lateness_p50=percentile(late, 50),
                lateness_p99=percentile(late, 99),
                lateness_max=late[-1] if late else None,
                at_least=frozenset(name for name, is_exact in exact.items() if not is_exact),
            )

    def _oldest_due(self, connection: Connection) -> Micros | None:
        timeouts = self._context.tables.timeouts
        columns = timeouts.c.due, timeouts.c.original_due
        found = (
            connection.execute(
                select(func.min(column)).where(
                    timeouts.c.endpoint == self._context.endpoint, column.is_not(None)
                )
            ).scalar()
            for column in columns
        )
        return min((due for due in found if due is not None), default=None)

    def _matching(
        self, which: TimeoutFilter, behind: Key | None = None
    ) -> list[list[ColumnElement[bool]]]:
        """Return lists of conditions for *which*; the matches of all lists together match *which*.

        Only keys behind *behind* match, if it is given.

        A timeout that waits for another try matches by when it was due. It stands elsewhere, and
        the end of a span of due times would not bound the search: such timeouts are found apart.
        """
        timeouts = self._context.tables.timeouts
        same = [*self._same(which), timeouts.c.endpoint == self._context.endpoint]
        if behind is not None:
            same.append(rows.after(timeouts.c.due, timeouts.c.id, behind.due, behind.id))
        first = func.coalesce(timeouts.c.original_due, timeouts.c.due)
        if which.due_from is not None:
            same += [timeouts.c.due >= which.due_from, first >= which.due_from]
        if which.due_before is None:
            return [same]
        in_place = timeouts.c.due < which.due_before
        waits = (timeouts.c.original_due.is_not(None), timeouts.c.original_due < which.due_before)
        return [[*same, in_place], [*same, *waits, timeouts.c.due >= which.due_before]]

    def _same(self, which: TimeoutFilter) -> list[ColumnElement[bool]]:
        timeouts, keys = self._context.tables.timeouts, self._context.tables.keys
        conditions: list[ColumnElement[bool]] = []
        if which.id is not None:
            # The timeouts have no index on ids: the key says where it stands.
            due = select(keys.c.due).where(
                keys.c.endpoint == self._context.endpoint, keys.c.id == which.id
            )
            conditions.append(timeouts.c.due == due.scalar_subquery())
        for column, value in (
            (timeouts.c.id, which.id),
            (timeouts.c.saga_id, which.saga_id),
            (timeouts.c.destination, which.destination),
        ):
            if value is not None:
                conditions.append(column == value)
        return conditions


def _has_index(which: TimeoutFilter) -> bool:
    """Return whether an index finds the matches: none knows a destination."""
    return which.destination is None or which.saga_id is not None or which.id is not None


def _in_order(key: Key) -> tuple[Micros, bytes]:
    return key.due, key.id.encode()  # as every database compares ids


def _up_to(most: int, found: int) -> Count:
    return Count(min(found, most), exact=found <= most)


def _history_of_one(context: StoreContext) -> Select[Any]:
    """Return the statement that reads the newest events of one id.

    Revision 0007 says which of them an index on ids has. The other outcomes are dispatches, and
    stand in the index on instants at the instant of their tombstone. Without statistics a plan may
    walk all of the endpoint, or all of the table from its end: the expressions leave these indexes
    alone.
    """
    keys, events = context.tables.keys.c, context.tables.history.c
    is_wanted = events.id == bindparam("wanted")
    is_indexed = events.run_id.is_not(None) | (events.event != literal_column("'dispatched'"))
    closed_at = (
        select(keys.closed_at)
        .where(keys.endpoint == context.endpoint, keys.id == bindparam("wanted"))
        .scalar_subquery()
    )
    columns = [events[name] for name in (*_OF_AN_EVENT, "sequence")]
    indexed = select(*columns).where(
        is_wanted, is_indexed, events.endpoint.concat("") == context.endpoint
    )
    dispatches = select(*columns).where(
        *(events.endpoint == context.endpoint, events.at == closed_at),
        *(events.id.concat("") == bindparam("wanted"), ~is_indexed),
    )
    found = indexed.union_all(dispatches).subquery()
    return (
        select(*(found.c[name] for name in _OF_AN_EVENT))
        .order_by(found.c.sequence.desc())
        .limit(bindparam("limit", type_=Integer))
    )
