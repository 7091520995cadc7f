"""Store rows in chunks: a transaction for each chunk, and each id only once.

PostgreSQL gets a chunk by COPY, keys before rows. If an id is already known, the chunk is rolled
back, and copied into a staging table, from which only new rows are stored.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import TO_STORE
from timeoutmgr.pipeline.writers.conflicts import GIVEN_TWICE, KnownIdRule, refuse, same_content
from timeoutmgr.pipeline.writers.copy_writer import CopyWriter
from timeoutmgr.pipeline.writers.store_writer import StoreWriter

CHUNK_ROWS: Final = 50_000
CHUNK_BYTES: Final = 64 * 1024 * 1024
"""Approximate size of a chunk: with large bodies, it has fewer rows than CHUNK_ROWS."""

_OPTIONAL: Final = ("saga_id",)
_INSTANTS: Final = ("due", "created")
_LONG_TEXTS: Final = ("headers",)
_TEXT_LENGTH: Final = 255


ChunkWriter: TypeAlias = Callable[[pa.Table], int]
"""Stores the new rows of a chunk, which holds each id once, in a transaction; returns their number.

All writers store ids in order, so that two writers of the same ids do not deadlock.
"""


class Loader:
    """Stores rows of ``views.TO_STORE`` in *store*, as part of the run *run_id*.

    *on_conflict*: see ``frames.write_timeouts``.
    """

    def __init__(
        self, store: Store, *, run_id: str | None = None, on_conflict: str = "ignore"
    ) -> None:
        kind = CopyWriter if store.is_postgresql else StoreWriter
        chosen = KnownIdRule.named(on_conflict)
        self._put: ChunkWriter = kind(store, run_id, chosen)
        self._may_differ = not chosen.compares

    def load(self, batches: Iterable[pa.RecordBatch], chunk_rows: int = CHUNK_ROWS) -> int:
        """Store all of *batches*; return how many rows were new.

        Raises InvalidMessage for rows that no store could hold, ContentDiffers by the rule
        *on_conflict*, and StorageUnavailable. Earlier chunks stay stored; another run over the same
        rows stores the rest.
        """
        new = 0
        for chunk in chunks(batches, chunk_rows):
            check(chunk)
            new += self._put(each_once(chunk, may_differ=self._may_differ))
        return new


def chunks(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yield *batches* in tables of at most about *rows* rows and CHUNK_BYTES."""
    if rows < 1:
        raise ConfigurationError(f"chunk_rows must be positive, got {rows}")
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            if held and (count + piece.num_rows > rows or size + piece.nbytes > CHUNK_BYTES):
                yield _table(held)
                held, count, size = [], 0, 0
            held.append(piece)
            count, size = count + piece.num_rows, size + piece.nbytes
    if held:
        yield _table(held)


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    missing = [name for name in TO_STORE.names if name not in table.column_names]
    if missing:
        raise InvalidMessage(f"the rows to store have no column {', '.join(missing)}")
    for name in _INSTANTS:
        kind = table.schema.field(name).type
        if pa.types.is_temporal(kind) and not (pa.types.is_timestamp(kind) and kind.tz):
            raise InvalidMessage(f"{name} of the rows to store is {kind}; give times with a zone")
    return table.select(TO_STORE.names).cast(TO_STORE)


def check(chunk: pa.Table) -> None:
    """Raise InvalidMessage for a missing value, or a value that some database cannot store."""
    for name in TO_STORE.names:
        column = chunk[name]
        if name not in _OPTIONAL and column.null_count:
            raise InvalidMessage(f"{column.null_count} rows to store have no {name}")
        if not pa.types.is_string(column.type):
            continue
        if name not in _LONG_TEXTS:
            longest = pc.max(pc.utf8_length(column)).as_py() or 0
            if longest > _TEXT_LENGTH:
                raise InvalidMessage(
                    f"a {name} to store has {longest} characters, at most {_TEXT_LENGTH} can be"
                )
        if pc.any(pc.match_substring(column, "\0")).as_py():
            raise InvalidMessage(f"a {name} to store holds a NUL character; expected plain text")


def each_once(chunk: pa.Table, *, may_differ: bool = True) -> pa.Table:
    """Return *chunk* with only the earliest row of each id.

    Unless they *may_differ*, raise ContentDiffers if rows of one id differ, as for two rows in
    different chunks.
    """
    keys = chunk.select(["endpoint", "id", "due"]).combine_chunks()
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    endpoints, ids = (pc.take(keys[name].combine_chunks(), order) for name in ("endpoint", "id"))
    again = pc.and_(pc.equal(endpoints[1:], endpoints[:-1]), pc.equal(ids[1:], ids[:-1]))
    if not pc.any(again).as_py():
        return chunk  # nearly always: copying the bodies would take longer than all the rest
    if not may_differ:
        ones, others = (chunk.take(rows.filter(again)) for rows in (order[:-1], order[1:]))
        _require_same(ones.to_pylist(), others.to_pylist())
    first = pa.concat_arrays([pa.array([True]), pc.invert(again)])
    return chunk.take(order.filter(first))


def _require_same(ones: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    differing = dict.fromkeys(
        one["id"]
        for one, other in zip(ones, others, strict=True)
        if one["due"] != other["due"] or not same_content(one, other)
    )
    refuse([*differing], GIVEN_TWICE)
