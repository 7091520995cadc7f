"""Rows of the table ``runs``: executions of migrations and of pipeline jobs.

``kind`` distinguishes them. ``parameters`` is the text with which a run was begun, as its ledger
wrote it: ledgers compare it as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Table, insert, select, update

from timeoutmgr.message.instants import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """The row of a run; *runner* is the owner name of the process that executes it."""

    run_id: str
    kind: str
    state: str
    created: Micros
    parameters: str
    endpoint: str | None = None
    runner: str | None = None
    ended: Micros | None = None
    report: Mapping[str, Any] | None = None


class RunRows:
    """Statements on the table *runs*; each is executed in the transaction of its caller."""

    def __init__(self, runs: Table) -> None:
        self._runs: Final = runs
        self._age: Final = runs.c.created, runs.c.run_id

    def insert(self, connection: Connection, run: RunRow) -> None:
        """Insert *run*, which has no end and no report."""
        connection.execute(insert(self._runs), asdict(run))

    def find(self, connection: Connection, run_id: str, *, lock: bool = False) -> RunRow | None:
        """Return the run, or None; with *lock* no other process can change it before the commit."""
        statement = select(self._runs).where(self._runs.c.run_id == run_id)
        row = connection.execute(statement.with_for_update() if lock else statement).first()
        return None if row is None else _run_row(row)

    def locked(self, connection: Connection, run_id: str) -> RunRow:
        """Return the existing run, locked until the commit."""
        found = self.find(connection, run_id, lock=True)
        assert found is not None, f"run {run_id} was begun"
        return found

    def matching(self, connection: Connection, *conditions: ColumnElement[bool]) -> list[RunRow]:
        """Return the runs that meet *conditions*, the oldest first."""
        statement = select(self._runs).where(*conditions).order_by(*self._age)
        return [_run_row(row) for row in connection.execute(statement)]

    def newest(
        self, connection: Connection, limit: int, *conditions: ColumnElement[bool]
    ) -> list[RunRow]:
        """Return the newest *limit* runs that meet *conditions*, the newest first."""
        newest_first = (column.desc() for column in self._age)
        statement = select(self._runs).where(*conditions).order_by(*newest_first).limit(limit)
        return [_run_row(row) for row in connection.execute(statement)]

    def change(
        self,
        connection: Connection,
        run_id: str,
        *,
        report: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> None:
        """Set columns of the run to *values*; without *report* the last report stays."""
        if report is not None:
            values["report"] = json.dumps(report, sort_keys=True)
        connection.execute(update(self._runs).where(self._runs.c.run_id == run_id).values(**values))


def _run_row(row: Row[Any]) -> RunRow:
    report = None if row.report is None else json.loads(row.report)
    return RunRow(**{**row._mapping, "report": report})
