"""Timeouts that arrive in a SQL store: each id is taken once, and only while its run is open.

The row of the run is the fence. Whoever delivers holds it shared to the commit, whoever ends the
run changes it: after that nothing of the run can come in, from however late a process, and what
``timeout_keys`` says of an id is final.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Connection, Subquery, bindparam, func, select, true, update

from timeoutmgr.content import content_of
from timeoutmgr.contracts import Key, TimeoutState
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.arrays import TextArray
from timeoutmgr.database.engine import execute_many
from timeoutmgr.errors import MessageRejected, MigrationFailed, StorageConflict
from timeoutmgr.instants import Micros
from timeoutmgr.migration import Batch, Delivered, Item, Problem, Survey
from timeoutmgr.persistence.sql.conditions import among
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.history import entry, record
from timeoutmgr.persistence.sql.inserting import insert_missing
from timeoutmgr.persistence.sql.rows import to_row

from .ledger import SqlLedger

FENCE: Final = "arrival"
"""The kind of the rows that a run has where it arrives; its ledger may be in the same table."""
OPEN: Final = "open"
"""The state of such a row while its run may deliver."""
_SHUT: Final = "shut"
_PAGE: Final = 1_000
_TRIES: Final = 5


class SqlTarget:
    """See :class:`timeoutmgr.migration.Target`; the store of one endpoint."""

    knows_what_it_has: Final = True

    def __init__(self, context: StoreContext, name: str) -> None:
        self._context = context
        self._name = name
        keys = context.tables.keys
        found = _keys_of_ids(context)
        self._seen = select(found.c.id, found.c.state)
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

    def describe(self) -> str:
        """Return the database, schema and prefix, without secrets."""
        return self._name

    def now(self) -> Micros:
        """Return the store's time."""
        with self._context.database.read() as connection:
            return self._context.now(connection)

    def problems(self, survey: Survey) -> Sequence[Problem]:
        """Return the open run out of this very store; else a store takes what another could hold.

        What arrives would leave with it, and be brought back by a run that is gone on with.
        """
        run = SqlLedger(self._context).open_run()
        if run is None or run.terms.source != self._name:
            return ()
        return [
            Problem(self._name, f"run {run.id} out of it is open", "finish or abort that first")
        ]

    def open(self, run_id: str) -> None:
        """Set the fence up, open; a fence that is there stays as it is."""
        runs = self._context.tables.runs

        def work(connection: Connection) -> None:
            there = connection.execute(
                select(runs.c.run_id).where(runs.c.run_id == fence_of(run_id))
            ).first()
            if there is None:
                row = {
                    "run_id": fence_of(run_id),
                    "kind": FENCE,
                    "state": OPEN,
                    "created": self._context.now(connection),
                    "parameters": "{}",
                    "endpoint": self._context.endpoint,
                }
                insert_missing(connection, runs, [row])

        self._context.database.run(work)

    def deliver(self, run_id: str, batch: Batch, items: Sequence[Item]) -> Delivered:
        """Store those whose id was never seen here, or has left from here; count the others."""
        rows = {item.timeout.id: self._row(run_id, item) for item in items}
        contents = {item.timeout.id: content_of(item.timeout) for item in items}
        if len(rows) != len(items):
            raise MigrationFailed(f"run {run_id}, batch {batch.no} holds an id twice")

        def work(connection: Connection) -> int:
            self._pass_the_fence(connection, run_id)
            seen = self._states(connection, list(rows))
            back = sorted(one for one, state in seen.items() if state == TimeoutState.MIGRATED)
            # By id, so that whoever stores some of the same waits in one order.
            new = sorted(rows.keys() - seen.keys())
            keys = [Key(rows[one]["due"], one) for one in new]
            told = [contents[one] for one in new]
            if keys and self._context.writing.insert_keys(connection, keys, told) != len(keys):
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
        # Read again, from what is committed: this is what the source's rows are removed for.
        return Delivered(arrived, len(self.present(list(rows))) - arrived)

    def present(self, ids: Sequence[str]) -> set[str]:
        """Return those of *ids* that are stored here, or were and ended here."""
        with self._context.database.read() as connection:
            found = self._states(connection, ids)
        return {one for one, state in found.items() if state != TimeoutState.MIGRATED}

    def shut(self, run_id: str) -> None:
        """Shut the fence; whoever is delivering now is waited for."""
        runs = self._context.tables.runs
        self.open(run_id)  # so that there is one to shut, for a run that ended before it
        reach("arriving.fence_stands")
        statement = update(runs).where(runs.c.run_id == fence_of(run_id)).values(state=_SHUT)
        self._context.database.run(lambda connection: connection.execute(statement))

    def close(self) -> None:
        """Leave the connections to the persistence."""

    def _pass_the_fence(self, connection: Connection, run_id: str) -> None:
        runs = self._context.tables.runs
        state = connection.execute(
            select(runs.c.state).where(runs.c.run_id == fence_of(run_id)).with_for_update(read=True)
        ).scalar()
        if state != OPEN:
            raise MigrationFailed(
                f"run {run_id} is shut at {self._name}: it was aborted or is complete, and takes "
                "nothing more"
            )

    def _states(self, connection: Connection, ids: Sequence[str]) -> dict[str, TimeoutState]:
        found: dict[str, TimeoutState] = {}
        for start in range(0, len(ids), _PAGE):
            page = list(ids[start : start + _PAGE])
            for row in connection.execute(self._seen, {"ids": page}):
                found[row.id] = TimeoutState(row.state)
        return found

    def _insert(self, connection: Connection, rows: list[dict[str, Any]], run_id: str) -> None:
        if not rows:
            return
        self._context.writing.insert_rows(connection, self._context.tables.timeouts, rows)
        reach("arriving.rows_inserted")
        if self._context.settings.history == "full":
            at = self._context.now(connection)
            told = [
                entry(Key(_due_of(row), row["id"]), at, row["destination"], row["attempts"], run_id)
                for row in rows
            ]
            record(connection, self._context, "scheduled", told)
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
            f"{self._name}: others stored the same ids {_TRIES} times in a row; run again"
        )


def _due_of(row: dict[str, Any]) -> Micros:
    due: Micros = row["due"] if row["original_due"] is None else row["original_due"]
    return due


def fence_of(run_id: str) -> str:
    """Return the key of a run's fence: the ledger may be in that table, with a row of the run."""
    return f"{run_id}.{FENCE}"


def _keys_of_ids(context: StoreContext) -> Subquery:
    """Return the ids and states of the keys that the parameter ``ids`` names.

    PostgreSQL, before its first statistics, would read all keys of the endpoint for that. A limit
    in a lateral query has it look each one up by the primary key.
    """
    keys = context.tables.keys
    mine = keys.c.endpoint == context.endpoint
    if context.database.dialect.name != "postgresql":
        named = among(context, keys.c.id)
        return select(keys.c.id, keys.c.state).where(mine, named).subquery()
    given = func.unnest(bindparam("ids", type_=TextArray())).table_valued("id", name="given")
    wanted = given.render_derived()
    one = select(keys.c.id, keys.c.state).where(mine, keys.c.id == wanted.c.id).limit(1).lateral()
    return select(one.c.id, one.c.state).select_from(wanted).join(one, true()).subquery()


class _StoredMeanwhile(Exception):
    """Somebody stored one of the ids between the look and the insert; nothing is kept."""
