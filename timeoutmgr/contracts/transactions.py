"""The database and transactions that stores and queues share, and the transaction modes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from timeoutmgr.clock import Clock
from timeoutmgr.contracts.answers import Answers
from timeoutmgr.message.instants import Micros


class Transaction(Protocol):
    """An open database transaction that a store and a SQL queue can both take part in.

    In a SQL database it is SQLAlchemy's ``Connection``: a store or queue narrows it with
    ``timeoutmgr.database.as_connection``.
    """

    def execute(self, statement: Any, parameters: Any = None, /) -> Any:
        """Execute *statement*, and return its result."""
        ...


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
        """Return if the database answers; otherwise raise StorageUnavailable."""
        ...

    def begin(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction; commit at the end, roll back on any error."""
        ...

    def now(self, clock: Clock) -> Micros:
        """Return the database's time, or the time of *clock* if the database has no clock."""
        ...


class TransactionMode(StrEnum):
    """Extent of the work that is undone together when handling a message fails."""

    NONE = "none"
    """Acknowledged on receipt: a crash loses the message."""
    RECEIVE_ONLY = "receive_only"
    """The message comes back; the sends of the handler stay sent."""
    SENDS_ATOMIC_WITH_RECEIVE = "sends_atomic_with_receive"
    """Receiving and sending are one transaction."""
    TRANSACTION_SCOPE = "transaction_scope"
    """Receiving, sending and the store are one transaction of one database."""


ModeName: TypeAlias = Literal[
    "none", "receive_only", "sends_atomic_with_receive", "transaction_scope"
]
"""The value of a TransactionMode, as text."""
