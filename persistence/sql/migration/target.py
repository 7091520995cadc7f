"""An SQL store as a target: it accepts each id once, and only while its run is open.

A run has a fencing token here. Each delivery has a shared lock on the token until its commit, and
the end of a run shuts the token: after that, a late process delivers nothing of the run, and the
state of an id in ``timeout_keys`` is final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, Subquery, bindparam, func, select, true, update

from timeoutmgr.contracts import Key, LockedSchedule, RepeatKind, ScheduleRecord
from timeoutmgr.contracts.timeouts import Timeout, TimeoutState, content_of
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.arrays import TextArray
from timeoutmgr.database.engine import execute_many
from timeoutmgr.errors import MessageRejected, MigrationFailed, StorageConflict
from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.migration import Batch, Delivered, Item, Problem, Survey, Target
from timeoutmgr.persistence.remembered import kind_of
from timeoutmgr.persistence.sql.audit import Audit
from timeoutmgr.persistence.sql.batch_writes import insert_missing
from timeoutmgr.persistence.sql.commands import TimeoutCommands
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.labels import LabelRows
from timeoutmgr.persistence.sql.rows import among, entry, record, to_row
from timeoutmgr.persistence.sql.schedules import Schedules

from .ledger import SqlMigrationLedger

OPEN: Final = "open"
"""The state of a fencing token while its run may deliver."""
_SHUT: Final = "shut"
_PAGE: Final = 1_000
_TRIES: Final = 5


class StoreParticipant:
    """The common part of source and target: the store of one endpoint."""

    def __init__(self, context: StoreContext, name: str) -> None:
        self._context = context
        self._name = name
        self._labels: Final = LabelRows(context)
        self._schedules: Final = Schedules(context, TimeoutCommands(context, Audit(context)))

    def describe(self) -> str:
        """Return the database, schema and prefix, without secrets."""
        return self._name

    def now(self) -> Micros:
        """Return the store's time."""
        with self._context.database.read() as connection:
            return self._context.now(connection)


class SqlTarget(StoreParticipant, Target):
    """See :class:`timeoutmgr.migration.Target`; the store of one endpoint."""

    knows_what_it_has: Final = True

    def __init__(self, context: StoreContext, name: str) -> None:
        super().__init__(context, name)
        self._tokens: Final = context.tables.fencing_tokens
        keys = context.tables.keys
        self._seen = select(_keys_of_ids(context))
        self._revive = (
            update(keys)
            .where(
                keys.c.endpoint == context.endpoint,
                keys.c.id == bindparam("id_"),
                keys.c.state == TimeoutState.MIGRATED.value,
            )
            .values(
                state=TimeoutState.PENDING.value,
                due=bindparam("due_"),
                closed_at=None,
                maybe_sent=0,
                version=0,
                content=bindparam("content_"),
            )
        )

    def problems(self, survey: Survey) -> Sequence[Problem]:
        """Return as problems an open run out of this same store, and contradicting schedules.

        Arriving timeouts would leave with that run and come back when it is continued.
        """
        run = SqlMigrationLedger(self._context).open_run()
        found = [*self._contradictions(survey.schedules)]
        if run is not None and run.terms.source == self._name:
            what = f"run {run.id} out of it is open"
            found.append(Problem(self._name, what, "finish or abort that first"))
        return found

    def adopt(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Keep copies of *schedules*, so that the endpoint continues here from its state there.

        A record stays if the endpoint has advanced it here since, or has paused it.
        """
        for given in schedules:
            self._schedules.change(given.name, partial(_adopt, given=given))

    def _contradictions(self, schedules: Sequence[ScheduleRecord]) -> Iterator[Problem]:
        kept = {record.name: record for record in self._schedules.records()} if schedules else {}
        for given in schedules:
            here, name = kept.get(given.name), f"recurring timeout {given.name!r}"
            if here is None:
                continue
            if here.is_paused != given.is_paused and not _is_newer(given, here):
                remedy = "pause or resume it at one of both"
                yield Problem(self._name, f"{name} is paused at one end only", remedy)
            if given.run_due is not None and self._has_twin(given, here, given.run_due):
                what = f"{name} was at {from_micros(given.run_due).isoformat()} here as well"
                yield Problem(self._name, what, f"cancel timeout {given.run_id} at the source")

    def _has_twin(self, given: ScheduleRecord, here: ScheduleRecord, due: Micros) -> bool:
        """Return whether this store has or had a run beside which the run of *given* would come."""
        if given.run_id == here.run_id or due > max(here.run_due or 0, here.done_until or 0):
            return False
        found = self.present([one for one in (given.run_id, here.run_id) if one is not None])
        return given.run_id not in found and (here.run_id in found or not _is_newer(given, here))

    def open(self, run_id: str) -> None:
        """Insert the run's fencing token as open; an existing token stays as it is."""

        def work(connection: Connection) -> None:
            if self._token_state(connection, run_id) is None:
                about = {"run_id": run_id, "endpoint": self._context.endpoint, "state": OPEN}
                row = {**about, "created": self._context.now(connection)}
                insert_missing(connection, self._tokens, [row])

        self._context.database.run(work)

    def deliver(self, run_id: str, batch: Batch, items: Sequence[Item]) -> Delivered:
        """Store timeouts whose id is new or has left this store; count or name the rest."""
        rows = {item.timeout.id: self._row(run_id, item) for item in items}
        given = {item.timeout.id: item.timeout for item in items}
        contents = {one: content_of(timeout) for one, timeout in given.items()}
        if len(rows) != len(items):
            raise MigrationFailed(f"run {run_id}, batch {batch.no} holds an id twice")

        def work(connection: Connection) -> int:
            self._require_open(connection, run_id)
            seen = self._states(connection, list(rows))
            back = sorted(one for one, state in seen.items() if state == TimeoutState.MIGRATED)
            # By id: processes that store the same keys wait in the same order.
            new = sorted(rows.keys() - seen.keys())
            keys = [Key(rows[one]["due"], one) for one in new]
            entries = [contents[one] for one in new]
            if keys and self._context.writing.insert_keys(connection, keys, entries) != len(keys):
                raise _StoredMeanwhile
            reach("arriving.keys_inserted")
            execute_many(
                connection,
                self._revive,
                [{"id_": one, "due_": rows[one]["due"], "content_": contents[one]} for one in back],
            )
            reach("arriving.keys_revived")
            self._insert(connection, [rows[one] for one in new + back], run_id)
            return len(new) + len(back)

        arrived = self._until_nobody_interferes(work)
        # Read again after the commit: based on this answer, the source removes its rows.
        kept = self._kept(list(rows))
        kinds = {one: kind_of(kept[one], given[one], contents[one]) for one in kept}
        used = frozenset(one for one in kept if kinds[one] is RepeatKind.CONFLICT)
        return Delivered(arrived, len(kept) - arrived - len(used), used)

    def present(self, ids: Sequence[str]) -> set[str]:
        """Return the *ids* that are stored here or have ended here."""
        return set(self._kept(ids))

    def conflicts(self, timeouts: Sequence[Timeout]) -> set[int]:
        """Return the places of *timeouts* whose ids other messages have, here or before them."""
        kept = self._kept([one.id for one in timeouts])

        def differs(one: Timeout) -> bool:
            content = content_of(one)
            return kind_of(kept.setdefault(one.id, content), one, content) is RepeatKind.CONFLICT

        return {place for place, one in enumerate(timeouts) if differs(one)}

    def shut(self, run_id: str) -> None:
        """Shut the fencing token, after the commit of each delivery that has it locked."""
        tokens = self._tokens
        self.open(run_id)  # a run may end before its target was opened
        reach("arriving.fence_stands")
        statement = update(tokens).where(tokens.c.run_id == run_id).values(state=_SHUT)
        self._context.database.run(lambda connection: connection.execute(statement))

    def _require_open(self, connection: Connection, run_id: str) -> None:
        """Raise MigrationFailed unless the run's token is open; lock the token against ``shut``."""
        state = self._token_state(connection, run_id, lock=True)
        if state != OPEN:
            raise MigrationFailed(
                f"run {run_id} is shut at {self._name}: it was aborted or is complete, and takes "
                "nothing more"
            )

    def _token_state(
        self, connection: Connection, run_id: str, *, lock: bool = False
    ) -> str | None:
        tokens = self._tokens
        wanted = select(tokens.c.state).where(tokens.c.run_id == run_id)
        wanted = wanted.with_for_update(read=True) if lock else wanted
        found: str | None = connection.execute(wanted).scalar()
        return found

    def _states(self, connection: Connection, ids: Sequence[str]) -> dict[str, TimeoutState]:
        return {row.id: TimeoutState(row.state) for row in self._keys(connection, ids)}

    def _kept(self, ids: Sequence[str]) -> dict[str, bytes | None]:
        """Return what is remembered of the *ids* that are stored here or have ended here."""
        with self._context.database.read() as connection:
            rows = [*self._keys(connection, ids)]
        return {row.id: row.content for row in rows if row.state != TimeoutState.MIGRATED}

    def _keys(self, connection: Connection, ids: Sequence[str]) -> Iterator[Row[Any]]:
        for start in range(0, len(ids), _PAGE):
            yield from connection.execute(self._seen, {"ids": list(ids[start : start + _PAGE])})

    def _insert(self, connection: Connection, rows: list[dict[str, Any]], run_id: str) -> None:
        if not rows:
            return
        self._context.writing.insert_rows(connection, self._context.tables.timeouts, rows)
        reach("arriving.rows_inserted")
        self._labels.insert(connection, ((Key(r["due"], r["id"]), r["headers"]) for r in rows))
        if self._context.settings.history == "full":
            at = self._context.now(connection)
            entries = [
                entry(Key(_due_of(row), row["id"]), at, row["destination"], row["attempts"], run_id)
                for row in rows
            ]
            record(connection, self._context, "scheduled", entries)
            reach("arriving.history_written")

    def _row(self, run_id: str, item: Item) -> dict[str, Any]:
        try:
            row = to_row(self._context.endpoint, item.timeout)
        except MessageRejected as error:
            raise MigrationFailed(
                f"run {run_id}, timeout {item.timeout.id!r} cannot be stored: {error}"
            ) from error
        due = item.timeout.due
        return row | {
            "maybe_sent": int(item.maybe_sent),
            "original_due": due if item.timeout.next_try > due else None,
            "run_id": run_id,
        }

    def _until_nobody_interferes(self, work: Callable[[Connection], int]) -> int:
        for _attempt in range(_TRIES):
            with suppress(_StoredMeanwhile):
                return self._context.database.run(work)
        raise StorageConflict(
            f"{self._name}: other processes stored the same ids {_TRIES} times; run again"
        )


def _adopt(locked: LockedSchedule, given: ScheduleRecord) -> None:
    if given != locked.record and _is_newer(given, locked.record):
        locked.write(given)


def _is_newer(given: ScheduleRecord, here: ScheduleRecord) -> bool:
    """Return whether the source's *given* was changed later than this store's record."""
    if here.is_paused and not given.is_paused:
        return False
    there, kept = given.done_until or 0, (here.done_until or 0) if here.every else -1
    return there > kept or (there == kept and given.is_paused)


def _due_of(row: dict[str, Any]) -> Micros:
    due: Micros = row["due"] if row["original_due"] is None else row["original_due"]
    return due


def _keys_of_ids(context: StoreContext) -> Subquery:
    """Return ids, states and contents of the keys that the parameter ``ids`` names.

    Without statistics, PostgreSQL would read all keys of the endpoint. A limit in a lateral query
    makes it look up each key by the primary key.
    """
    keys = context.tables.keys
    mine, columns = keys.c.endpoint == context.endpoint, (keys.c.id, keys.c.state, keys.c.content)
    if context.database.dialect.name != "postgresql":
        named = among(context, keys.c.id)
        return select(*columns).where(mine, named).subquery()
    given = func.unnest(bindparam("ids", type_=TextArray())).table_valued("id", name="given")
    wanted = given.render_derived()
    one = select(*columns).where(mine, keys.c.id == wanted.c.id).limit(1).lateral()
    return select(*one.c).select_from(wanted).join(one, true()).subquery()


class _StoredMeanwhile(Exception):
    """Another process stored an id between the read and the insert; roll back the transaction."""
