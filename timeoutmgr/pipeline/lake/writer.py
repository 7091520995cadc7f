"""Writers of a store's history into a history table: each event once, however many retries.

On PostgreSQL an event belongs to a transaction, and the table's mark ``xid`` says up to which
transaction it has all events: a writer adds the events after it, up to the oldest open transaction.
Mark and events are in one commit, so they always agree. Other databases do not tell which
transactions are open; there a writer adds the old rows that the table lacks.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import func, select

from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.errors import ArchiveMismatch, CommitConflict, RunConflict
from timeoutmgr.pipeline.lake.table import (
    ROW,
    WRITTEN,
    HistoryTable,
    Marks,
    Where,
    as_written,
    read_history,
)
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.readers.transactions import (
    between,
    end_of_batch,
    oldest_transaction,
    require_same,
)
from timeoutmgr.pipeline.stores import Store, identity
from timeoutmgr.pipeline.views import HISTORY, Selection

TRIES: Final = 8
SLICE: Final = 100_000
"""Number of a store's sequences that are compared with the table in one step."""
_WITH_XID: Final = pa.schema([*HISTORY, pa.field("xid", pa.int64())])

_Result = TypeVar("_Result")
Reached = Callable[[int], None]
"""Receives the transaction up to which the table has all events."""


@dataclass(slots=True, kw_only=True)
class TransactionWriter:
    """Writes all events, in the order of transactions, up to *last* (None: without end).

    Each commit has about *most* events, but only whole transactions.
    """

    store: Store
    table: HistoryTable
    most: int
    any_timeline: bool = False
    last: int | None = None
    reached: Reached = lambda _xid: None
    has_more: bool = field(default=False, init=False)
    """Whether readable events remained after the last commit."""
    _name: str = field(init=False)

    def __post_init__(self) -> None:
        """Ask the server for the name of the store in history tables."""
        self._name = identity(self.store)

    def step(self) -> int | None:
        """Commit the events that follow the table's mark."""
        return tried(self.table, self._step)

    def _step(self) -> int | None:
        self.has_more = False
        marks = self.table.marks(self._name)
        now = oldest_transaction(self.store)
        require_same(marks, now, any_timeline=self.any_timeline)
        begin, last = marks.get("xid", 0), now.xid if self.last is None else min(now.xid, self.last)
        while begin < last:
            end = end_of_batch(self.store, begin, last, self.most)
            rows = fetch(self.store, "history", _WITH_XID, Selection(), where=between(begin, end))
            found = CountedRows(WRITTEN, (as_written(one, self._name) for one in rows))
            if not found.is_empty:
                position = {**now._replace(xid=end)._asdict(), "batch": marks.get("batch", 0) + 1}
                found.append_to(self.table, self._name, position)
            self.reached(end)
            self.has_more = end < last
            if not found.is_empty:
                return found.count
            begin = end  # no events: the table has all of them without a commit
        return None


@dataclass(slots=True, kw_only=True)
class SequenceWriter:
    """Writes rows from before *cutoff* that the table lacks, about *most* in each commit."""

    store: Store
    table: HistoryTable
    most: int
    cutoff: Micros
    _slices: Iterator[pa.Table] | None = None
    _name: str = ""
    _batch: int = 0

    def step(self) -> int | None:
        """Commit the missing rows of some slices."""
        if self._slices is None:
            self._name, self._slices = identity(self.store), slices(self.store, self.cutoff)
            self._batch = self.table.marks(self._name).get("batch", 0)
        missing, count = list[pa.RecordBatch](), 0
        for rows in self._slices:
            found = lacking(rows, held_of(self.table, self._name, rows))
            missing += [as_written(one, self._name) for one in found.to_batches()]
            count += found.num_rows
            if count >= self.most:
                break
        if not count:
            return None
        tried(self.table, lambda: self._put(missing))
        self.table.refresh()
        return count

    def _put(self, missing: list[pa.RecordBatch]) -> None:
        # Commits of other stores, and compactions, do not matter.
        if self.table.marks(self._name).get("batch", 0) != self._batch:
            raise RunConflict(
                f"another process writes the history of {self._name} into {self.table.place}, "
                "without the lock of this store; nothing more was written. Run it again"
            )
        reader = pa.RecordBatchReader.from_batches(WRITTEN, missing)
        self.table.append(self._name, reader, {"batch": self._batch + 1})
        self._batch += 1


def tried(table: HistoryTable, step: Callable[[], _Result]) -> _Result:
    """Return the result of *step* on the newest version of *table*; retry after a conflict."""
    for _ in range(TRIES - 1):
        table.refresh()
        with suppress(CommitConflict):
            return step()
    table.refresh()
    return step()


class CountedRows:
    """Batches with the columns *written*; counts rows while a table reads them.

    The first batch is read at once: a table would learn too late that the database is unreachable.
    """

    def __init__(self, written: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._written, self._rest = written, batches
        self._first = list(islice(batches, 1))
        self.is_empty: Final = not self._first
        self.count = 0
        self._failure: TimeoutManagerError | None = None

    def append_to(self, table: HistoryTable, store: str, marks: Marks) -> None:
        """Commit the batches once, as rows of *store*; raise the database's errors unchanged."""
        reader = pa.RecordBatchReader.from_batches(self._written, self._passing())
        try:
            table.append(store, reader, marks)
        except TimeoutManagerError:
            if self._failure is not None:  # delta-rs has turned the error into a text
                raise self._failure from None
            raise

    def _passing(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in chain(self._first, self._rest):
                self.count += batch.num_rows
                yield batch
        except TimeoutManagerError as error:
            self._failure = error
            raise


def slices(store: Store, cutoff: Micros) -> Iterator[pa.Table]:
    """Yield the history of *store* before *cutoff*, SLICE sequences at a time."""
    history = store.tables.history
    old = select(func.min(history.c.sequence), func.max(history.c.sequence)).where(
        history.c.at < cutoff
    )
    with store.database.read() as connection:
        at, last = connection.execute(old).one()
    while at is not None and at <= last:
        where = [history.c.sequence >= at, history.c.sequence < at + SLICE]
        batches = [*fetch(store, "history", HISTORY, Selection(at_before=cutoff), where=where)]
        if batches:
            yield pa.Table.from_batches(batches)
        following = select(func.min(history.c.sequence)).where(history.c.sequence >= at + SLICE)
        with store.database.read() as connection:
            at = connection.execute(following).scalar_one()


def held_of(table: HistoryTable, store: str, rows: pa.Table) -> pa.Table:
    """Return the events of *table* that may be among *rows* of *store*."""
    at = pc.min_max(rows["at"].cast(pa.int64()))
    sequence = pc.min_max(rows["sequence"])
    where = Where(
        store=store,
        begin=at["min"].as_py(),
        end=at["max"].as_py() + 1,
        sequences=(sequence["min"].as_py(), sequence["max"].as_py()),
    )
    return read_history(table, HISTORY.names, where)


def lacking(rows: pa.Table, held: pa.Table) -> pa.Table:
    """Return the *rows* that are not among *held*, compared by ROW."""
    left = rows.join(held.select([*ROW]), [*ROW], join_type="left anti")
    return left.select(HISTORY.names).cast(HISTORY)


def proved(rows: pa.Table, held: pa.Table) -> list[tuple[int, str, Micros]]:
    """Return the ROW values of the *rows* that are among *held*.

    Raises ArchiveMismatch if such a row differs in another column.
    """
    both = rows.join(held, [*ROW], join_type="inner", right_suffix=" held")
    for name in HISTORY.names:
        if name in ROW:
            continue
        one, other = both[name], both[f"{name} held"]
        is_same = pc.or_(
            pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other))
        )
        if not pc.all(is_same, min_count=0).as_py():
            wrong = both.filter(pc.invert(is_same))["id"][0]
            raise ArchiveMismatch(
                f"the event of {wrong} has another {name} in the history table than in the store; "
                "nothing more was removed. Compare both, and keep the events with --keep until "
                "then"
            )
    at = both["at"].cast(pa.int64()).to_pylist()
    return [*zip(both["sequence"].to_pylist(), both["id"].to_pylist(), at, strict=True)]
