"""The pending timeouts of an endpoint, for asyncio programs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Protocol, TypeVar, Unpack

from timeoutmgr.contracts import (
    Cancelled,
    CancelResult,
    ChangeResult,
    Count,
    GroupBy,
    HistoryEntry,
    Timeout,
    TimeoutState,
)
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.pauses import Pause
from timeoutmgr.endpoint.bulk_runs import BY_API, SelectionKeywords
from timeoutmgr.endpoint.restoration import RestoreReport
from timeoutmgr.endpoint.timeouts import (
    RerouteResult,
    TimeoutGroups,
    TimeoutPage,
    Timeouts,
    TimeoutView,
)
from timeoutmgr.message import routes
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.labels import NO_LABELS, Labels

Result = TypeVar("Result")

_PAGE: Final = 500


class RunsCalls(Protocol):
    """Runs a function in a thread."""

    def __call__(self, function: Callable[[], Result]) -> Awaitable[Result]:
        """Return an awaitable of the function's result."""
        ...


class AsyncTimeouts:
    """The queries and changes of ``Timeouts``, as coroutines."""

    def __init__(self, timeouts: Timeouts, run: RunsCalls) -> None:
        self._timeouts = timeouts
        self._run = run

    async def waiting(self) -> int | None:
        """Return the number of messages that wait to be stored; None while the broker is away."""
        return await self._run(self._timeouts.waiting)

    async def now(self) -> Micros:
        """Return the time that due times are compared with: the store's own."""
        return await self._run(self._timeouts.now)

    async def cancel(
        self, timeout_id: str, *, channel: str = routes.API, by: ChangedBy | None = None
    ) -> CancelResult:
        """Cancel a timeout; CancelResult explains the promise of each answer."""
        return await self._run(lambda: self._timeouts.cancel(timeout_id, channel=channel, by=by))

    async def cancel_saga(self, saga_id: str, *, channel: str = routes.API) -> Sequence[str]:
        """Cancel all timeouts stored for a saga; return the ids of the cancelled timeouts."""
        return await self._run(lambda: self._timeouts.cancel_saga(saga_id, channel=channel))

    async def reschedule(
        self,
        timeout_id: str,
        *,
        deliver_at: datetime | None = None,
        delay: timedelta | float | None = None,
        channel: str = routes.API,
        by: ChangedBy | None = None,
    ) -> ChangeResult:
        """Move a timeout to another due time: an aware datetime, or a delay from now."""
        return await self._run(
            lambda: self._timeouts.reschedule(
                timeout_id, deliver_at=deliver_at, delay=delay, channel=channel, by=by
            )
        )

    async def cancel_where(
        self, *, labels: Labels = NO_LABELS, saga_id: str | None = None, channel: str = routes.API
    ) -> Sequence[Cancelled]:
        """Cancel all timeouts of one label or of one saga, as ``Timeouts.cancel_where``."""
        return await self._run(
            lambda: self._timeouts.cancel_where(labels=labels, saga_id=saga_id, channel=channel)
        )

    async def reschedule_where(
        self,
        *,
        labels: Labels = NO_LABELS,
        saga_id: str | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | float | None = None,
    ) -> Mapping[str, ChangeResult]:
        """Move all stored timeouts of labels and a saga, as ``Timeouts.reschedule_where``."""
        return await self._run(
            lambda: self._timeouts.reschedule_where(
                labels=labels, saga_id=saga_id, deliver_at=deliver_at, delay=delay
            )
        )

    async def send_now(
        self, timeout_id: str, *, channel: str = routes.API, by: ChangedBy | None = None
    ) -> ChangeResult:
        """Dispatch a timeout at once."""
        return await self._run(lambda: self._timeouts.send_now(timeout_id, channel=channel, by=by))

    async def pause(
        self,
        destination: str | None = None,
        *,
        until: datetime | timedelta | None = None,
        by: ChangedBy = BY_API,
    ) -> bool:
        """Dispatch nothing to *destination*, or nothing at all, as ``Timeouts.pause``."""
        return await self._run(lambda: self._timeouts.pause(destination, until=until, by=by))

    async def restored(
        self, at: datetime, *, overdue: timedelta = timedelta(minutes=1), by: ChangedBy = BY_API
    ) -> RestoreReport:
        """Release the claims of a restored store, and report, as ``Timeouts.restored``."""
        return await self._run(lambda: self._timeouts.restored(at, overdue=overdue, by=by))

    async def resume(self, destination: str | None = None, *, by: ChangedBy = BY_API) -> int | None:
        """End a pause; return how many timeouts are returned, None if there was none."""
        return await self._run(lambda: self._timeouts.resume(destination, by=by))

    async def pauses(self) -> Sequence[Pause]:
        """Return the pauses in force."""
        return await self._run(self._timeouts.pauses)

    async def reroute(
        self,
        to: str,
        *,
        dry_run: bool = False,
        limit: int = 10_000,
        after: str | None = None,
        channel: str = routes.API,
        **selection: Unpack[SelectionKeywords],
    ) -> RerouteResult:
        """Send the pending timeouts that match to the queue *to*, as ``Timeouts.reroute``."""
        return await self._run(
            lambda: self._timeouts.reroute(
                to, dry_run=dry_run, limit=limit, after=after, channel=channel, **selection
            )
        )

    async def show(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of a timeout and, while it is pending, the timeout itself."""
        return await self._run(lambda: self._timeouts.show(timeout_id))

    async def history(self, timeout_id: str) -> Sequence[HistoryEntry] | None:
        """Return the newest 100 events of a timeout, oldest first; None if there is no history."""
        return await self._run(lambda: self._timeouts.history(timeout_id))

    async def list(
        self, *, limit: int | None = None, **selection: Unpack[SelectionKeywords]
    ) -> AsyncIterator[TimeoutView]:
        """Yield pending timeouts by due time, read page by page."""
        found = self._timeouts.list(limit=limit, **selection)
        while page := await self._run(lambda: [*islice(found, _PAGE)]):
            for one in page:
                yield one

    async def list_in_bounds(
        self, *, limit: int = 100, after: str | None = None, **selection: Unpack[SelectionKeywords]
    ) -> TimeoutPage:
        """Return the first *limit* pending timeouts behind the cursor *after*, by due time."""
        return await self._run(
            lambda: self._timeouts.list_in_bounds(limit=limit, after=after, **selection)
        )

    async def count(self, **selection: Unpack[SelectionKeywords]) -> int:
        """Return how many pending timeouts match, by reading all of them."""
        return await self._run(lambda: self._timeouts.count(**selection))

    async def groups(
        self,
        by: GroupBy,
        *,
        limit: int = 10_000,
        after: str | None = None,
        **selection: Unpack[SelectionKeywords],
    ) -> TimeoutGroups:
        """Return how many of the first *limit* timeouts behind *after* have each value of *by*."""
        return await self._run(
            lambda: self._timeouts.groups(by, limit=limit, after=after, **selection)
        )

    async def count_in_bounds(self, **selection: Unpack[SelectionKeywords]) -> Count:
        """Return how many pending timeouts match: exact up to 10,000, otherwise a lower bound."""
        return await self._run(lambda: self._timeouts.count_in_bounds(**selection))
