"""Snapshots of a store for any number of tasks and several views.

Without a snapshot, a row that changes during a read may be read twice or not at all, and a timeout
that is dispatched between two reads may be missing from both. PostgreSQL exports its snapshot; on
other databases, one transaction copies the rows into Parquet files.
"""

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from sqlalchemy import func, select, text

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.frames import EVERYTHING, read_timeouts, tasks_on
from timeoutmgr.pipeline.readers.arrow_batches import fetch_within
from timeoutmgr.pipeline.readers.statements import parts_of
from timeoutmgr.pipeline.readers.transactions import OldestTransaction, oldest_within
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.views import Selection, ddl, projected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE: Final = "all.parquet"

# A server may end idle or long transactions; the transaction of a snapshot is both on purpose.
# The names come from the server's list, since a server refuses settings that it does not know.
_LET_IT_BE = text(
    "SELECT set_config(name, '0', true) FROM pg_settings "
    "WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"
)


@dataclass(frozen=True, slots=True)
class Snapshot(ABC):
    """One moment of *store*: *now*, by the clock with which due times are compared."""

    store: Store
    now: Micros

    def read(
        self,
        spark: "SparkSession",
        view: str,
        *,
        columns: Sequence[str] | None = None,
        which: Selection = EVERYTHING,
    ) -> "DataFrame":
        """Return *columns* of *view* as they were at that moment; only while the block lasts."""
        return self._rows(spark, view, columns, which)

    @abstractmethod
    def _rows(
        self, spark: "SparkSession", view: str, columns: Sequence[str] | None, which: Selection
    ) -> "DataFrame": ...


@contextmanager
def snapshot(
    store: str | Store,
    *,
    views: Sequence[str] = ("pending", "history"),
    which: Selection = EVERYTHING,
    columns: Sequence[str] | None = None,
    folder: Path | None = None,
    clock: Clock | None = None,
) -> Iterator[Snapshot]:
    """Hold one moment of *store* until the end of the block.

    On other databases than PostgreSQL, *views*, *which* and *columns* select the rows to copy into
    a folder below *folder*, which workers must be able to read. PostgreSQL copies nothing, but its
    vacuum cannot clean rows removed since then: hold a snapshot no longer than needed.
    """
    opened = store if isinstance(store, Store) else open_store(store)
    opened.require_tables()
    given = clock or SystemClock()
    if opened.is_postgresql:
        with _exported(opened, given) as held:
            yield held
        return
    target = Path(tempfile.mkdtemp(prefix="timeoutmgr-snapshot-", dir=folder))
    try:
        now = opened.database.now(given)
        _copy(opened, target, views, which, columns)
        yield CopiedSnapshot(opened, now, target)
    finally:
        shutil.rmtree(target, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class SharedSnapshot(Snapshot):
    """A snapshot that PostgreSQL exported under a name.

    It sees every transaction before *oldest* that was committed.
    """

    name: str
    oldest: OldestTransaction

    def _rows(
        self, spark: "SparkSession", view: str, columns: Sequence[str] | None, which: Selection
    ) -> "DataFrame":
        """Return *columns* of *view*, read by as many tasks as there are parts.

        Cut the view here: Spark's process for planning would first have to open the store, which
        takes longer than many reads.
        """
        return read_timeouts(
            spark,
            self.store,
            view=view,
            columns=columns,
            which=which,
            snapshot=self.name,
            parts=parts_of(self.store, view, tasks_on(spark), which, self.now),
        )


@dataclass(frozen=True, slots=True)
class CopiedSnapshot(Snapshot):
    """Rows that were copied in one transaction, as Parquet files in *folder*."""

    folder: Path

    def _rows(
        self, spark: "SparkSession", view: str, columns: Sequence[str] | None, which: Selection
    ) -> "DataFrame":
        """Return *columns* of the copy of *view*."""
        # Pass the columns: otherwise Spark starts a job to find them.
        copied = projected(view, pq.read_schema(self.folder / view / _FILE).names)
        rows = spark.read.schema(ddl(copied)).parquet(str(self.folder / view))
        return rows.select(*projected(view, columns).names)


@contextmanager
def _exported(store: Store, clock: Clock) -> Iterator[SharedSnapshot]:
    # Not from the pool: the run needs this connection until its end.
    with store.database.connect_apart() as connection:
        connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            connection.execute(_LET_IT_BE)
            name = str(connection.execute(select(func.pg_export_snapshot())).scalar_one())
            now = store.database.now_in(connection)
            # Take the weakest lock on every partition, so none is detached while tasks read.
            for table in (store.tables.timeouts, store.tables.history):
                connection.execute(select(table.c.id).limit(0))
            yield SharedSnapshot(store, now, name, oldest_within(connection))


def _copy(
    store: Store,
    target: Path,
    views: Sequence[str],
    which: Selection,
    columns: Sequence[str] | None,
) -> None:
    with store.database.read("REPEATABLE READ") as connection:
        for view in views:
            known = projected(view, None)
            wanted = projected(view, [n for n in columns if n in known.names] if columns else None)
            (target / view).mkdir()
            with pq.ParquetWriter(target / view / _FILE, wanted) as writer:
                for batch in fetch_within(connection, store, view, wanted, which):
                    writer.write_batch(batch)
