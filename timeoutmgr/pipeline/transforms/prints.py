"""Numbers in place of ids where nobody reads them, and the way back for a few examples.

Numbers are sent and grouped in less time than texts, and the smallest of some is found without
keeping them. Of a billion ids two share all 128 bits once in 10^20 runs.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PRINT: Final = ("print_1", "print_2")
_HEAPS: Final = 1024


def printed(rows: "DataFrame") -> "DataFrame":
    """Return *rows* with the two columns of PRINT in place of their id."""
    others = [name for name in rows.columns if name != "id"]
    # The same hash from another seed, which is the hash of what stands before the id.
    hashes = (_print_1(), f.xxhash64(f.lit(1), f.col("id")))
    return rows.select(*(one.alias(name) for one, name in zip(hashes, PRINT, strict=True)), *others)


def tallied(rows: "DataFrame", kind: str) -> "DataFrame":
    """Return how many of *rows* are of each *kind*, in heaps: kind, many, and two prints of each.

    A heap names the first and the last that lie in it. With few of a kind hardly any heap has
    three, so that all are named; with many there are some thousand names to choose from.
    """
    first, second = map(f.col, PRINT)
    heap = f.pmod(second, f.lit(_HEAPS)).alias("heap")
    return rows.groupBy(kind, heap).agg(
        f.count(f.lit(1)).alias("many"), f.min(first).alias("first"), f.max(first).alias("last")
    )


def about(rows: "DataFrame", prints: Collection[int]) -> "DataFrame":
    """Return those of *rows*, which have an id, whose first print is one of *prints*."""
    return rows.where(_print_1().isin(list(prints)))


def _print_1() -> "Column":
    return f.xxhash64(f.col("id"))
