"""The timeout store of one endpoint in a SQL database."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from sqlalchemy import Connection

from timeoutmgr.contracts import (
    Cancelled,
    CancelResult,
    ChangeResult,
    Chunk,
    Clock,
    Key,
    LockedSchedule,
    LockedTimeouts,
    Repeat,
    Rerouted,
    ScheduleRecord,
    Timeout,
    TimeoutFilter,
    Transaction,
)
from timeoutmgr.contracts.audit import AuditEntry, AuditRecord, AuditVerdict, ChangedBy
from timeoutmgr.contracts.pauses import Pause, Unparked
from timeoutmgr.contracts.sagas import SagaClear
from timeoutmgr.database import Database, as_connection
from timeoutmgr.database.row_moves import MessageRows, Move
from timeoutmgr.database.session_locks import Liveness
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.message.routes import API
from timeoutmgr.resilience.after_fork import cached_property

from .audit import Audit
from .claim.claimer import Claimer, ClaimRequest
from .commands import SagaCommands, TimeoutCommands
from .context import SqlSettings, StoreContext
from .dispatch.in_database import InDatabaseDispatch
from .dispatch.lock import DispatchLock
from .dispatch.outcomes import supports_bulk_close
from .insert import Repeats, TimeoutInsert
from .insight import StoreInsight
from .load_counts import LoadCounter
from .maintenance import StoreMaintenance
from .mass_cancel import MassCancel
from .pauses import Pauses
from .row_changes import RowChanges
from .sagas import ClearedSagas
from .tables import TimeoutTables

if TYPE_CHECKING:
    from timeoutmgr.contracts.bulk_runs import BulkChange, BulkPlan, BulkRun, BulkStep

    from .bulk_runs import SqlBulkRuns
    from .schedules import Schedules

Changed = TypeVar("Changed")


class SqlTimeoutStore(StoreInsight, StoreMaintenance):
    """Implements :class:`timeoutmgr.contracts.TimeoutStore`; each part has its own module.

    *atomic_dispatch* says that timeouts are sent and closed in one transaction.
    """

    # Each part is built at its first use: most stores never use most of them.
    _saga_commands = cached_property(lambda s: SagaCommands(s.context, s._cleared, s._audit))
    _changes = cached_property(lambda s: RowChanges(s.context))
    _mass_cancel = cached_property(
        lambda s: MassCancel(s.context, s._cleared, s._audit, s._changes)
    )
    _pauses = cached_property(lambda s: Pauses(s.context, s._audit, s._changes))
    _load_counter = cached_property(lambda s: LoadCounter(s.context))

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
        StoreInsight.__init__(self, self.context)
        StoreMaintenance.__init__(self, self.context)
        self.claimer = Claimer(self.context)
        self._dispatch_lock = DispatchLock(self.context, self.notify_stored)
        self._audit = Audit(self.context)
        self._commands = TimeoutCommands(self.context, self._audit)
        self._cleared = ClearedSagas(self.context)
        self._repeats = Repeats(self.context, self._commands)
        self._insert = TimeoutInsert(self.context, self._repeats, self._cleared)

    @property
    def endpoint(self) -> str:
        """The endpoint whose timeouts these are."""
        return self.context.endpoint

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        """Return the time that due times are compared with."""
        if transaction is not None:
            return self.context.now(as_connection(transaction))
        return self.context.now_alone()

    def one_read(self) -> AbstractContextManager[None]:
        """Let the reads inside the block share a transaction."""
        return self.context.one_read()

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
        """Claim for *owner* at most *chunks* times *limit* keys that are due now or soon."""
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
        """Lock for dispatch the timeouts of *keys* that are due now or by *ahead* from now."""
        return self._dispatch_lock.lock_for_dispatch(token, keys, ahead, transaction)

    def mover(self, into: MessageRows, allows: Callable[[str], bool]) -> Move | None:
        """Return the move of timeouts *into* queues of this same PostgreSQL database, or None."""
        return (
            InDatabaseDispatch(self.context, into, allows).move_many
            if supports_bulk_close(self.context)
            else None
        )

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        """Give back a claim that was not, or perhaps not, passed on."""
        self.claimer.release(token, maybe_sent)

    def notify_stored(self, due: Micros) -> None:
        """Note that a timeout due at *due* was stored and committed."""
        self.claimer.notify_stored(due)

    def next_due(self) -> Micros | None:
        """Return the earliest due instant stored, or None."""
        return self.claimer.next_due()

    def list(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> list[Timeout]:
        """Return a page of pending timeouts."""
        return self.page(which, limit, after)

    def cancel(
        self, timeout_id: str, *, channel: str | None = None, by: ChangedBy | None = None
    ) -> CancelResult:
        """Cancel a timeout."""
        return self._commands.cancel(timeout_id, channel, by)

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
        channel: str | None = None,
    ) -> Sequence[str]:
        """Cancel the timeouts of a saga that no dispatcher has locked; return their ids."""
        order = SagaClear(
            saga_id=saga_id,
            order_id="",
            sent=LATEST if sent_until is None else sent_until,
            kept=frozenset(keeping),
            channel=channel,
        )
        return self._saga_commands.cancel(order, transaction)

    def cancel_where(
        self, which: TimeoutFilter, *, sent_until: Micros, channel: str | None = None
    ) -> Sequence[Cancelled]:
        """Cancel the timeouts of a label or saga; return all that were found."""
        return self._mass_cancel.cancel(which, sent_until, channel)

    def await_clears(self, transaction: Transaction) -> None:
        """Wait until *transaction* may clear sagas."""
        self._cleared.lock(as_connection(transaction), alone=True)

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        """Cancel the timeouts that *order* affects, and remember it; return their ids."""
        return self._saga_commands.cancel(order, transaction, remember=True)

    def reschedule(
        self,
        timeout_id: str,
        due: Micros,
        *,
        channel: str | None = None,
        action: str = "reschedule",
        by: ChangedBy | None = None,
    ) -> ChangeResult:
        """Move a timeout to another due time."""
        result = self._commands.reschedule(timeout_id, due, action, channel, by)
        self.notify_stored(due)
        return result

    def reroute(
        self, keys: Sequence[Key], destination: str, *, channel: str | None = None
    ) -> Rerouted:
        """Change the destination of *keys* to *destination*, unless a dispatcher has them."""

        def work(connection: Connection) -> Rerouted:
            done = self._changes.reroute_keys(connection, keys, destination, channel)
            if done.keys:
                by = ChangedBy(channel=channel or API)
                selection = {"to": destination, "number_of_keys": len(keys)}
                entry = AuditEntry(
                    action="reroute", by=by, selection=selection, changed=len(done.keys)
                )
                self._audit.write(connection, entry)
            return done

        return self.context.database.run(work) if keys else Rerouted(())

    def pause(self, destination: str | None, until: Micros | None, by: ChangedBy) -> bool:
        """Pause *destination* (None: all) until an instant; return whether it was not paused."""
        return self._pauses.pause(destination, until, by)

    def resume(self, destination: str | None, by: ChangedBy) -> bool:
        """Begin to end the pause of *destination*; return whether there was a pause."""
        return self._pauses.resume(destination, by)

    def unpark(self) -> Unparked:
        """Return parked timeouts of pauses that are ending to their original place."""
        done = self._pauses.unpark()
        if done.returned:
            self.notify_stored(done.at)
        return done

    def run_maintenance(self) -> bool:
        """Do a short step of upkeep; first unpark timeouts of an interrupted resume."""
        return not self.unpark().is_last or super().run_maintenance() or self._load_counter.step()

    def request_load_counts(self, *, by_destination: bool = False) -> None:
        """Have the endpoint's processes count load by bucket for the next hour."""
        self._load_counter.request(by_destination)

    def pauses(self) -> Sequence[Pause]:
        """Return the pauses in force."""
        return self._pauses.pauses()

    def plan(
        self,
        which: TimeoutFilter | Sequence[str],
        change: BulkChange,
        by: ChangedBy,
        *,
        limit: int | None = None,
        export: Callable[[str], None] | None = None,
    ) -> BulkPlan:
        """Select timeouts for a bulk run, without changing anything."""
        return self._bulk.plan(which, change, by, limit, export)

    def bulk_run(self, run_id: str) -> BulkRun | None:
        """Return a bulk run, or None."""
        return self._bulk.find(run_id)

    def bulk_runs(self, *, limit: int = 100) -> Sequence[BulkRun]:
        """Return the newest bulk runs, the newest first."""
        return self._bulk.newest(limit)

    def bulk_keys(self, run_id: str, *, after: int = -1) -> Sequence[Key]:
        """Return the keys of the first batch after number *after*."""
        return self._bulk.keys(run_id, after)

    def begin_bulk(self, run_id: str, by: ChangedBy, *, undo: bool = False) -> BulkRun:
        """Begin to apply a bulk run, or to *undo* it."""
        return self._bulk.begin(run_id, by, undo=undo)

    def bulk_step(self, run_id: str) -> BulkStep | None:
        """Change the timeouts of one batch; return None if no batch is left."""
        step = self._bulk.step(run_id)
        if step is not None and step.earliest is not None:
            self.notify_stored(step.earliest)
        return step

    def end_bulk(self, run_id: str, by: ChangedBy) -> BulkRun:
        """End a bulk run if no batch is left."""
        return self._bulk.end(run_id, by)

    @cached_property
    def _bulk(self) -> SqlBulkRuns:
        # Imported late: most processes change no timeouts in bulk.
        from .bulk_runs import SqlBulkRuns

        return SqlBulkRuns(self.context, self, self._audit)

    def write_audit(self, entry: AuditEntry) -> None:
        """Store *entry* in a transaction of its own."""
        self.context.database.run(lambda connection: self._audit.write(connection, entry))

    def audit(self, *, limit: int = 100, run_id: str | None = None) -> Sequence[AuditRecord]:
        """Return the newest rows of the audit, the oldest first."""
        return self._audit.newest(limit, run_id)

    def verify_audit(self, heads: Mapping[str, tuple[int, str]]) -> AuditVerdict:
        """Check all rows of the audit."""
        return self._audit.verify(heads)

    def schedules(self) -> Sequence[ScheduleRecord]:
        """Return the records of the endpoint's recurring timeouts, by name."""
        return self._recurring.records()

    def change_schedule(self, name: str, change: Callable[[LockedSchedule], Changed]) -> Changed:
        """Call *change* with the schedule *name*, locked, in one transaction."""
        return self._recurring.change(name, change)

    @cached_property
    def _recurring(self) -> Schedules:
        # Imported late: most endpoints have no schedules.
        from .schedules import Schedules

        return Schedules(self.context, self._commands)
