"""The pending timeouts of an endpoint: queries, cancels and changes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Count,
    CountsInBounds,
    HistoryEntry,
    KeepsHistory,
    Key,
    ListsInBounds,
    Page,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import routes
from timeoutmgr.message.instants import Micros, from_micros, to_micros
from timeoutmgr.message.message import enclosed_types
from timeoutmgr.message.validation import due_of

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutView:
    """A pending timeout as a person or a command sees it; *size* is the body's bytes."""

    id: str
    due: datetime
    destination: str
    saga_id: str | None
    message_id: str
    message_type: str | None
    attempts: int
    size: int


@dataclass(frozen=True, slots=True)
class TimeoutPage:
    """The earliest timeouts that match; *searched_to* is a cursor if the search ended there.

    Timeouts behind that cursor may match too: give it as *after* to go on.
    """

    timeouts: Sequence[TimeoutView]
    searched_to: str | None = None


class Timeouts:
    """Queries and changes of the timeouts that an endpoint's manager stores.

    Each raises SchemaMissing, with the command to run, if the tables do not exist.
    """

    def __init__(
        self,
        store: TimeoutStore,
        wake: Callable[[Micros], None],
        waiting: Callable[[], int | None] = lambda: None,
        schema_expected: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._store = store
        self._wake = wake
        self._waiting = waiting
        self._schema_expected = schema_expected

    def waiting(self) -> int | None:
        """Return the number of messages in ``<endpoint>.Timeouts`` that wait to be stored.

        None while the broker is away. A waiting message is not listed yet; its cancel answers
        ``will_be_cancelled``.
        """
        return self._waiting()

    def now(self) -> Micros:
        """Return the time that due times are compared with: the store's own."""
        return self._store.now()

    def cancel(self, timeout_id: str, *, channel: str = routes.API) -> CancelResult:
        """Cancel a timeout; CancelResult explains the promise of each answer.

        *channel* names the origin of the order in the history, cut to 400 characters.
        """
        with self._schema_expected():
            if isinstance(self._store, KeepsHistory):
                return self._store.cancel(timeout_id, channel=routes.bounded(channel))
            return self._store.cancel(timeout_id)

    def cancel_saga(self, saga_id: str, *, channel: str = routes.API) -> int:
        """Cancel all timeouts stored for a saga; return how many.

        *channel* names the origin of the order in the history, cut to 400 characters.
        """
        if not saga_id:
            raise InvalidMessage(
                "Invalid saga id specified, clear timeouts is only supported for saga instances"
            )
        with self._schema_expected():
            if isinstance(self._store, KeepsHistory):
                return self._store.cancel_saga(saga_id, channel=routes.bounded(channel))
            return self._store.cancel_saga(saga_id)

    def reschedule(
        self,
        timeout_id: str,
        *,
        deliver_at: datetime | None = None,
        delay: timedelta | float | None = None,
    ) -> ChangeResult:
        """Move a timeout to another due time: an aware datetime, or a delay from now."""
        with self._schema_expected():
            due = due_of(delay, deliver_at, self._store.now())
            if due is None:
                raise InvalidMessage("reschedule needs deliver_at or delay")
            result = self._store.reschedule(timeout_id, due)
        if result in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT):
            self._wake(due)
        return result

    def send_now(self, timeout_id: str) -> ChangeResult:
        """Dispatch a timeout at once."""
        return self.reschedule(timeout_id, delay=0)

    def show(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of a timeout and, while it is pending, the timeout itself."""
        with self._schema_expected():
            return self._store.find(timeout_id)

    def history(self, timeout_id: str) -> Sequence[HistoryEntry] | None:
        """Return the newest 100 events of a timeout, oldest first; None if there is no history.

        ``persistence_options.history`` says which events are recorded.
        """
        return self._store.history(timeout_id) if isinstance(self._store, KeepsHistory) else None

    def list(
        self,
        *,
        saga_id: str | None = None,
        destination: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[TimeoutView]:
        """Yield pending timeouts by due time, read page by page."""
        which = _filter(saga_id, destination, due_from, due_before)
        after: Key | None = None
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            with self._schema_expected():
                page = self._store.list(which, limit=size, after=after)
            yield from map(view, page)
            if len(page) < size:
                return
            after = page[-1].key
            left = None if left is None else left - len(page)

    def list_in_bounds(
        self,
        *,
        saga_id: str | None = None,
        destination: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> TimeoutPage:
        """Return the first *limit* pending timeouts behind the cursor *after*, by due time.

        For a destination the search ends after 50,000 timeouts without a match to list.
        Raises InvalidMessage for a text that is not a cursor.
        """
        which = _filter(saga_id, destination, due_from, due_before)
        behind = None if after is None else _key_at(after)
        found: list[TimeoutView] = []
        while len(found) < limit:
            size = min(_PAGE, limit - len(found))
            page = _page(self._store, which, size, behind)
            found += map(view, page.timeouts)
            if page.searched_to is not None:
                return TimeoutPage(found, _cursor(page.searched_to))
            if len(page.timeouts) < size:
                break
            behind = page.timeouts[-1].key
        return TimeoutPage(found)

    def count(
        self,
        *,
        saga_id: str | None = None,
        destination: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> int:
        """Return how many pending timeouts match, by reading all of them."""
        with self._schema_expected():
            return self._store.count(_filter(saga_id, destination, due_from, due_before))

    def count_in_bounds(
        self,
        *,
        saga_id: str | None = None,
        destination: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> Count:
        """Return how many pending timeouts match: exact up to 10,000, otherwise a lower bound.

        For a destination only the first 50,000 timeouts are read.
        """
        with self._schema_expected():
            return counted(self._store, _filter(saga_id, destination, due_from, due_before))


def counted(store: TimeoutStore, which: TimeoutFilter) -> Count:
    """Return how many timeouts in *store* match, as far as the count is cheap there."""
    if isinstance(store, CountsInBounds):
        return store.count_in_bounds(which)
    return Count(store.count(which))


def _page(store: TimeoutStore, which: TimeoutFilter, size: int, behind: Key | None) -> Page:
    if isinstance(store, ListsInBounds):
        return store.list_in_bounds(which, limit=size, after=behind)
    return Page(store.list(which, limit=size, after=behind))


def _cursor(key: Key) -> str:
    return f"{key.due}/{key.id}"


def _key_at(cursor: str) -> Key:
    due, slash, id_ = cursor.partition("/")
    if not slash or not due.removeprefix("-").isdecimal():
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
    )


def _filter(
    saga_id: str | None,
    destination: str | None,
    due_from: datetime | None,
    due_before: datetime | None,
) -> TimeoutFilter:
    return TimeoutFilter(
        saga_id=saga_id,
        destination=destination,
        due_from=None if due_from is None else to_micros(due_from),
        due_before=None if due_before is None else to_micros(due_before),
    )
