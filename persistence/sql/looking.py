"""Looking at what is stored: by id, by filter, and as numbers."""

from sqlalchemy import ColumnElement, bindparam, func, select

from timeoutmgr.contracts import Key, StoreStatistics, Timeout, TimeoutFilter, TimeoutState
from timeoutmgr.persistence.lateness import DAY, RECENT, percentile

from .conditions import after
from .context import StoreContext
from .rows import from_row


class Looking:
    """Reads the timeouts of one endpoint; it locks nothing and waits for nobody."""

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

    def find(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return what became of an id; state and row are of one moment."""
        with self._context.database.read() as connection:
            row = connection.execute(self._find, {"wanted": timeout_id}).first()
        if row is None:
            return None
        return TimeoutState(row.state), from_row(row) if row.due is not None else None

    def key_of(self, timeout_id: str) -> Key | None:
        """Return the key of a pending timeout."""
        with self._context.database.read() as connection:
            row = connection.execute(self._key_of, {"wanted": timeout_id}).first()
        return Key(*row) if row else None

    def page(self, which: TimeoutFilter, limit: int, behind: Key | None) -> list[Timeout]:
        """Return a page in the order of keys, those behind *behind*."""
        timeouts = self._context.tables.timeouts
        statement = select(timeouts).where(*self._matching(which))
        if behind is not None:
            statement = statement.where(after(timeouts.c.due, timeouts.c.id, behind.due, behind.id))
        statement = statement.order_by(timeouts.c.due, timeouts.c.id).limit(limit)
        with self._context.database.read() as connection:
            return [from_row(row) for row in connection.execute(statement)]

    def count(self, which: TimeoutFilter) -> int:
        """Return how many match."""
        statement = (
            select(func.count())
            .select_from(self._context.tables.timeouts)
            .where(*self._matching(which))
        )
        with self._context.database.read() as connection:
            return connection.execute(statement).scalar_one()

    def statistics(self) -> StoreStatistics:
        """Return the numbers of ``timeoutmgr status``; outcomes are those of the last 24 hours."""
        timeouts, claims = self._context.tables.timeouts, self._context.tables.claims
        history = self._context.tables.history
        mine = timeouts.c.endpoint == self._context.endpoint
        ours = history.c.endpoint == self._context.endpoint
        latest = (
            select(history.c.at, history.c.due)
            .where(ours, history.c.event == TimeoutState.DISPATCHED.value)
            .order_by(history.c.at.desc())
            .limit(RECENT)
        )
        with self._context.database.read() as connection:
            now = self._context.now(connection)
            pending, oldest = connection.execute(
                select(func.count(), func.min(timeouts.c.due)).where(mine)
            ).one()
            due = select(func.count()).select_from(timeouts).where(mine, timeouts.c.due <= now)
            claimed = select(func.coalesce(func.sum(claims.c.size), 0)).where(
                claims.c.endpoint == self._context.endpoint, claims.c.claimed_until > now
            )
            events = (
                select(history.c.event, func.count())
                .where(ours, history.c.at > now - DAY)
                .group_by(history.c.event)
            )
            late = sorted(row.at - row.due for row in connection.execute(latest))
            return StoreStatistics(
                pending=pending,
                due=connection.execute(due).scalar_one(),
                oldest_due=oldest,
                claimed=int(connection.execute(claimed).scalar_one()),
                outcomes={event: count for event, count in connection.execute(events)},
                lateness_p50=percentile(late, 50),
                lateness_p99=percentile(late, 99),
                lateness_max=late[-1] if late else None,
            )

    def _matching(self, which: TimeoutFilter) -> list[ColumnElement[bool]]:
        timeouts, keys = self._context.tables.timeouts, self._context.tables.keys
        conditions: list[ColumnElement[bool]] = [timeouts.c.endpoint == self._context.endpoint]
        if which.id is not None:
            # The timeouts have no index on ids: the key says when it is due.
            due = select(keys.c.due).where(
                keys.c.endpoint == self._context.endpoint, keys.c.id == which.id
            )
            conditions.append(timeouts.c.due == due.scalar_subquery())
        for column in ("id", "saga_id", "destination"):
            value = getattr(which, column)
            if value is not None:
                conditions.append(timeouts.c[column] == value)
        if which.due_from is not None:
            conditions.append(timeouts.c.due >= which.due_from)
        if which.due_before is not None:
            conditions.append(timeouts.c.due < which.due_before)
        return conditions
