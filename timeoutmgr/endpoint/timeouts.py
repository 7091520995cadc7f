"""The pending timeouts of an endpoint: queries, cancels and changes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Unpack

from timeoutmgr.contracts import (
    Cancelled,
    CancelResult,
    ChangeResult,
    Clock,
    Count,
    FindsByLabels,
    GroupBy,
    Groups,
    HistoryEntry,
    Insight,
    KeepsHistory,
    Key,
    Page,
    Rerouted,
    ReroutesTimeouts,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.contracts.audit import AuditRecord, AuditVerdict, ChangedBy, KeepsAudit
from timeoutmgr.contracts.pauses import Pause, PausesDispatch
from timeoutmgr.endpoint.attempts import attempt
from timeoutmgr.endpoint.bulk_runs import (
    BY_API,
    BulkRuns,
    SelectionKeywords,
    check_text,
    checked_limit,
    filter_of,
    require_values,
)
from timeoutmgr.endpoint.restoration import Restoration, RestoreReport
from timeoutmgr.errors import InvalidMessage, Unsupported
from timeoutmgr.message import headers, routes
from timeoutmgr.message.instants import Micros, duration_micros, from_micros, to_micros
from timeoutmgr.message.labels import NO_LABELS, Labels, labels_of
from timeoutmgr.message.message import enclosed_types
from timeoutmgr.message.validation import Limits, check_destination, check_due, check_id, due_of
from timeoutmgr.resilience.after_fork import cached_property

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutView:
    """A pending timeout for people and commands; *size* is the bytes of its body.

    *exception* and *reason* describe the failed attempt before a pending retry.
    """

    id: str
    due: datetime
    destination: str
    saga_id: str | None
    message_id: str
    message_type: str | None
    attempts: int
    size: int
    labels: Sequence[str] = ()
    exception: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TimeoutGroups:
    """Numbers of timeouts by destination or type; *searched_to* is as in TimeoutPage.

    The type None is for messages without a type.
    """

    counts: Mapping[str | None, int]
    searched_to: str | None = None


@dataclass(frozen=True, slots=True)
class TimeoutPage:
    """The earliest timeouts that match; *searched_to* is a cursor if the search ended there.

    Timeouts behind that cursor may match too: give it as *after* to go on.
    """

    timeouts: Sequence[TimeoutView]
    searched_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RerouteResult:
    """Result of a reroute: the ids of timeouts that were *rerouted*, or would be with *dry_run*.

    *left* timeouts were dispatched or moved meanwhile, or are being dispatched now, and keep their
    destination. *maybe_sent* of the rerouted timeouts may have been sent to the former destination.
    *searched_to* is a cursor if the call ended before the last match: give it as *after* to go on.
    """

    rerouted: Sequence[str]
    left: Sequence[str] = ()
    maybe_sent: Sequence[str] = ()
    searched_to: str | None = None


class Timeouts:
    """Queries and changes of the timeouts in the store of an endpoint's timeout manager.

    Refer to a timeout by its id, which ``send`` returned, or by the id of its message. An id that
    is not a text of 1 to 200 characters raises InvalidMessage.

    A **selection** has all timeouts that match each of ``saga_id``, ``destination``,
    ``message_type``, ``id_prefix``, ``labels``, and the half-open range of aware datetimes from
    ``due_from`` to ``due_before``; without any, of all. A change refuses a keyword that is None or
    empty: leave it out. A text with NUL or half a surrogate pair raises InvalidMessage.

    Each raises SchemaMissing, with the command to run, if the tables do not exist.
    """

    def __init__(
        self,
        store: TimeoutStore,
        wake: Callable[[Micros], None],
        waiting: Callable[[], int | None] = lambda: None,
        schema_expected: Callable[[], AbstractContextManager[None]] = nullcontext,
        require_destination: Callable[[str], None] = lambda _to: None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._wake = wake
        self._waiting = waiting
        self._schema_expected = schema_expected
        self._require_destination = require_destination
        self._clock = clock

    @cached_property
    def bulk(self) -> BulkRuns:
        """Changes of many timeouts at once."""
        return BulkRuns(self._store, self._wake, self._schema_expected, self._require_destination)

    def pause(
        self,
        destination: str | None = None,
        *,
        until: datetime | timedelta | None = None,
        by: ChangedBy = BY_API,
    ) -> bool:
        """Pause dispatch to *destination*, or to all destinations, until an end or a resume.

        The end is an aware datetime, or a duration from now by the clock of the store. Return
        whether it was not paused before; the new end replaces the old in any case. Timeouts that
        come due meanwhile are parked: no attempt is counted, and no other timeout waits for them.
        Raises Unsupported for a store that cannot.
        """
        selection = {"destination": destination}
        with self._schema_expected(), attempt(self._store, "pause", by, selection):
            store = self._pausing()
            now = store.now()
            end = _end_of_pause(until, now)
            if end is not None and end <= now:
                raise InvalidMessage(f"the pause would end at {from_micros(end)}, which has passed")
            if destination is not None:
                check_destination(destination, Limits())
            is_new = store.pause(destination, end, by)
            self._unpark(store)
        return is_new

    def resume(self, destination: str | None = None, *, by: ChangedBy = BY_API) -> int | None:
        """End the pause of *destination*, or of all; return how many timeouts are returned.

        None if it was not paused. The returned timeouts are dispatched now.
        """
        check_text("destination", destination)
        selection = {"destination": destination}
        with self._schema_expected(), attempt(self._store, "resume", by, selection):
            store = self._pausing()
            was_paused = store.resume(destination, by)
            returned = self._unpark(store)
        return returned if was_paused or returned else None

    def pauses(self) -> Sequence[Pause]:
        """Return the pauses in force; none for a store that cannot pause."""
        with self._schema_expected():
            return self._store.pauses() if isinstance(self._store, PausesDispatch) else ()

    def audit(self, *, limit: int = 100, run_id: str | None = None) -> Sequence[AuditRecord]:
        """Return the newest *limit* rows of the audit, or of a run in the audit, oldest first."""
        check_text("run_id", run_id)
        with self._schema_expected():
            return self._audited().audit(limit=checked_limit(limit), run_id=run_id)

    def verify_audit(self, heads: Mapping[str, tuple[int, str]] | None = None) -> AuditVerdict:
        """Check the hashes of all rows of the audit, and that the rows of *heads* exist."""
        with self._schema_expected():
            return self._audited().verify_audit(heads or {})

    def _audited(self) -> KeepsAudit:
        if isinstance(self._store, KeepsAudit):
            return self._store
        raise Unsupported(
            "reading the audit",
            f"the store {type(self._store).__name__} keeps none",
            "Use a SQL persistence",
        )

    def _pausing(self) -> PausesDispatch:
        if isinstance(self._store, PausesDispatch):
            return self._store
        raise Unsupported(
            "pausing dispatch",
            f"the store {type(self._store).__name__} cannot hold timeouts back",
            "Stop the endpoint, or use a SQL persistence",
        )

    def _unpark(self, store: PausesDispatch) -> int:
        """Unpark all timeouts of pauses that are ending; return how many."""
        returned = 0
        while not (step := store.unpark()).is_last:
            returned += step.returned
            self._wake(step.at)
        return returned

    def restored(
        self, at: datetime, *, overdue: timedelta = timedelta(minutes=1), by: ChangedBy = BY_API
    ) -> RestoreReport:
        """Release the claims of a store that was restored to the time *at*; report its window.

        The window begins *overdue* before *at*, because timeouts may have been sent that late. Call
        this before any process of the endpoint starts; otherwise it raises InvalidMessage.
        """
        instant = check_due(to_micros(at))
        if duration_micros(overdue) < 0:
            raise InvalidMessage(
                f"overdue is how late a timeout may be, got {overdue}; give 0 or more"
            )
        with self._schema_expected(), attempt(self._store, "restored", by, {"at": instant}):
            return Restoration(self._store, instant, duration_micros(overdue)).release(by)

    def waiting(self) -> int | None:
        """Return the number of messages in ``<endpoint>.Timeouts`` that wait to be stored.

        None if the broker is out of reach. A waiting message is not listed yet; a cancel of it
        returns ``will_be_cancelled``.
        """
        return self._waiting()

    def now(self) -> Micros:
        """Return the time that due times are compared with: the store's own."""
        return self._store.now()

    def cancel(
        self, timeout_id: str, *, channel: str = routes.API, by: ChangedBy | None = None
    ) -> CancelResult:
        """Cancel a timeout; CancelResult explains the promise of each answer.

        *channel* names the origin of the order in the history, cut to 400 characters. The audit
        names *by*, or the user of this process.
        """
        check_id(timeout_id)
        channel = routes.bounded(channel)
        by = by or ChangedBy(channel=channel)
        with self._schema_expected(), attempt(self._store, "cancel", by, {"id": timeout_id}):
            known = self._known(timeout_id)
            # A message that is not stored yet may have either id, so that both are remembered.
            for each in (
                routes.ids_of(self._store.endpoint, timeout_id) if known is None else (known,)
            ):
                result = self._cancel(each, channel, by)
                if result not in (CancelResult.WILL_BE_CANCELLED, CancelResult.UNKNOWN):
                    break
        return result

    def _known(self, given: str) -> str | None:
        """Return the id of the timeout that *given* refers to, if there is a known timeout."""
        ids = routes.ids_of(self._store.endpoint, given)
        return next((one for one in ids if self._store.find(one) is not None), None)

    def _cancel(self, timeout_id: str, channel: str, by: ChangedBy) -> CancelResult:
        if isinstance(self._store, KeepsAudit):
            return self._store.cancel(timeout_id, channel=channel, by=by)
        if isinstance(self._store, KeepsHistory):
            return self._store.cancel(timeout_id, channel=channel)
        return self._store.cancel(timeout_id)

    def cancel_saga(self, saga_id: str, *, channel: str = routes.API) -> Sequence[str]:
        """Cancel all timeouts stored for a saga; return the ids of the cancelled timeouts.

        *channel* names the origin of the order in the history, cut to 400 characters.
        """
        if not saga_id:
            raise InvalidMessage(
                "Invalid saga id specified, clear timeouts is only supported for saga instances"
            )
        which = filter_of(saga_id=saga_id)
        by, selection = ChangedBy(channel=routes.bounded(channel)), {"saga_id": saga_id}
        with self._schema_expected(), attempt(self._store, "cancel-saga", by, selection):
            if isinstance(self._store, FindsByLabels):
                found = self._cancel_where(which, channel)
                return [one.timeout.id for one in found if one.result is not CancelResult.TOO_LATE]
            if isinstance(self._store, KeepsHistory):
                return self._store.cancel_saga(saga_id, channel=by.channel)
            return self._store.cancel_saga(saga_id)

    def cancel_where(
        self, *, labels: Labels = NO_LABELS, saga_id: str | None = None, channel: str = routes.API
    ) -> Sequence[Cancelled]:
        """Cancel all timeouts of one label or of one saga; return those that were found.

        TOO_LATE means that the timeout is being dispatched now. For seven days the cancel also
        applies to messages sent before it that wait in ``<endpoint>.Timeouts``, by the clocks of
        this host and the sender. After a crash the same call does the rest. Raises InvalidMessage
        for several labels, and Unsupported for a store that cannot find labels.
        """
        which = filter_of(saga_id=saga_id, labels=labels)
        if len(which.labels) + (saga_id is not None) != 1 or saga_id == "":
            raise InvalidMessage(
                f"a cancel of many names one label or one saga, got labels {which.labels!r:.80} "
                f"and saga {saga_id!r:.80}; list by several, and cancel each by its id"
            )
        with self._schema_expected():
            return self._cancel_where(which, channel)

    def _cancel_where(self, which: TimeoutFilter, channel: str) -> Sequence[Cancelled]:
        store = self._finding_labels("cancelling timeouts by labels")
        # By the sender's clock: the order of a send and a cancel in one process is exact.
        now = (self._clock or self._store).now()
        return store.cancel_where(which, sent_until=now, channel=routes.bounded(channel))

    def reschedule(
        self,
        timeout_id: str,
        *,
        deliver_at: datetime | None = None,
        delay: timedelta | float | None = None,
        channel: str = routes.API,
        by: ChangedBy | None = None,
    ) -> ChangeResult:
        """Move a timeout to another due time: an aware datetime, or a delay from now.

        *channel* names the origin of the order in the history, cut to 400 characters. The audit
        names *by*, or the user of this process.
        """
        return self._reschedule(timeout_id, deliver_at, delay, channel, "reschedule", by)

    def _reschedule(
        self,
        timeout_id: str,
        deliver_at: datetime | None,
        delay: timedelta | float | None,
        channel: str,
        action: str,
        by: ChangedBy | None,
    ) -> ChangeResult:
        check_id(timeout_id)
        channel = routes.bounded(channel)
        by = by or ChangedBy(channel=channel)
        with self._schema_expected(), attempt(self._store, action, by, {"id": timeout_id}):
            due = due_of(delay, deliver_at, self._store.now())
            if due is None:
                raise InvalidMessage("reschedule needs deliver_at or delay")
            known = self._known(timeout_id) or timeout_id
            result = self._move(known, due, channel, action, by)
        if result in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT):
            self._wake(due)
        return result

    def _move(
        self, timeout_id: str, due: Micros, channel: str, action: str, by: ChangedBy
    ) -> ChangeResult:
        if isinstance(self._store, KeepsAudit):
            return self._store.reschedule(timeout_id, due, channel=channel, action=action, by=by)
        return self._store.reschedule(timeout_id, due)

    def reschedule_where(
        self,
        *,
        labels: Labels = NO_LABELS,
        saga_id: str | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | float | None = None,
    ) -> Mapping[str, ChangeResult]:
        """Move all stored timeouts of labels and a saga; return the result for each id.

        Each move has its own commit; after a crash the same call does the rest.
        """
        if not labels and not saga_id:
            raise InvalidMessage("reschedule_where needs labels or a saga id")
        due = due_of(delay, deliver_at, self._store.now())
        if due is None:
            raise InvalidMessage("reschedule_where needs deliver_at or delay")
        # Read all ids first: the search would find a timeout again that moved to a later due time.
        found = [one.id for one in self.list(labels=labels, saga_id=saga_id)]
        return {one: self.reschedule(one, deliver_at=from_micros(due)) for one in found}

    def send_now(
        self, timeout_id: str, *, channel: str = routes.API, by: ChangedBy | None = None
    ) -> ChangeResult:
        """Dispatch a timeout at once; history and audit name *channel* and *by* as of a move."""
        return self._reschedule(timeout_id, None, 0, channel, "send-now", by)

    def reroute(
        self,
        to: str,
        *,
        dry_run: bool = False,
        limit: int = 10_000,
        after: str | None = None,
        channel: str = routes.API,
        **selection: Unpack[SelectionKeywords],
    ) -> RerouteResult:
        """Send the pending timeouts that match to the queue *to*, each when it is due.

        A call looks at *limit* matches behind the cursor *after* at most, and commits 500 at a
        time: after a crash the same call does the rest. With *dry_run* nothing is changed. Raises
        DestinationNotAllowed or Unroutable, with nothing changed, if no message may go to *to*, and
        Unsupported for a store that cannot change destinations.
        """
        store = self._store
        if not isinstance(store, ReroutesTimeouts):
            raise Unsupported(
                "rerouting pending timeouts",
                f"the store {type(store).__name__} has no reroute",
                "Cancel the timeouts, and send the messages again",
            )
        checked_limit(limit)
        by = ChangedBy(channel=routes.bounded(channel))
        with attempt(store, "reroute", by, {"to": to}):
            self._require_destination(to)
        require_values(selection)
        which = self._filter(**selection)
        behind = None if after is None else key_at(after)
        done, looked_at, end = _Rerouting(), 0, behind
        while looked_at < limit:
            size = min(_PAGE, limit - looked_at)
            with self._schema_expected():
                page = _page(self._store, which, size, behind)
                keys = [one.key for one in page.timeouts if one.destination != to]
                changed = Rerouted(keys)
                if not dry_run:
                    changed = store.reroute(keys, to, channel=routes.bounded(channel))
                done.add(keys, changed)
            if changed.unparked_at is not None:
                self._wake(changed.unparked_at)
            looked_at += len(page.timeouts)
            behind = page.timeouts[-1].key if page.timeouts else behind
            end = page.searched_to or (behind if len(page.timeouts) == size else None)
            if end is None or page.searched_to is not None:
                break
        return done.result(None if end is None else cursor_of(end))

    def show(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of a timeout and, while it is pending, the timeout itself.

        If *timeout_id* is the id of a message that waits for a retry, the timeout is the retry.
        """
        check_id(timeout_id)
        with self._schema_expected():
            known = self._known(timeout_id)
            found = None if known is None else self._store.find(known)
            if found is None or found[0] is not TimeoutState.PENDING:
                return self._waiting_for_retry(timeout_id) or found
            return found

    def _waiting_for_retry(self, message_id: str) -> tuple[TimeoutState, Timeout] | None:
        """Return the timeout that holds the message *message_id* for a retry, if it is found.

        The id of that timeout also depends on the time of the failure, and the store has no index
        for message ids. So search the earliest timeouts, because retries are soon.
        """
        if not isinstance(self._store, Insight) or routes.is_timeout_id(message_id):
            return None
        for one in self._store.list_in_bounds(TimeoutFilter(message_id=message_id)).timeouts:
            if one.message.id == message_id and routes.is_delayed_retry(one.message.headers):
                return TimeoutState.PENDING, one
        return None

    def history(self, timeout_id: str) -> Sequence[HistoryEntry] | None:
        """Return the newest 100 events of a timeout, oldest first; None if there is no history.

        ``persistence_options.history`` says which events are recorded.
        """
        check_id(timeout_id)
        if not isinstance(self._store, KeepsHistory):
            return None
        # The history may be kept longer than the tombstone.
        ids = routes.ids_of(self._store.endpoint, timeout_id)
        found = (self._store.history(each) for each in ids)
        with self._schema_expected():
            return next(filter(None, found), ())

    def list(
        self, *, limit: int | None = None, **selection: Unpack[SelectionKeywords]
    ) -> Iterator[TimeoutView]:
        """Yield pending timeouts by due time, read page by page."""
        which = self._filter(**selection)
        yield from map(view, self.stored(which, limit=limit))

    def stored(self, which: TimeoutFilter, *, limit: int | None = None) -> Iterator[Timeout]:
        """Yield pending timeouts as ``list`` does, with their messages."""
        after: Key | None = None
        left = None if limit is None else checked_limit(limit)
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            with self._schema_expected():
                page = self._store.list(which, limit=size, after=after)
            yield from page
            if len(page) < size:
                return
            after = page[-1].key
            left = None if left is None else left - len(page)

    def list_in_bounds(
        self, *, limit: int = 100, after: str | None = None, **selection: Unpack[SelectionKeywords]
    ) -> TimeoutPage:
        """Return the first *limit* pending timeouts behind the cursor *after*, by due time.

        For a destination the search ends after 50,000 timeouts without a match to list.
        Raises InvalidMessage for a text that is not a cursor.
        """
        which = self._filter(**selection)
        behind = None if after is None else key_at(after)
        found: list[TimeoutView] = []
        while len(found) < checked_limit(limit):
            size = min(_PAGE, limit - len(found))
            with self._schema_expected():
                page = _page(self._store, which, size, behind)
            found += map(view, page.timeouts)
            if page.searched_to is not None:
                return TimeoutPage(found, cursor_of(page.searched_to))
            if len(page.timeouts) < size:
                break
            behind = page.timeouts[-1].key
        return TimeoutPage(found)

    def count(self, **selection: Unpack[SelectionKeywords]) -> int:
        """Return how many pending timeouts match, by reading all of them."""
        with self._schema_expected():
            return self._store.count(self._filter(**selection))

    def count_in_bounds(self, **selection: Unpack[SelectionKeywords]) -> Count:
        """Return how many pending timeouts match: exact up to 10,000, otherwise a lower bound.

        For a destination only the first 50,000 timeouts are read.
        """
        with self._schema_expected():
            return counted(self._store, self._filter(**selection))

    def groups(
        self,
        by: GroupBy,
        *,
        limit: int = 10_000,
        after: str | None = None,
        **selection: Unpack[SelectionKeywords],
    ) -> TimeoutGroups:
        """Return how many of the first *limit* timeouts behind *after* have each value of *by*.

        At most the first 50,000 timeouts of a destination, a saga or labels are searched. A search
        that takes long ends earlier, after at least 1,000 timeouts.
        """
        if by not in [*GroupBy]:
            raise InvalidMessage(f"groups are by {' or '.join(GroupBy)}, got {by!r:.80}")
        which = self._filter(**selection)
        behind = None if after is None else key_at(after)
        with self._schema_expected():
            found = grouped(self._store, which, GroupBy(by), checked_limit(limit), behind)
        end = found.searched_to
        return TimeoutGroups(found.counts, None if end is None else cursor_of(end))

    def _filter(self, **selection: Unpack[SelectionKeywords]) -> TimeoutFilter:
        if selection.get("labels"):
            self._finding_labels("finding timeouts by labels")
        return filter_of(**selection)

    def _finding_labels(self, what: str) -> FindsByLabels:
        store = self._store
        if isinstance(store, FindsByLabels):
            return store
        raise Unsupported(
            what,
            f"the store {type(store).__name__} has no cancel_where",
            "List the timeouts, and choose by saga, destination or due time",
        )


def _end_of_pause(until: datetime | timedelta | None, now: Micros) -> Micros | None:
    if isinstance(until, timedelta):
        return check_due(now + duration_micros(until))
    return None if until is None else check_due(to_micros(until))


class _Rerouting:
    """The sums over the batches of a reroute."""

    def __init__(self) -> None:
        self._rerouted: list[str] = []
        self._left: list[str] = []
        self._maybe_sent: list[str] = []

    def add(self, asked: Sequence[Key], done: Rerouted) -> None:
        """Add a batch of the keys *asked*."""
        changed = {key.id for key in done.keys}
        self._rerouted += [key.id for key in done.keys]
        self._left += [key.id for key in asked if key.id not in changed]
        self._maybe_sent += [key.id for key in done.maybe_sent]

    def result(self, searched_to: str | None) -> RerouteResult:
        """Return the sums; *searched_to* is given if the call ended before the last match."""
        return RerouteResult(
            rerouted=self._rerouted,
            left=self._left,
            maybe_sent=self._maybe_sent,
            searched_to=searched_to,
        )


def counted(store: TimeoutStore, which: TimeoutFilter) -> Count:
    """Return how many timeouts in *store* match, as far as counting is cheap."""
    if isinstance(store, Insight):
        return store.count_in_bounds(which)
    return Count(store.count(which))


def grouped(
    store: TimeoutStore, which: TimeoutFilter, by: GroupBy, limit: int, behind: Key | None = None
) -> Groups:
    """Return the numbers of the earliest *limit* matches in *store*, by *by*."""
    if isinstance(store, Insight):
        return store.groups(which, by, limit=limit, after=behind)
    views = map(view, store.list(which, limit=limit, after=behind))
    by_type = by is GroupBy.TYPE
    return Groups(Counter(each.message_type if by_type else each.destination for each in views))


def _page(store: TimeoutStore, which: TimeoutFilter, size: int, behind: Key | None) -> Page:
    if isinstance(store, Insight):
        return store.list_in_bounds(which, limit=size, after=behind)
    return Page(store.list(which, limit=size, after=behind))


def cursor_of(key: Key) -> str:
    """Return the cursor of *key*."""
    return f"{key.due}/{key.id}"


def key_at(cursor: str) -> Key:
    """Return the key at *cursor*. Raises InvalidMessage."""
    check_text("a cursor", cursor)
    due, slash, id_ = cursor.partition("/")
    if not slash or not due.removeprefix("-").isdecimal() or len(due) > len("-62135596800000000"):
        raise InvalidMessage(
            f"{cursor[:80]!r} is not a cursor; expected the text after which a search ended, "
            "such as 1893456000000000/ID"
        )
    return Key(int(due), id_)


def view(timeout: Timeout) -> TimeoutView:
    """Return *timeout* without its body."""
    types = enclosed_types(timeout.message)
    return TimeoutView(
        id=timeout.id,
        due=from_micros(timeout.due),
        destination=timeout.destination,
        saga_id=timeout.saga_id,
        message_id=timeout.message.id,
        message_type=types[0] if types else None,
        attempts=timeout.attempts,
        size=len(timeout.message.body),
        labels=labels_of(timeout.message),
        exception=timeout.message.headers.get(headers.EXCEPTION_TYPE),
        reason=timeout.message.headers.get(headers.EXCEPTION_MESSAGE),
    )
