"""The tables of a persistence, for programs that read and write rows by the million."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from sqlalchemy import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkTables:
    """The tables of a persistence, for programs that read and write rows by the million.

    *history_kept* is its ``history`` setting: which events there are to be read.
    """

    timeouts: Table
    keys: Table
    history: Table
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
