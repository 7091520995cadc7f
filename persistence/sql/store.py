"""The timeout store of one endpoint in a SQL database."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Chunk,
    Clock,
    Key,
    LockedSchedule,
    LockedTimeouts,
    Repeat,
    ScheduleRecord,
    Timeout,
    TimeoutFilter,
    Transaction,
)
from timeoutmgr.database import Database, as_connection
from timeoutmgr.database.row_moves import MessageRows, Move
from timeoutmgr.database.session_locks import Liveness
from timeoutmgr.message.instants import LATEST, Micros

from .claim.claimer import Claimer, ClaimRequest
from .commands import SagaCommands, TimeoutCommands
from .context import SqlSettings, StoreContext
from .dispatch.in_database import InDatabaseDispatch
from .dispatch.lock import DispatchLock
from .dispatch.outcomes import supports_bulk_close
from .insert import Repeats, TimeoutInsert
from .maintenance import StoreMaintenance
from .queries import TimeoutQueries
from .tables import TimeoutTables

if TYPE_CHECKING:
    from .schedules import Schedules

Changed = TypeVar("Changed")


class SqlTimeoutStore(TimeoutQueries, StoreMaintenance):
    """Implements :class:`timeoutmgr.contracts.TimeoutStore`; each part has its own module.

    *atomic_dispatch* says that timeouts are sent in the transaction in which they are closed.
    """

    def __init__(
        self,
        endpoint: str,
        clock: Clock,
        *,
        database: Database,
        tables: TimeoutTables,
        settings: SqlSettings,
        liveness: Liveness,
        atomic_dispatch: bool = False,
    ) -> None:
        self.context: Final = StoreContext(
            endpoint=endpoint,
            database=database,
            tables=tables,
            settings=settings,
            clock=clock,
            liveness=liveness,
            atomic=atomic_dispatch,
            node=socket.gethostname()[:255],
            me=uuid4().hex,
        )
        TimeoutQueries.__init__(self, self.context)
        StoreMaintenance.__init__(self, self.context)
        self.claimer = Claimer(self.context)
        self._dispatch_lock = DispatchLock(self.context, self.notify_stored)
        self._commands = TimeoutCommands(self.context)
        self._saga_commands = SagaCommands(self.context)
        self._repeats = Repeats(self.context, self._commands)
        self._insert = TimeoutInsert(self.context, self._repeats)

    @property
    def endpoint(self) -> str:
        """The endpoint whose timeouts these are."""
        return self.context.endpoint

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        """Return the time that due times are compared with."""
        if transaction is not None:
            return self.context.now(as_connection(transaction))
        if self.context.has_database_clock:
            return self.context.database.now(self.context.clock)
        return self.context.clock.now()

    @property
    def goes_by_host(self) -> bool:
        """Whether due times are compared with the host's clock, not with the database's."""
        return not self.context.has_database_clock

    def ping(self) -> None:
        """Return if the database answers."""
        self.context.database.ping()

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        """Store all or none; return the timeouts whose id was used before.

        Raises MessageRejected for a message that cannot be stored, and IdInUse.
        """
        repeats = self._insert.store_many(timeouts, transaction)
        if timeouts and transaction is None:
            self.notify_stored(min(timeout.due for timeout in timeouts))
        return repeats

    def examine(self, timeouts: Sequence[Timeout], *, transaction: Transaction) -> Sequence[Repeat]:
        """Return the repeats among *timeouts*, without storing."""
        return self._repeats.examine(timeouts, transaction)

    def claim(
        self,
        now: Micros,
        limit: int,
        owner: str,
        *,
        chunks: int = 1,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> Chunk:
        """Hand out at most *chunks* times *limit* keys that are due, or soon, to *owner*."""
        request = ClaimRequest(now=now, size=limit, owner=owner, chunks=chunks, ahead=ahead)
        return self.claimer.claim(request, transaction)

    def lock_for_dispatch(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[LockedTimeouts]:
        """Take the timeouts of *keys* that are due, or are *ahead* from now, in hand."""
        return self._dispatch_lock.lock_for_dispatch(token, keys, ahead, transaction)

    def mover(self, into: MessageRows, allows: Callable[[str], bool]) -> Move | None:
        """Return the move of timeouts *into* queues of this very PostgreSQL database, if any."""
        return (
            InDatabaseDispatch(self.context, into, allows).move_many
            if supports_bulk_close(self.context)
            else None
        )

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        """Give a claim back that was not, or perhaps not, handed on."""
        self.claimer.release(token, maybe_sent)

    def notify_stored(self, due: Micros) -> None:
        """Hear that a timeout of *due* was stored, and is committed."""
        self.claimer.notify_stored(due)

    def next_due(self) -> Micros | None:
        """Return the earliest due instant stored, or None."""
        return self.claimer.next_due()

    def list(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> list[Timeout]:
        """Return a page of pending timeouts."""
        return self.page(which, limit, after)

    def cancel(self, timeout_id: str, *, channel: str | None = None) -> CancelResult:
        """Cancel one."""
        return self._commands.cancel(timeout_id, channel)

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
        channel: str | None = None,
    ) -> int:
        """Cancel all of a saga that are not in other hands; return how many."""
        until = LATEST if sent_until is None else sent_until
        return self._saga_commands.cancel(saga_id, until, frozenset(keeping), transaction, channel)

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        """Move a timeout to another due time."""
        result = self._commands.reschedule(timeout_id, due)
        self.notify_stored(due)
        return result

    def schedules(self) -> Sequence[ScheduleRecord]:
        """Return the records of the endpoint's recurring timeouts, by name."""
        return self._recurring.records()

    def change_schedule(self, name: str, change: Callable[[LockedSchedule], Changed]) -> Changed:
        """Call *change* with the schedule *name*, locked, in one transaction."""
        return self._recurring.change(name, change)

    @cached_property
    def _recurring(self) -> Schedules:
        # Loaded late: most endpoints have no schedules.
        from .schedules import Schedules

        return Schedules(self.context, self._commands)
