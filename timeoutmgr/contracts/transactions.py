"""Transactions that stores and queues share, and the modes of handling a message."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias


class Transaction(Protocol):
    """An open database transaction that a store and a SQL queue can both take part in.

    In a SQL database it is SQLAlchemy's ``Connection``: a store or queue narrows it with
    ``timeoutmgr.database.as_connection``.
    """

    def execute(self, statement: Any, parameters: Any = None, /) -> Any:
        """Execute *statement*, and return its result."""
        ...


class TransactionMode(StrEnum):
    """Work that is undone together when handling a message fails."""

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
