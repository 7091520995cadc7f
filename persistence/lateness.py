"""Percentiles of lateness, the same way for every store."""

from collections.abc import Sequence

DAY = 86_400_000_000
"""Over how many microseconds statistics count outcomes."""
RECENT = 1_000
"""Over how many of the latest dispatches statistics measure lateness."""


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """Return the nearest-rank percentile of ascending values, None of none."""
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
