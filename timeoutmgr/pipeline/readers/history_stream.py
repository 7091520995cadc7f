"""Follows the history of a PostgreSQL store as a Spark stream."""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.readers.statements import number_option
from timeoutmgr.pipeline.readers.transactions import (
    between,
    end_of_batch,
    oldest_transaction,
    require_same,
)
from timeoutmgr.pipeline.stores import NamedStore, keep_modules
from timeoutmgr.pipeline.views import Selection

BATCH_EVENTS: Final = 500_000
"""Maximum events of a micro-batch; a larger transaction is a micro-batch of its own."""


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the history of a store as it grows."""

    def __init__(self, store: NamedStore, columns: pa.Schema, options: Mapping[str, str]) -> None:
        self._store = store
        self._columns = columns
        self._most = number_option(options, "batch_events", BATCH_EVENTS)
        self._any_timeline = options.get("any_timeline") == "true"
        self._last: int | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the maximum size of a micro-batch."""
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the present end of the history, where the stream ends."""
        self._last = oldest_transaction(self._store.open()).xid

    def initialOffset(self) -> dict[str, int]:
        """Return the beginning of all history."""
        return oldest_transaction(self._store.open())._replace(xid=0)._asdict()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the end of a micro-batch that begins at *start*.

        Raises RunConflict if *start* is of another database: its ids mean nothing here.
        """
        store = self._store.open()
        now = oldest_transaction(store)
        require_same(start, now, any_timeline=self._any_timeline)
        end = now.xid if self._last is None else min(now.xid, self._last)
        if not isinstance(limit, ReadAllAvailable):
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._most
            end = end_of_batch(store, start["xid"], end, most)
        return now._replace(xid=max(end, start["xid"]))._asdict()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the only partition of a micro-batch: a range of transactions."""
        if start["xid"] == end["xid"]:
            return []
        return [InputPartition((start["xid"], end["xid"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of *partition*."""
        keep_modules()
        yield from fetch(
            self._store.open(),
            "history",
            self._columns,
            Selection(),
            where=between(*partition.value),
        )

    def commit(self, end: dict[str, int]) -> None:
        """No-op: events stay in the store."""

    def stop(self) -> None:
        """No-op: nothing is held between two micro-batches."""
