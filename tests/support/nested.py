"""A value that is nested deeper than Python's own limit of recursion."""

from __future__ import annotations

NESTED: list[object] = []
for _ in range(100_000):
    NESTED = [NESTED]
