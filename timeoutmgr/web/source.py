"""All reads and changes of the pages, by calls of the library; no page uses a store directly."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Count,
    CountsDelayed,
    CountsLoad,
    GroupBy,
    Groups,
    HistoryEntry,
    HistoryFilter,
    InFlightReport,
    Insight,
    Key,
    Load,
    LoadWindow,
    Overdue,
    Page,
    ProcessRecord,
    ReadsAtOnce,
    TimeoutDetails,
    TimeoutFilter,
    TimeoutStore,
    TransportSession,
)
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.pauses import Pause
from timeoutmgr.contracts.reports import DAY, LIVE, PROCESS_VERSION, SENDERS_AHEAD
from timeoutmgr.deadletter.delivery_headers import prepared_for_retry
from timeoutmgr.endpoint.audited_retries import error_queue_of, retry_failures
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.endpoint.installation import schema_expected
from timeoutmgr.endpoint.timeouts import Timeouts, TimeoutView, cursor_of, view
from timeoutmgr.errors import SchemaMissing, StorageUnavailable, Unsupported
from timeoutmgr.message import routes
from timeoutmgr.message.headers import EXCEPTION_STACK
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.transport.error_queue_retry import (
    EndpointErrorQueue,
    FailureFilter,
    FailureGroup,
    FailureRecord,
    RetriedMessage,
    RetryRequest,
    RetryResult,
    browse,
    failure_groups,
    failure_record,
)
from timeoutmgr.transport.sql.session import SqlSession
from timeoutmgr.transport.sql.statements import as_transport, queue_statements, read_by_index

if TYPE_CHECKING:
    from timeoutmgr.contracts import SharedDatabase

logger = logging.getLogger(__name__)

MOST_FAILURES: Final = 2_000
"""Maximum messages of the error queue in one read, which leases all of them meanwhile."""
MOST_COUNTED: Final = 10_000
"""Maximum rows of a queue in our own tables that one count reads."""
PAGE: Final = 50
"""Number of rows on a page."""
_GROUPED: Final = 250
"""Number of earliest timeouts that the first page groups: each may be on a separate disk page."""
_BREAKER: Final = "breaker_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A summary of the store's state at *now*, by the store's clock."""

    now: Micros
    pending: Count
    next_due: Micros | None
    overdue: Overdue
    in_flight: int
    destinations: Groups
    pauses: Sequence[Pause]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateTimeouts:
    """Timeouts past their due time: a page of the earliest, and those claimed by dispatchers."""

    now: Micros
    overdue: Overdue
    rows: Sequence[TimeoutView]
    in_flight: InFlightReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The messages of an error queue, newest last; *cut* says that more messages follow."""

    queue: str
    groups: Sequence[FailureGroup]
    records: Sequence[FailureRecord]
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetails:
    """A message of the error queue in full."""

    record: FailureRecord
    headers: Mapping[str, str]
    traceback: str | None
    body: bytes
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """A live process, with its reports: breakers by name, and all other reports."""

    host: str
    pid: int
    started: Micros
    heartbeat: Micros
    breakers: Mapping[str, str]
    version: str | None
    senders_ahead: str | None


@dataclass(frozen=True, slots=True)
class WindowOfNow:
    """A window whose first bucket contains the present time of the store's clock."""

    width: Micros
    buckets: int
    zone: tzinfo

    def at(self, now: Micros) -> LoadWindow:
        """Return the window of *now*."""
        return LoadWindow.around(now, self.width, self.buckets, self.zone)


class EndpointSource:
    """The endpoint's store, queues and dead letters, for the pages to read and change.

    A call raises StorageUnavailable, TransportUnavailable, or, if the endpoint lacks the part,
    ConfigurationError with the reason.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._parts = endpoint.parts
        self._checked: set[int] = set()

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self.endpoint.name

    @property
    def store(self) -> TimeoutStore:
        """The store; its tables exist. Raises Unsupported if the endpoint has no such store."""
        settings, features = self._parts.settings, self._parts.features
        if features.delayed is not None:
            raise Unsupported(
                "a page about stored timeouts",
                f"the delayed message store of endpoint {self.name!r} holds {self._held()} "
                "messages, which it cannot list",
                "Use TimeoutManager to see and change single timeouts",
            )
        if features.store is None or settings.persistence is None:
            raise Unsupported(
                "a page about stored timeouts",
                f"endpoint {self.name!r} keeps no timeouts that can be listed",
                "Look at the endpoint that manages its timeouts, or enable TimeoutManager",
            )
        self._require(settings.persistence.database, settings.persistence.check)
        return features.store

    @property
    def insight(self) -> Insight:
        """The store's queries with a bounded cost. Raises Unsupported if it has none."""
        store = self.store
        if isinstance(store, Insight):
            return store
        raise Unsupported(
            "a page about stored timeouts",
            f"the store {type(store).__name__} has no Insight, so its answers could cost much",
            "Implement timeoutmgr.contracts.Insight in it",
        )

    def _one_read(self) -> AbstractContextManager[None]:
        """Use one transaction for all queries in the block, if the store can."""
        store = self.store
        return store.one_read() if isinstance(store, ReadsAtOnce) else nullcontext()

    def _require(self, database: "SharedDatabase | None", check: Any) -> None:
        if id(check.__self__) in self._checked:
            return
        # Connecting would create the file.
        if database is not None and database.path is not None and not database.path.exists():
            raise SchemaMissing(f"there is no file {database.path}; run `timeoutmgr install`")
        check()
        self._checked.add(id(check.__self__))

    # --- the store ----------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Return the numbers of the first page."""
        with schema_expected(self._parts), self._one_read():
            insight, store = self.insight, self.store
            now = store.now()
            return Overview(
                now=now,
                pending=insight.count_in_bounds(TimeoutFilter()),
                next_due=store.next_due(),
                overdue=insight.overdue(now),
                in_flight=insight.in_flight().number,
                destinations=insight.groups(
                    TimeoutFilter(), GroupBy.DESTINATION, limit=_GROUPED, after=None
                ),
                pauses=self.timeouts.pauses(),
            )

    def load(self, wanted: LoadWindow | WindowOfNow, destination: str) -> Load:
        """Return the load in a window, or in the window of now; a later read may be more exact."""
        with schema_expected(self._parts):
            self._request_counts(by_destination=destination != "")
            with self._one_read():
                window = wanted
                if isinstance(window, WindowOfNow):
                    window = window.at(self.store.now())
                return self.insight.load(window, destination=destination or None)

    def _request_counts(self, *, by_destination: bool) -> None:
        """Make the store's maintenance count in the background what is too much for one read."""
        store = self.store
        if not isinstance(store, CountsLoad):
            return
        try:
            store.request_load_counts(by_destination=by_destination)
        except StorageUnavailable as error:  # for example, a read-only user or server
            logger.info(
                "dashboard of %s could not request background counts: %s",
                self.name,
                on_one_line(error),
                extra={"event": "load_counts_not_requested", "endpoint": self.name},
            )

    def pending(
        self, which: TimeoutFilter, after: Key | None
    ) -> tuple[Sequence[TimeoutView], str | None, Count, Micros]:
        """Return a page of pending timeouts, the next cursor, the count, and the store's time.

        Timeouts come without bodies, since readings of many pages are kept.
        """
        with schema_expected(self._parts), self._one_read():
            insight = self.insight
            page = insight.list_in_bounds(which, limit=PAGE, after=after)
            rows = [view(each) for each in page.timeouts]
            return rows, _following(page), insight.count_in_bounds(which), self.store.now()

    def timeout(self, timeout_id: str) -> tuple[TimeoutDetails | None, Micros]:
        """Return all details of a timeout, by its id or message id, and the store's time."""
        with schema_expected(self._parts):
            insight = self.insight
            found = insight.details(timeout_id)
            if found is None:
                found = insight.details(routes.timeout_id(self.name, timeout_id))
            return found, self.store.now()

    def late(self) -> LateTimeouts:
        """Return the timeouts past their due time, and those that dispatchers have claimed."""
        with schema_expected(self._parts), self._one_read():
            insight, now = self.insight, self.store.now()
            page = insight.list_in_bounds(TimeoutFilter(due_before=now), limit=PAGE)
            return LateTimeouts(
                now=now,
                overdue=insight.overdue(now),
                rows=[view(each) for each in page.timeouts],
                in_flight=insight.in_flight(),
            )

    def recent(self) -> Sequence[HistoryEntry]:
        """Return the newest events of the last day."""
        with schema_expected(self._parts), self._one_read():
            since = self.store.now() - DAY
            return self.insight.events(HistoryFilter(since=since), limit=10).events

    def processes(self) -> Sequence[ProcessView]:
        """Return the live processes."""
        with schema_expected(self._parts):
            oldest = self.store.now() - LIVE
            return [_process(each) for each in self.store.processes() if each.heartbeat >= oldest]

    def _held(self) -> str:
        delayed = self._parts.features.delayed
        if delayed is None:
            return "no"
        delayed.start(install=False)
        store = delayed.store
        return str(store.count()) if isinstance(store, CountsDelayed) else "an unknown number of"

    # --- changes ------------------------------------------------------------------------------

    @property
    def timeouts(self) -> Timeouts:
        """The library's own queries and changes. Raises Unsupported and SchemaMissing."""
        # Raises before a connection creates a missing file.
        _ = self.store
        return self.endpoint.timeouts

    def cancel(self, timeout_id: str, by: ChangedBy) -> CancelResult:
        """Cancel a timeout."""
        return self.timeouts.cancel(timeout_id, channel=_in_history(by), by=by)

    def reschedule(
        self, timeout_id: str, by: ChangedBy, *, at: datetime | None, delay: timedelta | None
    ) -> ChangeResult:
        """Move a timeout to another due time."""
        return self.timeouts.reschedule(
            timeout_id, deliver_at=at, delay=delay, channel=_in_history(by), by=by
        )

    def send_now(self, timeout_id: str, by: ChangedBy) -> ChangeResult:
        """Dispatch a timeout at once."""
        return self.timeouts.send_now(timeout_id, channel=_in_history(by), by=by)

    # --- the error queue ----------------------------------------------------------------------

    def failures(self, which: FailureFilter) -> Failures:
        """Return the failures of the error queue and their groups, without changing the queue."""
        queue = self._error_queue()
        with closing(browse(self._parts.settings.transport, queue.name, which)) as messages:
            found = [failure_record(each) for each in islice(messages, MOST_FAILURES + 1)]
        cut, found = len(found) > MOST_FAILURES, found[:MOST_FAILURES]
        return Failures(queue=queue.name, groups=failure_groups(found), records=found, cut=cut)

    def failure(self, message_id: str) -> FailureDetails | None:
        """Return a message of the error queue; None if the queue does not hold it."""
        queue, which = self._error_queue(), FailureFilter(ids=frozenset({message_id}))
        with closing(browse(self._parts.settings.transport, queue.name, which)) as messages:
            return next((_failed(each) for each in messages), None)

    def retry(self, request: RetryRequest, by: ChangedBy) -> Sequence[RetriedMessage]:
        """Retry or delete the messages that *request* selects; return their results."""
        self._error_queue()
        results = retry_failures(self._parts, request, by, prepare=prepared_for_retry)
        return [each for each in results if each.result is not RetryResult.LEFT]

    def _error_queue(self) -> EndpointErrorQueue:
        """Return the error queue, whose tables exist."""
        transport = self._parts.settings.transport
        self._require(transport.database, transport.check)
        return error_queue_of(self._parts)

    def queues(self) -> Mapping[str, Count | None]:
        """Return how many messages wait in each queue; None for a missing queue."""
        settings = self._parts.settings
        self._require(settings.transport.database, settings.transport.check)
        names = self._parts.queues
        with closing(settings.transport.session()) as session:
            missing = session.missing_queues(names)
            return {name: None if name in missing else _waiting(session, name) for name in names}


def _following(page: Page) -> str | None:
    """Return the cursor of the next page; None after the last."""
    if page.searched_to is not None:
        return cursor_of(page.searched_to)
    return cursor_of(page.timeouts[-1].key) if len(page.timeouts) == PAGE else None


def _waiting(session: TransportSession, queue: str) -> Count:
    """Return how many messages wait in *queue*; in a SQL queue, count only its first rows."""
    if not isinstance(session, SqlSession):
        return Count(session.count(queue))  # a broker keeps the number
    database = session.database
    statements = queue_statements(session.tables, database.dialect)
    where = {"queue": queue, "limit": MOST_COUNTED, "now": session.clock.now()}
    with as_transport(database), database.read() as connection:
        read_by_index(connection)
        read, free = connection.execute(statements.count_first, where).one()
    return Count(free, exact=read < MOST_COUNTED)


def _in_history(by: ChangedBy) -> str:
    """Return the channel with the actor: the history has no column for the actor."""
    return f"{by.channel}: {by.actor}"


def _process(record: ProcessRecord) -> ProcessView:
    states = {state.value for state in BreakerState}
    return ProcessView(
        host=record.host,
        pid=record.pid,
        started=record.started,
        heartbeat=record.heartbeat,
        breakers={
            name.removeprefix(_BREAKER): value
            for name, value in sorted(record.state.items())
            if value in states
        },
        version=record.state.get(PROCESS_VERSION),
        senders_ahead=record.state.get(SENDERS_AHEAD),
    )


def _failed(received: Received) -> FailureDetails:
    headers = dict(received.message.headers)
    return FailureDetails(
        record=failure_record(received),
        traceback=headers.pop(EXCEPTION_STACK, None),
        headers=headers,
        body=received.message.body,
        content_type=received.message.content_type,
    )
