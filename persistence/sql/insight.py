"""Answers about stored timeouts at a bounded cost, however many timeouts there are."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Subquery, and_, case, func, literal, select

from timeoutmgr.contracts import (
    ClaimReport,
    Count,
    GroupBy,
    Groups,
    HistoryCursor,
    HistoryEntry,
    HistoryFilter,
    HistoryPage,
    InFlightReport,
    Key,
    Load,
    LoadWindow,
    Overdue,
    Page,
    StoreStatistics,
    TimeoutDetails,
    TimeoutFilter,
    TimeoutState,
)
from timeoutmgr.contracts.insight import MOST_CLAIMS
from timeoutmgr.contracts.reports import COUNTED, DAY, LOOKED_AT, RECENT, percentile
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, enclosed_types

from .context import StoreContext, find_each_by_key
from .estimates import LoadEstimate
from .load_counts import CountedLoad
from .queries import OF_AN_EVENT, TimeoutQueries
from .rows import from_placed_row
from .searches import Search
from .walks import Conditions, IndexChoice, Walk, begins

_PREFIXED: Final = 100
"""Maximum number of ids with one prefix that are looked up one by one."""


class StoreInsight(TimeoutQueries):
    """Implements :class:`timeoutmgr.contracts.Insight`."""

    def __init__(
        self, context: StoreContext, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(context)
        self._monotonic = monotonic
        self._counted = CountedLoad(context)
        self._estimates = LoadEstimate(context)

    # --- counts and pages -------------------------------------------------------------------

    def count_in_bounds(self, which: TimeoutFilter) -> Count:
        """Return how many match, reading no more rows than the bounds allow."""
        with self._context.reading() as connection:
            return self._count_in_bounds(connection, which)

    def _count_in_bounds(
        self, connection: Connection, which: TimeoutFilter, parked: Sequence[Micros] = ()
    ) -> Count:
        """Count the matches of *which*, except at the places *parked*."""
        walks = self._walks.of(which, self._index_choice(connection, which))
        if parked:
            walks = [walk.tested(walk.at.c.due.not_in(parked)) for walk in walks]
        search = self._search(connection)
        counts = [self._count(search, walk) for walk in walks]
        number = sum(count.number for count in counts)
        exact = number <= COUNTED and all(count.exact for count in counts)
        return Count(min(number, COUNTED), exact)

    def _count(self, search: Search, walk: Walk) -> Count:
        """Count the matches of *walk*, up to COUNTED."""
        if walk.tests:
            return self._count_tested(search, walk)
        some = select(*walk.order).where(*walk.along).limit(COUNTED + 1).subquery()
        counted = select(func.count()).select_from(some)
        found = search.connection.execute(counted).scalar_one()
        return Count(min(found, COUNTED), exact=found <= COUNTED)

    def _count_tested(self, search: Search, walk: Walk) -> Count:
        """Count the rows of *walk* that pass its tests, until it ends or exceeds COUNTED."""
        number = 0
        for part in search.parts(walk):
            some = part.rows(_flag(part.tests)).subquery()
            hits = select(func.coalesce(func.sum(some.c.hit), 0))
            number += int(search.connection.execute(hits).scalar_one())
            if number > COUNTED:
                return Count(COUNTED, exact=False)
        return Count(number, exact=search.end is None)

    def list_in_bounds(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> Page:
        """Return a page in the order of keys, reading at most LOOKED_AT rows."""
        timeouts = self._context.tables.timeouts
        with self._context.reading() as connection:
            rows, end = self._rows(connection, timeouts.c, which, limit, after)
        return Page([from_placed_row(row) for row in rows], searched_to=end)

    def _rows(
        self,
        connection: Connection,
        columns: Any,
        which: TimeoutFilter,
        limit: int,
        after: Key | None,
    ) -> tuple[list[Any], Key | None]:
        """Return *columns* of the first *limit* matches, and where the search ended early."""
        found: list[Any] = []
        search = self._search(connection)
        for walk in self._walks.of(which, self._index_choice(connection, which), after):
            for part in search.parts(walk) if walk.tests else [walk]:
                page = select(*columns).where(*part.matching).order_by(*part.order)
                found += connection.execute(page.limit(limit - len(found))).all()
                if len(found) == limit:
                    return found, None
            if search.end is not None:
                return found, search.end
        return found, None

    def _search(self, connection: Connection) -> Search:
        since = self._context.searched_since(self._monotonic())
        return Search(connection, LOOKED_AT, self._monotonic, since)

    def _index_choice(self, connection: Connection, which: TimeoutFilter) -> IndexChoice:
        """Return how to walk to *which*: by an index, unless that finds more than can be read."""
        of_saga = waiting = 0
        if which.saga_id is not None:
            of_saga = self._number(connection, self._walks.of_saga(which.saga_id), LOOKED_AT)
        if which.due_before is not None:
            before = self._walks.waiting_before(which.due_before)
            waiting = self._number(connection, before, LOOKED_AT)
        keys = None
        if which.id_prefix is not None:
            keys = self._keys_of_prefix(connection, which.id_prefix)
        return IndexChoice(
            by_saga=of_saga <= LOOKED_AT,
            waiting_apart=waiting <= LOOKED_AT,
            none_waits=waiting == 0,
            keys=keys,
        )

    def _keys_of_prefix(self, connection: Connection, prefix: str) -> Sequence[Key] | None:
        """Return the pending keys whose ids begin with *prefix*; None if there are too many."""
        keys = self._context.tables.keys
        some = select(keys.c.due, keys.c.id, keys.c.state).where(
            keys.c.endpoint == self._context.endpoint, *begins(keys.c.id, prefix)
        )
        found = connection.execute(some.limit(_PREFIXED + 1)).all()
        if len(found) > _PREFIXED:
            return None
        find_each_by_key(connection)
        return [Key(row.due, row.id) for row in found if row.state == TimeoutState.PENDING.value]

    # --- groups and load --------------------------------------------------------------------

    def groups(
        self, which: TimeoutFilter, by: GroupBy, *, limit: int, after: Key | None = None
    ) -> Groups:
        """Return group counts of the earliest *limit* matches after *after*."""
        by_type = by is GroupBy.TYPE
        with self._context.reading() as connection:
            texts, end = self._texts(connection, which, limit, after, by_type=by_type)
        return Groups(_by_type(texts) if by_type else Counter(texts), searched_to=end)

    def _texts(
        self,
        connection: Connection,
        which: TimeoutFilter,
        limit: int,
        after: Key | None,
        *,
        by_type: bool,
    ) -> tuple[Counter[str], Key | None]:
        """Return counts of the earliest *limit* matches by text, and where the search ended.

        Each row may be on a disk page of its own, so even matches without tests stop by time.
        """
        found = Counter[str]()
        search = self._search(connection)
        for walk in self._walks.of(which, self._index_choice(connection, which), after):
            most = None if walk.tests else limit - found.total()
            for part in search.parts(walk, most):
                some = select(*self._values(by_type)).where(*part.matching).order_by(*part.order)
                earliest = some.limit(limit - found.total()).subquery()
                found.update(self._numbers_of(connection, earliest, by_type=by_type))
                if found.total() >= limit:
                    return found, None
            if search.end is not None:
                return found, search.end
        return found, None

    def _values(self, by_type: bool) -> list[ColumnElement[str]]:
        """Return the columns that contain the text of a group."""
        timeouts = self._context.tables.timeouts.c
        if not by_type:
            return [timeouts.destination]
        if not self._cuts_types:
            return [timeouts.headers]
        cut = func.split_part(func.split_part(timeouts.headers, _TYPES, 2), '"', 1)
        return [timeouts.headers, cut.label("cut")]

    def _numbers_of(
        self, connection: Connection, some: Subquery, *, by_type: bool
    ) -> Mapping[str, int]:
        """Return the counts of *some* by destination, or by the type that ``_cut`` extracts.

        PostgreSQL extracts it: sending all headers of a row takes longer than reading the row.
        """
        if by_type and not self._cuts_types:
            return Counter(map(_cut, connection.execute(select(some.c.headers)).scalars()))
        text = (_cut_or_all(some) if by_type else some.c.destination).label("value")
        numbers = select(text, func.count()).group_by(text)
        return {value: number for value, number in connection.execute(numbers)}

    @property
    def _cuts_types(self) -> bool:
        return self._context.database.dialect.name == "postgresql"

    def load(self, window: LoadWindow, *, destination: str | None = None) -> Load:
        """Return how many timeouts are tried in each bucket of *window*."""
        with self._context.reading() as connection:
            now = self._context.now(connection)
            search = self._search(connection)
            numbers = self._numbers(search, window, destination)
            counts = [Count(numbers[no]) for no in range(window.buckets)]
            if search.end is not None:
                # In order: all buckets before the last have been read completely.
                begun = window.bucket_of(search.end.due)
                counts[begun:] = self._unread(connection, window.edges[begun:], destination, now)
            return Load(window, counts, now)

    def _unread(
        self, connection: Connection, edges: Sequence[Micros], destination: str | None, now: Micros
    ) -> Sequence[Count]:
        """Return the number between each two *edges*, without reading the timeouts there."""
        counted = self._counted.counts(connection, edges, destination, now)
        if None not in counted:
            return [each for each in counted if each is not None]
        others = self._estimates.counts(connection, edges, destination)
        if others is None:
            others = self._by_bucket(connection, edges, destination)
        pairs = zip(counted, others, strict=True)
        return [other if count is None else count for count, other in pairs]

    def _numbers(self, search: Search, window: LoadWindow, destination: str | None) -> Counter[int]:
        """Return the counts by bucket, as far as the search reads."""
        numbers = Counter[int]()
        for part in search.parts(self._of_window(window.start, window.end, destination)):
            bucket = ((part.at.c.due - window.start) // window.step).label("bucket")
            some = part.rows(bucket, _flag(part.tests)).subquery()
            grouped = select(some.c.bucket, func.sum(some.c.hit)).group_by(some.c.bucket)
            for number, count in search.connection.execute(grouped):
                numbers[window.bucket_of(window.start + int(number) * window.step)] += int(count)
        return numbers

    def _by_bucket(
        self, connection: Connection, edges: Sequence[Micros], destination: str | None
    ) -> list[Count]:
        """Count each bucket by itself, up to its share of LOOKED_AT, while there is time."""
        share = max(1, LOOKED_AT // (len(edges) - 1))
        search = Search(connection, LOOKED_AT, self._monotonic)
        counts: list[Count] = []
        for start, end in pairwise(edges):
            if counts and search.is_over:
                counts.append(Count(0, exact=False))
                continue
            walk = self._of_window(start, end, destination)
            counts.append(self._share(connection, replace(walk, most=share + 1), share))
        return counts

    def _share(self, connection: Connection, walk: Walk, share: int) -> Count:
        some = walk.rows(_flag(walk.tests)).subquery()
        numbers = select(func.count(), func.coalesce(func.sum(some.c.hit), 0)).select_from(some)
        read, found = connection.execute(numbers).one()
        return Count(min(int(found), share), exact=read <= share)

    def _of_window(self, start: Micros, end: Micros, destination: str | None) -> Walk:
        timeouts = self._context.tables.timeouts
        span = [timeouts.c.due >= start, timeouts.c.due < end]
        tests = [] if destination is None else [timeouts.c.destination == destination]
        along = [timeouts.c.endpoint == self._context.endpoint, *span]
        return Walk(self._context, timeouts, along, tests)

    # --- one timeout, overdue, in flight, history -------------------------------------------

    def details(self, timeout_id: str, *, events: int = 100) -> TimeoutDetails | None:
        """Return what is known of an id; its state and its claim are from the same moment."""
        found = self.find(timeout_id)
        if found is None:
            return None
        state, timeout = found
        claims = () if timeout is None else self._claims_over(timeout.key)
        return TimeoutDetails(
            id=timeout_id,
            state=state,
            timeout=timeout,
            claim=next(iter(claims), None),
            events=self.history(timeout_id, limit=events),
        )

    def overdue(self, before: Micros) -> Overdue:
        """Return the timeouts that were due before an instant."""
        with self._context.reading() as connection:
            parked = self._places_of_parked(connection)
            oldest = self._oldest_due(connection, parked)
            if oldest is None or oldest >= before:
                return Overdue(Count(0), None)
            which = TimeoutFilter(due_before=before)
            return Overdue(self._count_in_bounds(connection, which, parked), oldest)

    def in_flight(self) -> InFlightReport:
        """Return the claims that are in force now."""
        with self._context.reading() as connection:
            claims = self._claims(connection)
            are_all = len(claims) < MOST_CLAIMS
            number = sum(each.size for each in claims) if are_all else self._claimed(connection)
            return InFlightReport(number, claims)

    def _claimed(self, connection: Connection) -> int:
        claims = self._context.tables.claims
        size = select(func.coalesce(func.sum(claims.c.size), 0)).where(*self._holding())
        return int(connection.execute(size).scalar_one())

    def _claims_over(self, key: Key) -> Sequence[ClaimReport]:
        claims = self._context.tables.claims.c
        covers = [
            claims.from_due <= key.due,
            (claims.from_due < key.due) | (claims.from_id <= key.id),
            claims.to_due >= key.due,
            (claims.to_due > key.due) | (claims.to_id >= key.id),
        ]
        with self._context.reading() as connection:
            return self._claims(connection, covers)

    def _claims(self, connection: Connection, also: Conditions | None = None) -> list[ClaimReport]:
        claims = self._context.tables.claims.c
        held = select(*(each for each in claims if each.name in _OF_A_CLAIM))
        held = held.where(*self._holding(), *(also or []))
        held = held.order_by(claims.from_due, claims.from_id, claims.token).limit(MOST_CLAIMS)
        return [
            ClaimReport(
                token=row.token,
                # Without the suffix of its session lock: the name that the process uses for itself.
                owner=row.owner.rpartition("#")[0] or row.owner,
                size=row.size,
                first=Key(row.from_due, row.from_id),
                last=Key(row.to_due, row.to_id),
                until=row.claimed_until,
            )
            for row in connection.execute(held)
        ]

    def _holding(self) -> Conditions:
        claims, context = self._context.tables.claims.c, self._context
        return [claims.endpoint == context.endpoint, claims.claimed_until > context.now_value]

    def events(
        self, which: HistoryFilter, *, limit: int = 100, after: HistoryCursor | None = None
    ) -> HistoryPage:
        """Return a page of the history, newest first, reading at most LOOKED_AT events."""
        history = self._context.tables.history.c
        tests = [
            column == value
            for column, value in (
                (history.event, which.event),
                (history.destination, which.destination),
            )
            if value is not None
        ]
        along, order = (
            self._events_along(which, after),
            (history.at.desc(), history.sequence.desc()),
        )
        newest = select(history.at, history.sequence).where(*along).order_by(*order)
        columns = [history[name] for name in OF_AN_EVENT]
        with self._context.reading() as connection:
            last = connection.execute(newest.offset(LOOKED_AT - 1).limit(2)).all() if tests else []
            end = HistoryCursor(*last[0]) if len(last) > 1 else None
            within = [] if end is None else [_not_older(history, end)]
            page = select(*columns, history.sequence).where(*along, *tests, *within)
            rows = connection.execute(page.order_by(*order).limit(limit)).all()
        if len(rows) == limit:
            end = HistoryCursor(rows[-1].at, rows[-1].sequence)
        maps = [row._mapping for row in rows]
        events = [HistoryEntry(**{name: one[name] for name in OF_AN_EVENT}) for one in maps]
        return HistoryPage(events, next=end)

    def _events_along(self, which: HistoryFilter, after: HistoryCursor | None) -> Conditions:
        history = self._context.tables.history.c
        along = [history.endpoint == self._context.endpoint]
        if which.since is not None:
            along.append(history.at >= which.since)
        if which.before is not None:
            along.append(history.at < which.before)
        if after is not None:
            is_older = (history.at < after.at) | (history.sequence < after.sequence)
            along += [history.at <= after.at, is_older]
        return along

    # --- the numbers of ``timeoutmgr status`` -----------------------------------------------

    def statistics(self) -> StoreStatistics:
        """Return the numbers of ``timeoutmgr status``; outcomes are of the last 24 hours."""
        with self._context.reading() as connection:
            now = self._context.now(connection)
            pending = self._count_in_bounds(connection, TimeoutFilter())
            parked = self._places_of_parked(connection)
            due = self._count_in_bounds(connection, TimeoutFilter(due_before=now + 1), parked)
            outcomes = self._outcomes(connection, now - DAY)
            exact = {
                "pending": pending.exact,
                "due": due.exact,
                "outcomes": sum(outcomes.values()) <= LOOKED_AT,
            }
            late = self._lateness(connection)
            return StoreStatistics(
                pending=pending.number,
                due=due.number,
                oldest_due=self._oldest_due(connection, parked),
                claimed=self._claimed(connection),
                outcomes=outcomes,
                lateness_p50=percentile(late, 50),
                lateness_p99=percentile(late, 99),
                lateness_max=late[-1] if late else None,
                at_least=frozenset(name for name, is_exact in exact.items() if not is_exact),
            )

    def _outcomes(self, connection: Connection, since: Micros) -> dict[str, int]:
        history = self._context.tables.history
        latest = (
            select(history.c.event)
            .where(history.c.endpoint == self._context.endpoint, history.c.at > since)
            .order_by(history.c.at.desc())
            .limit(LOOKED_AT + 1)
            .subquery()
        )
        events = select(latest.c.event, func.count()).group_by(latest.c.event)
        return {event: count for event, count in connection.execute(events)}

    def _lateness(self, connection: Connection) -> list[int]:
        """Return the lateness of recent dispatches, ascending; perhaps few among many events."""
        history = self._context.tables.history
        events = select(history.c.at, history.c.due, history.c.event)
        newest = (
            events.where(history.c.endpoint == self._context.endpoint)
            .order_by(history.c.at.desc())
            .limit(LOOKED_AT)
            .subquery()
        )
        dispatched = newest.c.event == TimeoutState.DISPATCHED.value
        latest = select(newest.c.at, newest.c.due).where(dispatched).order_by(newest.c.at.desc())
        return sorted(row.at - row.due for row in connection.execute(latest.limit(RECENT)))

    def _places_of_parked(self, connection: Connection) -> Sequence[Micros]:
        """Return the places of timeouts that pauses hold, ascending: these are not late."""
        pauses = self._context.tables.pauses
        mine = pauses.c.endpoint == self._context.endpoint
        return sorted(set(connection.execute(select(pauses.c.parked).where(mine)).scalars()))

    def _oldest_due(self, connection: Connection, parked: Sequence[Micros]) -> Micros | None:
        """Return the due time of the oldest timeout that no pause holds."""
        found = (self._first_place(connection, parked), self._oldest_retried(connection, parked))
        return min((due for due in found if due is not None), default=None)

    def _first_place(self, connection: Connection, parked: Sequence[Micros]) -> Micros | None:
        """Return the first place of a timeout outside the places *parked*."""
        due = self._context.tables.timeouts.c.due
        mine = self._context.tables.timeouts.c.endpoint == self._context.endpoint
        for begin, end in zip([None, *parked], [*parked, None], strict=True):
            gap = [*([] if begin is None else [due > begin]), *([] if end is None else [due < end])]
            first = connection.execute(select(func.min(due)).where(mine, *gap)).scalar()
            if first is not None:
                return int(first)
        return None

    def _oldest_retried(self, connection: Connection, parked: Sequence[Micros]) -> Micros | None:
        """Return the due time of the oldest timeout that waits for a retry and not for a resume."""
        timeouts = self._context.tables.timeouts
        # Do not read a million parked timeouts to find another timeout among them.
        retried = (
            select(timeouts.c.original_due, timeouts.c.due)
            .where(
                timeouts.c.endpoint == self._context.endpoint, timeouts.c.original_due.is_not(None)
            )
            .order_by(timeouts.c.original_due)
            .limit(LOOKED_AT if parked else 1)
            .subquery()
        )
        oldest = select(func.min(retried.c.original_due)).where(retried.c.due.not_in(parked))
        found: Micros | None = connection.execute(oldest).scalar()
        return found


_OF_A_CLAIM: Final = frozenset(
    {"token", "owner", "size", "from_due", "from_id", "to_due", "to_id", "claimed_until"}
)


def _flag(tests: Conditions) -> ColumnElement[int]:
    """Return 1 for a row that passes *tests*, otherwise 0."""
    return case((and_(*tests), 1), else_=0).label("hit") if tests else literal(1).label("hit")


def _not_older(history: Any, end: HistoryCursor) -> ColumnElement[bool]:
    newer: ColumnElement[bool] = (history.at > end.at) | (history.sequence >= end.sequence)
    return and_(history.at >= end.at, newer)


_TYPES: Final = f'"{headers.ENCLOSED_MESSAGE_TYPES}":"'


def _by_type(texts: Mapping[str, int]) -> Counter[str | None]:
    """Return counts by the first type; headers are parsed once per distinct text."""
    found = Counter[str | None]()
    for text, count in texts.items():
        found[_type_in(text)] += count
    return found


def _cut_or_all(some: Subquery) -> ColumnElement[str]:
    return case((func.right(some.c.cut, 1) == "\\", some.c.headers), else_=some.c.cut)


def _cut(stored: str) -> str:
    """Return the header of types as JSON text; all headers if the cut would not be exact."""
    cut = stored.partition(_TYPES)[2].partition('"')[0]
    return stored if cut.endswith("\\") else cut


def _type_in(text: str) -> str | None:
    # A cut text contains no quote, while a whole text begins with a brace and a quote.
    stored = text if text.startswith('{"') else f'{{{_TYPES}{text}"}}'
    types = enclosed_types(Message(id="stored", headers=json.loads(stored)))
    return types[0] if types else None
