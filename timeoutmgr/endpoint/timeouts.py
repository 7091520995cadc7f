"""The pending timeouts of an endpoint: look at them, cancel them, move them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Count,
    CountsInBounds,
    Key,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.handlers import enclosed_types
from timeoutmgr.instants import Micros, from_micros, to_micros
from timeoutmgr.validation import due_of

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


class Timeouts:
    """What can be asked of, and done to, the timeouts that an endpoint's manager stores."""

    def __init__(
        self,
        store: TimeoutStore,
        wake: Callable[[Micros], None],
        waiting: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._store = store
        self._wake = wake
        self._waiting = waiting

    def waiting(self) -> int | None:
        """Return how many messages wait in ``<endpoint>.Timeouts`` to be stored.

        None if that is not known, while the broker is away. A message that waits is not listed
        yet; a cancel of it answers ``will_be_cancelled``.
        """
        return self._waiting()

    def now(self) -> Micros:
        """Return the time that due times are compared with: the store's own."""
        return self._store.now()

    def cancel(self, timeout_id: str) -> CancelResult:
        """Cancel one; see CancelResult for what each answer promises."""
        return self._store.cancel(timeout_id)

    def cancel_saga(self, saga_id: str) -> int:
        """Cancel all timeouts stored for a saga; return how many."""
        if not saga_id:
            raise InvalidMessage(
                "Invalid saga id specified, clear timeouts is only supported for saga instances"
            )
        return self._store.cancel_saga(saga_id)

    def reschedule(
        self,
        timeout_id: str,
        *,
        deliver_at: datetime | None = None,
        delay: timedelta | float | None = None,
    ) -> ChangeResult:
        """Move one to another due time: an aware datetime, or a delay from now."""
        due = due_of(delay, deliver_at, self._store.now())
        if due is None:
            raise InvalidMessage("reschedule needs deliver_at or delay")
        result = self._store.reschedule(timeout_id, due)
        if result in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT):
            self._wake(due)
        return result

    def send_now(self, timeout_id: str) -> ChangeResult:
        """Have one dispatched at once."""
        return self.reschedule(timeout_id, delay=0)

    def show(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of one and, while it is pending, the whole of it."""
        return self._store.find(timeout_id)

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
            page = self._store.list(which, limit=size, after=after)
            yield from map(view, page)
            if len(page) < size:
                return
            after = page[-1].key
            left = None if left is None else left - len(page)

    def count(
        self,
        *,
        saga_id: str | None = None,
        destination: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> int:
        """Return how many pending timeouts match, by reading all of them."""
        return self._store.count(_filter(saga_id, destination, due_from, due_before))

    def count_in_bounds(
        self,
        *,
        saga_id: str | None = None,
        destination: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> Count:
        """Return how many pending timeouts match: exact up to 10,000, else at least so many.

        Of a destination no more than the first 50,000 timeouts are read.
        """
        return counted(self._store, _filter(saga_id, destination, due_from, due_before))


def counted(store: TimeoutStore, which: TimeoutFilter) -> Count:
    """Return how many timeouts in *store* match, as far as the count is cheap there."""
    if isinstance(store, CountsInBounds):
        return store.count_in_bounds(which)
    return Count(store.count(which))


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
