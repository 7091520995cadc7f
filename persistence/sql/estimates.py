"""Estimates from PostgreSQL's statistics, without reading any timeout."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from timeoutmgr.contracts import Count
from timeoutmgr.message.instants import Micros

from .context import StoreContext

_STATISTICS: Final = text("""
    SELECT leaf.relid AS part, whole.reltuples AS number, pg_relation_size(leaf.relid) AS size,
        known.attname AS name, known.most_common_vals::text::text[] AS common,
        known.most_common_freqs AS shares, known.histogram_bounds::text::text[] AS bounds
    FROM pg_partition_tree(CAST(:timeouts AS regclass)) AS leaf
    JOIN pg_class AS whole ON whole.oid = leaf.relid
    JOIN pg_namespace AS place ON place.oid = whole.relnamespace
    LEFT JOIN pg_stats AS known ON known.schemaname = place.nspname
        AND known.tablename = whole.relname AND NOT known.inherited
        AND known.attname IN ('due', 'endpoint', 'destination')
    WHERE leaf.isleaf ORDER BY leaf.relid
""").bindparams(bindparam("timeouts"))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column's common values with their shares of all rows; other rows are between *bounds*."""

    shares: dict[str, float]
    bounds: Sequence[Micros]

    def within(self, start: Micros, end: Micros) -> float:
        """Return the share of the rows from *start* on and before *end*."""
        common = sum(share for due, share in self.shares.items() if start <= int(due) < end)
        other = 1 - sum(self.shares.values())
        return common + other * (self._below(end) - self._below(start))

    def _below(self, due: Micros) -> float:
        """Return which share of the rows between the bounds is before *due*."""
        last = len(self.bounds) - 1
        if last < 1 or due <= self.bounds[0]:
            return 0.0
        if due > self.bounds[-1]:
            return 1.0
        upper = bisect_left(self.bounds, due)
        low, high = self.bounds[upper - 1], self.bounds[upper]
        return (upper - 1 + (due - low) / (high - low)) / last


class LoadEstimate:
    """Estimates how many timeouts of one endpoint are tried in given time spans."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def counts(
        self, connection: Connection, edges: Sequence[Micros], destination: str | None
    ) -> list[Count] | None:
        """Return an estimate between each two *edges*; None if the database has no statistics."""
        if self._context.database.dialect.name != "postgresql":
            return None
        preparer = connection.dialect.identifier_preparer
        name = preparer.format_table(self._context.tables.timeouts)
        rows = connection.execute(_STATISTICS, {"timeouts": name}).all()
        totals = [0.0] * (len(edges) - 1)
        for _, part in groupby(rows, key=lambda row: row.part):
            numbers = self._of_part(list(part), edges, destination)
            if numbers is None:
                return None
            totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        return [Count(round(total), exact=False, is_estimate=True) for total in totals]

    def _of_part(
        self, rows: Sequence[Any], edges: Sequence[Micros], destination: str | None
    ) -> Sequence[float] | None:
        if rows[0].size == 0:
            return [0.0] * (len(edges) - 1)
        columns = {row.name: _column(row) for row in rows if row.name is not None}
        wanted = [("endpoint", self._context.endpoint)]
        wanted += [] if destination is None else [("destination", destination)]
        number = float(rows[0].number)
        if number < 0 or not {"due", *(name for name, _ in wanted)} <= set(columns):
            return None
        for name, value in wanted:
            if value not in columns[name].shares:  # too few among many, or none at all
                return None
            number *= columns[name].shares[value]
        return [number * columns["due"].within(*span) for span in pairwise(edges)]


def _column(row: Any) -> _Column:
    shares = dict(zip(row.common or (), row.shares or (), strict=True))
    bounds = [int(bound) for bound in row.bounds or ()] if row.name == "due" else []
    return _Column(shares, bounds)
