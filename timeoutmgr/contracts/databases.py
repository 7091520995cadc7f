"""The database that stores and queues may share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from timeoutmgr.contracts.answers import Answers
from timeoutmgr.contracts.clocks import Clock
from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.message.instants import Micros


class SharedDatabase(Protocol):
    """A SQL database of this process, one object per URL; ``timeoutmgr.database`` has the class.

    A store and a queue in one SharedDatabase can take part in one transaction.
    """

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded database: one file, one writer, the host's clock."""
        ...

    @property
    def path(self) -> Path | None:
        """The file of an embedded database."""
        ...

    @property
    def unanswered(self) -> Answers:
        """The calls that wait for the server."""
        ...

    def describe(self) -> str:
        """Return the URL without password and query, fit for logs."""
        ...

    def ping(self) -> None:
        """Return if the database answers; raise StorageUnavailable if not."""
        ...

    def begin(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction; commit at the end, roll back on any error."""
        ...

    def now(self, clock: Clock) -> Micros:
        """Return the database's time, or the time of *clock* if the database has no clock."""
        ...
