"""Moves of due timeouts into queues inside one database, and the tables for bulk programs.

If queues and timeouts are tables of the same database, a message can move from the store to a queue
without a process in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from sqlalchemy import ColumnElement, Insert
from sqlalchemy.sql import FromClause

from timeoutmgr.contracts.timeouts import Key
from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.message.instants import Micros

if TYPE_CHECKING:
    from sqlalchemy import Table

# --- the tables of a persistence, for programs that read and write rows by the million --------


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkTables:
    """The tables of a persistence, for programs that read and write rows by the million.

    *history_kept* is its ``history`` setting: the events that can be read.
    """

    timeouts: Table
    keys: Table
    history: Table
    labels: Table
    runs: Table
    batches: Table
    history_kept: str


@runtime_checkable
class HasBulkTables(Protocol):
    """A persistence that the data pipeline can read and fill; no persistence needs to."""

    @property
    def bulk_tables(self) -> BulkTables:
        """The tables: keys are inserted before their timeouts, in the same transaction."""
        ...


Move: TypeAlias = Callable[
    [str, Sequence[Key], Micros, Transaction], tuple[Micros, Mapping[Key, str]]
]
"""Moves every movable row among some keys, in a transaction.

Returns the instant, and destinations by moved key.

Its arguments are a claim's token (empty: none), keys, the instant of the dispatch, which counts
only if the storage has no clock, and the transaction. It moves rows that are due and that no other
owner has, and records them as dispatched; the claim ends if all were moved.
"""


class MessageRows(Protocol):
    """The queues of a database as a table that statements can write."""

    def takes(self, message: FromClause) -> ColumnElement[bool]:
        """Return the condition that a row of *message* can go unchanged to its ``destination``.

        *message* has the columns of a stored timeout. A row that fails the condition goes through
        ``send``, which raises the error.
        """
        ...

    def insert(
        self,
        messages: FromClause,
        added: Mapping[str, ColumnElement[str]],
        at: ColumnElement[int],
        *order: ColumnElement[Any],
    ) -> Insert:
        """Return the statement that inserts *messages*, which ``takes`` accepts, into their queues.

        It keeps *order*, and adds the headers *added*, which they must not have; *at* is now.
        """
        ...

    def announcing(self) -> ColumnElement[Any] | None:
        """Return the expression that wakes receivers in other processes, at the commit.

        Its parameter is ``announced``. None if receivers poll by themselves.
        """
        ...

    def announce(self, queues: Collection[str], transaction: Transaction) -> str:
        """Wake the receivers of *queues* in this process after the commit of *transaction*.

        Return the value of ``announced`` for other processes.
        """
        ...


@runtime_checkable
class KeepsRows(Protocol):
    """A transport whose queues are in a database."""

    def message_rows(self) -> MessageRows | None:
        """Return the queues as a table, None if this kind of database cannot move rows."""
        ...


@runtime_checkable
class MovesRows(Protocol):
    """A store that can move rows inside its database."""

    def mover(self, into: MessageRows, allows: Callable[[str], bool]) -> Move | None:
        """Return a mover of timeouts *into* queues of the same database, or None.

        If *allows* refuses its destination, a timeout stays: the dispatcher reports the reason.
        """
        ...
