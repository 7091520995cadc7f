"""Cutting a view into parts that tasks read side by side."""

import json
from collections.abc import Sequence
from typing import Final

from sqlalchemy import text

from timeoutmgr.pipeline.statements import WHOLE, Part
from timeoutmgr.pipeline.stores import Store

PARTITIONS: Final = 8
"""As many tasks read a table: more would wait for the database's disk and processors."""

# The table itself where it is whole, else its partitions.
_LEAVES: Final = text(
    """
    SELECT c.relname,
        greatest(pg_relation_size(c.oid) / CAST(current_setting('block_size') AS bigint), 1)
    FROM pg_class c
    WHERE c.relkind = 'r' AND (c.oid = CAST(:name AS regclass) OR c.oid IN (
        SELECT relid FROM pg_partition_tree(CAST(:name AS regclass)) WHERE isleaf))
    ORDER BY 1
    """
)


def parts_of(store: Store, view: str, count: int) -> list[Part]:
    """Return about *count* parts of *view*, of about the same size; one where it is not cut."""
    if not store.is_postgresql or view == "load" or count <= 1:
        return [WHOLE]
    tables = store.tables
    table = {"pending": tables.timeouts, "keys": tables.keys}.get(view, tables.history)
    with store.database.read() as connection:
        name = connection.dialect.identifier_preparer.format_table(table)
        found = connection.execute(_LEAVES, {"name": name})
        return cut([(row[0], int(row[1])) for row in found], count)


def cut(sizes: Sequence[tuple[str, int]], count: int) -> list[Part]:
    """Return parts of tables whose *sizes* in blocks are given, about *count* in all.

    Every table is in some part, and the last part of each is open: what comes to stand behind it
    meanwhile is not missed.
    """
    each = max(1, -(-sum(blocks for _name, blocks in sizes) // count))
    found = []
    for name, blocks in sizes:
        starts = list(range(0, blocks, each))
        ends: list[int | None] = [*starts[1:], None]
        found += [Part(name, first, end) for first, end in zip(starts, ends, strict=True)]
    return found


def as_option(parts: Sequence[Part]) -> str:
    """Return *parts* as the text of an option."""
    return json.dumps([[part.relation, part.first, part.end] for part in parts])


def from_option(text: str) -> list[Part]:
    """Return the parts that :func:`as_option` wrote."""
    return [Part(relation, first, end) for relation, first, end in json.loads(text)]
