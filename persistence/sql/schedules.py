"""The schedules of recurring timeouts: one row each, whose lock serialises changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Row, delete, func, select, update

from timeoutmgr.contracts import (
    CancelResult,
    LockedSchedule,
    RunState,
    ScheduleRecord,
    TimeoutState,
)
from timeoutmgr.contracts.audit import AuditEntry, ChangedBy
from timeoutmgr.crashpoints import reach
from timeoutmgr.message.instants import Micros

from .batch_writes import insert_missing
from .commands import TimeoutCommands
from .context import PATIENCE, StoreContext

Changed = TypeVar("Changed")
_IDLE: Final = "idle_in_transaction_session_timeout"


class Schedules:
    """Reads and changes the schedules of one endpoint."""

    def __init__(self, context: StoreContext, commands: TimeoutCommands) -> None:
        self._context = context
        self._commands = commands
        table = context.tables.recurring
        own = table.c.endpoint == context.endpoint
        self._read = select(table).where(own).order_by(table.c.name)

    def records(self) -> list[ScheduleRecord]:
        """Return the records, by name."""
        with self._context.database.read() as connection:
            return [_record(row) for row in connection.execute(self._read)]

    def change(self, name: str, change: Callable[[LockedSchedule], Changed]) -> Changed:
        """Call *change* with the locked row of *name*; insert a missing row first."""
        database = self._context.database
        while True:
            found = database.run(lambda connection: self._changed(connection, name, change))
            if found:
                return found[0]
            # In its own transaction: on MySQL, processes whose inserts collide would each keep a
            # shared lock on the row, and none could lock it for a change.
            database.run(lambda connection: self._insert(connection, name))
            reach("recurring.row_inserted")

    def _changed(
        self, connection: Connection, name: str, change: Callable[[LockedSchedule], Changed]
    ) -> list[Changed]:
        """Return a list with the result of *change*; an empty list if there is no row."""
        locked = SqlLockedSchedule(self._context, self._commands, connection, name)
        if not locked.is_kept:
            return []
        result = change(locked)
        reach("recurring.changed")
        return [result]

    def _insert(self, connection: Connection, name: str) -> None:
        values = {**asdict(ScheduleRecord(name=name)), "is_paused": 0}
        row = {**values, "endpoint": self._context.endpoint}
        insert_missing(connection, self._context.tables.recurring, [row])


class SqlLockedSchedule:
    """See :class:`timeoutmgr.contracts.LockedSchedule`; a transaction has locked its row."""

    def __init__(
        self, context: StoreContext, commands: TimeoutCommands, connection: Connection, name: str
    ) -> None:
        self._context = context
        self._commands = commands
        self.transaction: Final = connection
        """The transaction that locks the row."""
        table = context.tables.recurring
        self._own = (table.c.endpoint == context.endpoint, table.c.name == name)
        if connection.dialect.name == "postgresql":
            # A process that is stopped now must not lock out all other processes.
            connection.execute(select(func.set_config(_IDLE, PATIENCE, True)))
        with _short_wait(connection):
            row = connection.execute(select(table).where(*self._own).with_for_update()).first()
        self.is_kept = row is not None
        self.record = ScheduleRecord(name=name) if row is None else _record(row)
        """The record in the locked row."""

    def now(self) -> Micros:
        """Return the time that due times are compared with."""
        return self._context.now(self.transaction)

    def run_state(self, timeout_id: str) -> RunState | None:
        """Return the state of a run from its key."""
        keys = self._context.tables.keys
        one = (keys.c.endpoint == self._context.endpoint, keys.c.id == timeout_id)
        row = self.transaction.execute(select(keys.c.state, keys.c.closed_at).where(*one)).first()
        return None if row is None else RunState(TimeoutState(row.state), row.closed_at)

    def cancel(self, timeout_id: str, channel: str) -> CancelResult:
        """Cancel a run in this transaction."""
        return self._commands.cancel_in(self.transaction, timeout_id, channel)

    def audit(self, action: str, channel: str) -> None:
        """Record *action* in the audit in this transaction."""
        by, selection = ChangedBy(channel=channel), {"name": self.record.name}
        entry = AuditEntry(action=action, by=by, selection=selection, changed=1)
        self._commands.audit.write(self.transaction, entry)

    def write(self, record: ScheduleRecord) -> None:
        """Write *record* into the row."""
        table = self._context.tables.recurring
        values = {**asdict(record), "is_paused": int(record.is_paused)}
        self.transaction.execute(update(table).where(*self._own).values(values))
        self.record = record
        reach("recurring.record_written")

    def delete(self) -> None:
        """Delete the row."""
        self.transaction.execute(delete(self._context.tables.recurring).where(*self._own))


@contextmanager
def _short_wait(connection: Connection) -> Iterator[None]:
    """Have MySQL wait for a second at a time for a lock: the step of other schedules waits too.

    It has no limit for a process that is stopped now and keeps the lock.
    """
    if connection.dialect.name not in {"mysql", "mariadb"}:
        yield
        return
    connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 1")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = DEFAULT")


def _record(row: Row[Any]) -> ScheduleRecord:
    values = {name: value for name, value in row._mapping.items() if name != "endpoint"}
    return ScheduleRecord(**{**values, "is_paused": bool(row.is_paused)})
