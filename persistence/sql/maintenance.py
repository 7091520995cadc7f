"""Maintenance of the tables: heartbeats, retention, and the removal of an endpoint."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Select,
    Table,
    any_,
    bindparam,
    delete,
    exists,
    func,
    select,
    update,
)

from timeoutmgr.contracts import ProcessRecord, WakePoller, Wakeups
from timeoutmgr.contracts.bulk_runs import PLAN_KEPT, BulkState
from timeoutmgr.contracts.reports import DAY, LIVE
from timeoutmgr.contracts.sagas import REMEMBERED
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.database.engine import execute_many
from timeoutmgr.database.notifications import NOTIFY, NotificationListener, channel_of
from timeoutmgr.database.session_locks import owner_folder
from timeoutmgr.errors import FeatureRefused, StorageUnavailable
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import cached_property, own_name
from timeoutmgr.resilience.thread_task import ThreadTask

from .batch_writes import insert_missing
from .claim.rows import DueKeys
from .context import StoreContext
from .partitions.upkeep import Partitions
from .rows import to_json
from .tables import TimeoutTables

logger = logging.getLogger(__name__)

# --- how a poller learns of timeouts that the endpoint's other processes store --------------------
# A process asks the others for a poll: by NOTIFY, or by a file's time. While another process lives,
# peeks at the next due time cover servers without NOTIFY, and requests that were never sent because
# their process died. Waiting for the end of the other process' session lock was tried and given up
# (ADR 19): on PostgreSQL, a statement that waits for an advisory lock keeps its snapshot, so no
# dead row of the database could be vacuumed while two processes live.

PEEK_EVERY: Final = 1.0
"""Seconds between two peeks on a server without NOTIFY."""
PEEK_SELDOM: Final = 5.0
"""Seconds between two peeks if other processes notify: these find only lost notifications."""
_COMMIT: Final = 1_000_000
"""Microseconds that a commit may take: the next peek still sees a timeout that is due by then."""


def wakeups_of(context: StoreContext, wake: WakePoller, has_others: Callable[[], bool]) -> Wakeups:
    """Return the wakeups of the endpoint; *has_others* says whether another process lives."""
    name = f"stored in {context.tables.timeouts.fullname} for {context.endpoint}"
    way: Wakeups | None = None
    if context.database.is_sqlite:
        way = FileWakeups(owner_folder(context.database) / channel_of(name), wake)
    elif context.database.dialect.name == "postgresql":
        way = NotifyWakeups(context, channel_of(name), wake, has_others)
    return DuePeek(context, wake, has_others, way)


class DuePeek(ThreadTask):
    """A thread that reads the next due time now and then; *way* is a way to notify, if any.

    So the poller learns when the next timeout is due, whichever process stored it, even if that
    process died. While no other process lives, the thread reads nothing.
    """

    thread_name = "timeoutmgr-due-peek"

    def __init__(
        self,
        context: StoreContext,
        wake: WakePoller,
        has_others: Callable[[], bool],
        way: Wakeups | None = None,
    ) -> None:
        super().__init__()
        self._context: Final = context
        self._keys: Final = DueKeys(context)
        self._wake = wake
        self._has_others = has_others
        self._way = way
        self._every: Final = PEEK_EVERY if way is None else PEEK_SELDOM
        self._seen: Micros = context.clock.now()

    def notify(self) -> None:
        """Ask all other processes for a poll; if there is no way, their peeks find the timeout."""
        if self._way is not None:
            self._way.notify()

    def check(self) -> None:
        """Start peeking if the heartbeat has seen another process."""
        if self._way is not None:
            self._way.check()
        if self._has_others() and self._thread is None:
            self.start()

    def close(self) -> None:
        """Stop peeking and listening; return when the thread has ended."""
        self.stop()
        if self._way is not None:
            self._way.close()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            if not self._has_others():
                continue
            try:
                self._peek()
            except Exception as error:
                # Ignore any error of a driver: the poller itself reports an outage.
                logger.debug(
                    "due peek of %s did not read the next due time: %s",
                    self._context.endpoint,
                    on_one_line(error),
                    extra={"event": "due_peek_failed", "endpoint": self._context.endpoint},
                )

    def _peek(self) -> None:
        """Read the first due time after the previous peek, and wake the poller."""
        with self._context.reading() as connection:
            now, due = self._keys.upcoming(connection, self._seen - _COMMIT)
        self._seen = now if self._context.has_database_clock else self._context.clock.now()
        if due is not None:
            self._wake(due)


class NotifyWakeups:
    """Wakeups by PostgreSQL's NOTIFY; a process that is alone opens no listening connection."""

    def __init__(
        self, context: StoreContext, channel: str, wake: WakePoller, has_others: Callable[[], bool]
    ) -> None:
        self._database: Final = context.database
        self._channel: Final = channel
        self._me: Final = context.me
        self._wake = wake
        self._has_others = has_others
        self._listener: Final = NotificationListener(
            context.database, channel, hear=self._hear, missed=wake
        )

    def notify(self) -> None:
        """Ask all other processes for a poll, even if this process knows of none."""
        parameters = {"channel": self._channel, "payload": own_name(self._me)}
        self._database.run(lambda connection: connection.execute(NOTIFY, parameters))

    def check(self) -> None:
        """Listen if the heartbeat has seen another process."""
        if self._has_others():
            self._listener.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.stop()

    def _hear(self, payload: str) -> None:
        # A forked child is another process with the store of its parent.
        if payload != own_name(self._me):
            self._wake()


class FileWakeups:
    """Wakeups by the time of a file beside an SQLite database; the process that asks sets it."""

    def __init__(self, path: Path, wake: WakePoller) -> None:
        self._path: Final = path
        self._wake = wake
        self._seen = self._time()

    def notify(self) -> None:
        """Ask all other processes for a poll."""
        self.check()  # another process may have asked, and our time will overwrite its time
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            at = time.time_ns()
            os.utime(self._path, ns=(at, at))
        except OSError as error:
            raise StorageUnavailable(f"{self._path} could not be touched: {error}") from error
        self._seen = at  # not the file's actual time: another process may have asked since

    def check(self) -> None:
        """Read the time from the file system; this takes no statement."""
        now = self._time()
        if now != self._seen:
            self._seen = now
            self._wake()

    def close(self) -> None:
        """No-op."""

    def _time(self) -> int | None:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return None


_OVER: Final = (BulkState.COMPLETED, BulkState.UNDONE)
_NEVER_APPLIED: Final = (BulkState.PLANNING, BulkState.PLANNED)
"""States of bulk runs that expire; a run that is being applied or undone needs its keys."""
AT_ONCE: Final = 200
"""Rows of a table that one transaction removes. With 500, a concurrent dispatch was 1.8 times as
late; with 200, it is not later."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rows of one table, which are old if the column *age* is *retention* microseconds ago.

    *remove* removes them; with *find*, it removes the names that *find* found and locked.
    """

    find: Select[Any] | None
    remove: Delete
    oldest: Select[Any]
    retention: Micros


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The database's answer to a heartbeat.

    *has_others* says whether another process of the endpoint is alive. *ahead* is by how much the
    database's clock is ahead, without the time of the commit, if the statement returns it.
    """

    has_others: bool
    ahead: Micros | None = None


class StoreMaintenance:
    """Keeps the tables of one endpoint small and fast, and tracks its processes.

    Several processes may purge at once: each skips the rows that another has locked.
    """

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._partitions = Partitions(context)
        self._has_others = False

    @cached_property
    def _kinds(self) -> Sequence[_Kind]:
        tables, settings = self._context.tables, self._context.settings
        tombstones = duration_micros(settings.tombstone_retention)
        history = duration_micros(settings.history_retention)
        return (
            self._kind(tables.keys, "id", "closed_at", tombstones),
            self._kind(tables.history, "sequence", "at", history),
            self._kind(tables.processes, "owner", "heartbeat", tombstones),
            self._kind(tables.sagas, "saga_id", "cleared_at", REMEMBERED),
            # While histograms are looked at, tiles are replaced, and past tiles removed. A tile has
            # a row for each of some destinations, which are as old as its total.
            self._kind(tables.load, "bucket", "as_of", DAY, tables.load.c.destination == ""),
        )

    def purge(self) -> int:
        """Remove a bounded number of rows past retention; return how many."""
        return self._context.database.run(self._purge)

    def purge_lag(self) -> Micros:
        """Return for how long the oldest remaining row has been overdue for removal."""
        with self._context.database.read() as connection:
            now = self._context.now(connection)
            oldest = [kind.oldest.scalar_subquery() for kind in self._kinds]
            found = connection.execute(select(*oldest)).one()
        return max(
            0,
            *(
                0 if oldest is None else now - kind.retention - oldest
                for kind, oldest in zip(self._kinds, found, strict=True)
            ),
        )

    def _purge(self, connection: Connection) -> int:
        now, removed = self._context.now(connection), 0
        for kind in self._kinds:
            removed += self._remove(connection, kind, {"before": now - kind.retention})
            reach("purging.rows_removed")
        return removed + self._purge_run_keys(connection, now)

    def _purge_run_keys(self, connection: Connection, now: Micros) -> int:
        """Remove a batch's keys if its bulk run is over, or was never applied."""
        runs, keys = self._context.tables.runs, self._context.tables.run_keys
        ended = now - duration_micros(self._context.settings.history_retention)
        is_old = (_in(runs, _OVER) & (runs.c.ended < ended)) | (
            _in(runs, _NEVER_APPLIED) & (runs.c.created < now - PLAN_KEPT)
        )
        # A join would read all keys of younger runs at each purge.
        of_run = select(keys.c.no).where(keys.c.run_id == runs.c.run_id)
        first = of_run.order_by(keys.c.no).limit(1).scalar_subquery()
        bulk = (runs.c.kind == "bulk", runs.c.endpoint == self._context.endpoint)
        found = connection.execute(
            select(runs.c.run_id, first).where(*bulk, is_old, first.is_not(None)).limit(1)
        ).first()
        if found is None or not self._locks_run(connection, found[0], is_old):
            return 0
        batch = (keys.c.run_id == found[0], keys.c.no == found[1])
        return connection.execute(delete(keys).where(*batch)).rowcount

    def _locks_run(self, connection: Connection, run_id: str, is_old: ColumnElement[bool]) -> bool:
        """Lock the run; return whether it still *is_old*: an undo may have begun meanwhile."""
        runs = self._context.tables.runs
        one = select(runs.c.run_id).where(runs.c.run_id == run_id, is_old).with_for_update()
        return connection.execute(one).first() is not None

    def _remove(self, connection: Connection, kind: _Kind, age: Mapping[str, Micros]) -> int:
        if kind.find is None:
            return connection.execute(kind.remove, age).rowcount
        names = connection.execute(kind.find, age).scalars().all()
        execute_many(connection, kind.remove, [{"names": name} for name in names])
        return len(names)

    def _kind(
        self, table: Table, name: str, age: str, retention: Micros, *some: ColumnElement[bool]
    ) -> _Kind:
        column, since = table.c[name], table.c[age]
        mine = table.c.endpoint == self._context.endpoint
        oldest = select(since).where(mine, *some, since.is_not(None)).order_by(since).limit(1)
        old = select(column).where(mine, *some, since.is_not(None), since < bindparam("before"))
        old = old.order_by(since).limit(AT_ONCE).with_for_update(skip_locked=True)
        each_by_key = self._context.locks_what_it_reads  # the whole primary key
        among = column == bindparam("names") if each_by_key else self._among(column, old)
        return _Kind(
            find=old if each_by_key else None,
            remove=delete(table).where(mine, among),
            oldest=oldest,  # not the minimum: MariaDB would read all keys of the endpoint for it
            retention=retention,
        )

    def _among(self, column: ColumnElement[Any], old: Select[Any]) -> ColumnElement[bool]:
        if self._context.database.is_sqlite:
            return column.in_(old)
        # As an array: PostgreSQL then finds each row by its key, regardless of statistics.
        return column == any_(func.array(old.scalar_subquery()))

    def run_maintenance(self) -> bool:
        """Do the next short step for the partitions, if any; return whether more remains."""
        return self._partitions.step()

    def partitions_missing(self) -> int | None:
        """Return how many partitions the last maintenance left to create; None if not used.

        Without the right to change tables, the number stays, and grows over time.
        """
        return self._partitions.missing

    def wakeups(self, wake: WakePoller) -> Wakeups:
        """Return the wakeups that call *wake* when another process has stored a timeout."""
        return wakeups_of(self._context, wake, lambda: self._has_others)

    def heartbeat(self, owner: str, state: Mapping[str, str]) -> Micros | None:
        """Write the heartbeat of *owner*, and acquire its session lock again if it was lost.

        Other processes consider the owner dead once the server has closed the lock's connection.
        """
        self._context.liveness.renew(owner)
        written = self._context.database.run(
            lambda connection: self._write_heartbeat(connection, owner, to_json(state))
        )
        reach("heartbeats.written")
        self._has_others = written.has_others
        return written.ahead

    def _write_heartbeat(self, connection: Connection, owner: str, state: str) -> Heartbeat:
        context, processes = self._context, self._context.tables.processes
        has_others = _has_others(context, owner)
        own = update(processes).where(processes.c.owner == owner)
        own = own.values(heartbeat=context.now_value, state=state)
        # After the first, PostgreSQL needs one statement: an idle process should cause little load.
        is_postgresql = connection.dialect.name == "postgresql"
        if is_postgresql:
            before = context.clock.now()
            row = connection.execute(own.returning(processes.c.heartbeat, has_others)).one_or_none()
            if row is not None:
                ahead = int(row[0]) - (before + context.clock.now()) // 2
                return Heartbeat(bool(row[1]), ahead if context.has_database_clock else None)
        if is_postgresql or not connection.execute(own).rowcount:
            now = context.now(connection)
            process = {"owner": owner, "endpoint": context.endpoint, "host": context.node}
            first = {"pid": os.getpid(), "started": now, "heartbeat": now, "state": state}
            insert_missing(connection, processes, [process | first])
        return Heartbeat(bool(connection.execute(select(has_others)).scalar_one()))

    def unregister_process(self, owner: str) -> None:
        """Remove the heartbeat of *owner* after a clean stop."""
        table = self._context.tables.processes
        self._context.database.run(
            lambda connection: connection.execute(delete(table).where(table.c.owner == owner))
        )

    def processes(self) -> Sequence[ProcessRecord]:
        """Return the endpoint's processes that wrote a heartbeat, newest first."""
        table = self._context.tables.processes
        with self._context.database.read() as connection:
            rows = connection.execute(
                select(table)
                .where(table.c.endpoint == self._context.endpoint)
                .order_by(table.c.heartbeat.desc())
            ).all()
        return [ProcessRecord(**{**row._mapping, "state": json.loads(row.state)}) for row in rows]


def _in(runs: Table, states: Sequence[BulkState]) -> ColumnElement[bool]:
    return runs.c.state.in_([state.value for state in states])


def _has_others(context: StoreContext, owner: str) -> ColumnElement[bool]:
    other = context.tables.processes.alias()
    return exists().where(
        other.c.endpoint == context.endpoint,
        other.c.owner != owner,
        other.c.heartbeat > context.now_value - LIVE,
    )


def forget(database: Database, tables: TimeoutTables, endpoint: str, *, force: bool) -> bool:
    """Delete all data of *endpoint*; return whether no other endpoint is left.

    Raises FeatureRefused while timeouts of it are pending, unless *force* gives them up.
    """

    def work(connection: Connection) -> bool:
        timeouts = tables.timeouts
        own = select(func.count()).select_from(timeouts).where(timeouts.c.endpoint == endpoint)
        pending = connection.execute(own).scalar_one()
        if pending and not force:
            raise FeatureRefused(
                f"{pending} timeouts of {endpoint!r} are pending, and would be lost; let its "
                "timeout manager send them, migrate them, or use force"
            )
        of_runs = select(tables.runs.c.run_id).where(tables.runs.c.endpoint == endpoint)
        connection.execute(delete(tables.batches).where(tables.batches.c.run_id.in_(of_runs)))
        reach("forgetting.rows_deleted")
        for each in all_tables(tables):
            if "endpoint" in each.c:
                connection.execute(delete(each).where(each.c.endpoint == endpoint))
                reach("forgetting.rows_deleted")
        # An endpoint with a row here has used the tables and may use them again.
        used = (tables.timeouts, tables.keys, tables.history, tables.endpoints, tables.processes)
        return not any(connection.execute(select(each).limit(1)).first() for each in used)

    return database.run(work)


def all_tables(tables: TimeoutTables) -> list[Table]:
    """Return every table."""
    return [getattr(tables, each.name) for each in fields(tables)]
