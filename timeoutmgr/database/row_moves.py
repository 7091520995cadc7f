"""Moves of due timeouts into queues inside one database, and the tables for bulk programs.

Where queues and timeouts are tables of one database, a message that leaves the store for a queue
need not travel to a process and back.
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

    *history_kept* is its ``history`` setting: which events there are to be read.
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
        """Its tables: keys are inserted before, and in one transaction with, their timeouts."""
        ...


Move: TypeAlias = Callable[[str, Sequence[Key], Micros, Transaction], Mapping[Key, str]]
"""Moves every movable row of some keys, in a transaction, and returns destinations by moved key.

Given are a claim's token (empty: none), keys, and the instant of the dispatch, which counts only
if the storage has no clock. The rows are due and no other owner has them; they are recorded as
dispatched, and the claim ends if all were moved.
"""


class MessageRows(Protocol):
    """The queues of one database as one table, to be written by statements."""

    def takes(self, message: FromClause) -> ColumnElement[bool]:
        """Return the condition that a row of *message* can go as it is to its ``destination``.

        It has the columns of a stored timeout. A row that fails the condition goes through
        ``send``, which words the error.
        """
        ...

    def insert(
        self,
        messages: FromClause,
        added: Mapping[str, ColumnElement[str]],
        at: ColumnElement[int],
        *order: ColumnElement[Any],
    ) -> Insert:
        """Return the statement that puts *messages*, which it ``takes``, into their queues.

        In the *order* given, with *added* headers, which they must not have; *at* is now.
        """
        ...

    def announcing(self) -> ColumnElement[Any] | None:
        """Return the expression that wakes receivers in other processes, at the commit.

        Its parameter is ``announced``. None where they look by themselves.
        """
        ...

    def announce(self, queues: Collection[str], transaction: Transaction) -> str:
        """Wake the receivers of *queues* in this process when *transaction* has committed.

        Returns what is ``announced`` to the others.
        """
        ...


@runtime_checkable
class KeepsRows(Protocol):
    """A transport whose queues are in a database."""

    def message_rows(self) -> MessageRows | None:
        """Return its table, None where this kind of database cannot move rows."""
        ...


@runtime_checkable
class MovesRows(Protocol):
    """A store that can move rows inside its database."""

    def mover(self, into: MessageRows, allows: Callable[[str], bool]) -> Move | None:
        """Return a mover of timeouts *into* queues of the same database, None if there is none.

        A timeout whose destination *allows* refuses stays: the dispatcher says why it may not go.
        """
        ...
