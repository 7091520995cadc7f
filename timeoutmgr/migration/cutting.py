"""How many timeouts make a batch: as many as were asked for, or as their bodies leave room for.

A batch is in memory as a whole, several times over while it is delivered: five thousand bodies of
a megabyte would end the process, and again each time that the run is gone on with. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from timeoutmgr.contracts import Key
from timeoutmgr.migration.runs import Range

MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of bodies in one batch, unless a single one has more."""


def in_ranges(sized: Iterable[tuple[Key, int]], most: int) -> Iterator[Range]:
    """Yield ranges of at most *most* of *sized*: keys in their order, with the bytes of each."""
    keys: list[Key] = []
    total = 0
    for key, size in sized:
        total += size
        if keys and (len(keys) == most or total > MOST_BYTES):
            yield Range(keys[0], keys[-1], len(keys))
            keys, total = [], size
        keys.append(key)
    if keys:
        yield Range(keys[0], keys[-1], len(keys))
