"""Subjects of the model's comparison: one endpoint of a real store, seen from two processes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from sqlalchemy import bindparam, select

from tests.persistence.making import SetClock
from tests.persistence.stateful.model import CLAIM_TIME, RETENTION
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence import MemoryPersistence, SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.tables import tables

PROCESSES: Final = 2
PREFIX: Final = "suite_"
_MICROSECOND: Final = timedelta(microseconds=1)
_SETTINGS: Final = SqlSettings(
    clock="host",
    claim_time=CLAIM_TIME * _MICROSECOND,
    tombstone_retention=RETENTION * _MICROSECOND,
    history_retention=RETENTION * _MICROSECOND,
)

_tables: Final = tables(None, PREFIX)
_history: Final = _tables.history
_HISTORY_OF: Final = select(_history.c.id, _history.c.event, _history.c.at).where(
    _history.c.endpoint == bindparam("endpoint")
)
_LABELS_OF: Final = select(*(_tables.labels.c[name] for name in ("due", "id", "label"))).where(
    _tables.labels.c.endpoint == bindparam("endpoint")
)

Wrap = Callable[[TimeoutStore], TimeoutStore]


class Subject:
    """The stores of one endpoint under one clock: each process has a store."""

    fenced = False
    mortal = False
    """A process can end without its claims being closed."""

    def __init__(self, endpoint: str, wrap: Wrap) -> None:
        self.clock: Final = SetClock()
        self.endpoint: Final = endpoint
        self._wrap = wrap
        self._stores = [self._made(process) for process in range(PROCESSES)]

    def store(self, process: int) -> TimeoutStore:
        return self._stores[process]

    def kill(self, process: int) -> None:
        """End *process*, and start another in its place."""
        self._end(process)

    def history(self) -> list[tuple[str, str, Micros]] | None:
        """Return (id, event, at) of all history there is; None where it keeps no ids."""
        return None

    def labels(self) -> list[tuple[Micros, str, str]] | None:
        """Return (due, id, label) of all rows of labels; None where labels have no rows."""
        return None

    def _made(self, process: int) -> TimeoutStore:
        return self._wrap(self._plain(process))

    def _plain(self, process: int) -> TimeoutStore:
        raise NotImplementedError

    def _end(self, process: int) -> None:
        raise NotImplementedError


class MemorySubject(Subject):
    """In memory; its owners live as long as the process."""

    def __init__(self, endpoint: str, wrap: Wrap) -> None:
        self._persistence = MemoryPersistence(
            accept_loss=True,
            claim_time=CLAIM_TIME * _MICROSECOND,
            tombstone_retention=RETENTION * _MICROSECOND,
        )
        super().__init__(endpoint, wrap)

    def _plain(self, process: int) -> TimeoutStore:
        return self._persistence.timeouts(self.endpoint, self.clock)


class SqlProcesses:
    """Processes on the tables of *installed*; the owners of each live by themselves."""

    def __init__(self, installed: SqlPersistence) -> None:
        self.installed: Final = installed
        self.persistences: Final = [
            SqlPersistence(installed.database, prefix=PREFIX, settings=_SETTINGS)
            for _ in range(PROCESSES)
        ]

    def close(self) -> None:
        for persistence in self.persistences:
            persistence.close()


class SqlSubject(Subject):
    """In a SQL database."""

    mortal = True

    def __init__(self, endpoint: str, wrap: Wrap, processes: SqlProcesses) -> None:
        self.fenced = not processes.installed.capabilities.row_locks
        self._processes = processes
        super().__init__(endpoint, wrap)

    def history(self) -> list[tuple[str, str, Micros]]:
        with self._processes.installed.database.read() as connection:
            rows = connection.execute(_HISTORY_OF, {"endpoint": self.endpoint})
            return [(row.id, row.event, row.at) for row in rows]

    def labels(self) -> list[tuple[Micros, str, str]]:
        with self._processes.installed.database.read() as connection:
            rows = connection.execute(_LABELS_OF, {"endpoint": self.endpoint})
            return [(row.due, row.id, row.label) for row in rows]

    def _plain(self, process: int) -> TimeoutStore:
        return self._processes.persistences[process].timeouts(self.endpoint, self.clock)

    def _end(self, process: int) -> None:
        # The session locks of its owners end; new owners have other names; the claims stay.
        self._processes.persistences[process].close()
