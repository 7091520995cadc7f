"""The table ``history`` of a lake: its columns, the contract of its formats, and reads of it.

A table holds the history of any number of stores. (store, sequence) identifies an event, but SQLite
reuses a sequence once its row was removed, so writers compare ``ROW``. Each commit atomically adds
events of a store and the store's marks, which say which events the table has.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce, wraps
from operator import and_
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import FileSystem, LocalFileSystem

from timeoutmgr.errors import ConfigurationError, StorageUnavailable
from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.views import HISTORY

ROW: Final = ("sequence", "id", "at")
"""The columns that identify an event of a store."""
BUCKETS: Final = 16
BUCKETED: Final = ("event_date", "bucket")
"""The partition columns: the day of an event in UTC, and the bucket of its endpoint."""
STORED: Final = pa.schema([*HISTORY, pa.field("store", pa.string()), pa.field("xid", pa.int64())])
"""The columns of an event: history, its store, and on PostgreSQL its transaction."""
WRITTEN: Final = pa.schema(
    [*STORED, pa.field("event_date", pa.date32()), pa.field("bucket", pa.int32())]
)

Table = TypeVar("Table")
Marks: TypeAlias = Mapping[str, int]
"""Numbers that a commit records for a store: ``batch`` counts commits; others grow, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Selects events: of *store* (None: any), from *begin* to before *end*.

    *before_xid* leaves out that transaction and later transactions; *sequences* are the first and
    the last wanted sequence.
    """

    store: str | None = None
    begin: Micros | None = None
    end: Micros | None = None
    endpoint: str | None = None
    destination: str | None = None
    before_xid: int | None = None
    sequences: tuple[int, int] | None = None

    @property
    def days(self) -> tuple[date | None, date | None]:
        """The first and the last day that can have such events."""
        first = None if self.begin is None else from_micros(self.begin).date()
        return first, None if self.end is None else from_micros(self.end).date()

    @property
    def bucket(self) -> int | None:
        """The bucket of the wanted endpoint, if any."""
        return None if self.endpoint is None else bucket_of(self.endpoint)

    @property
    def partitions(self) -> list[tuple[str, str, str]]:
        """Conditions on the partitions of such events: a column, an operator and a value."""
        first, last, bucket = *self.days, self.bucket
        found = [("event_date", ">=", first), ("event_date", "<=", last), ("bucket", "=", bucket)]
        return [(name, sign, str(value)) for name, sign, value in found if value is not None]

    def expression(self) -> ds.Expression | None:
        """Return the condition for Arrow."""
        equal = {name: getattr(self, name) for name in ("store", "endpoint", "destination")}
        found = [text_field(name) == value for name, value in equal.items() if value is not None]
        if self.begin is not None:
            found.append(ds.field("at") >= _instant(self.begin))
        if self.end is not None:
            found.append(ds.field("at") < _instant(self.end))
        if self.before_xid is not None:
            found.append(ds.field("xid") < self.before_xid)
        if self.sequences is not None:
            least, most = self.sequences
            found += [ds.field("sequence") >= least, ds.field("sequence") <= most]
        return reduce(and_, found) if found else None


def text_field(name: str) -> ds.Expression:
    """Return a column as text: some files have views of text, which Arrow cannot compare.

    Delta writes such files when it removes rows.
    """
    return ds.field(name).cast(pa.string())


ANYTHING: Final = Where()


@dataclass(frozen=True, slots=True)
class Doomed:
    """The rows to remove: their *column* has one of *values*, and they are of *store*, if given.

    Rows of the event *kept* stay.
    """

    column: str
    values: tuple[str, ...] | tuple[int, ...]
    store: str | None = None
    kept: str | None = None

    def expression(self) -> ds.Expression:
        """Return the condition for Arrow."""
        is_text = isinstance(self.values[0], str)
        found = (text_field if is_text else ds.field)(self.column).isin(list(self.values))
        if self.kept is not None:
            found &= text_field("event") != self.kept
        return found if self.store is None else found & (text_field("store") == self.store)


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The data files *paths* of a version of a table; workers get them by pickle."""

    files: FileSystem
    paths: tuple[str, ...]
    schema: pa.Schema = STORED

    def read(self, columns: Sequence[str], where: Where = ANYTHING) -> Iterator[pa.RecordBatch]:
        """Yield *columns* of the events that *where* selects."""
        yield from self.matching(columns, where.expression())

    def matching(
        self, columns: Sequence[str], wanted: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield *columns* of the rows that meet *wanted*; fail if a file was removed."""
        if not self.paths:
            return
        try:
            found = ds.dataset(
                list(self.paths), schema=self.schema, filesystem=self.files, format="parquet"
            )
            for batch in found.to_batches(columns=list(columns), filter=wanted):
                if batch.num_rows:
                    yield batch
        except FileNotFoundError as error:
            text = f"a file of the table was removed, as an erasure does; run it again ({error})"
            raise StorageUnavailable(text) from error
        except (OSError, pa.ArrowInvalid) as error:
            raise unavailable("a file of the table", error) from error

    def parts(self, count: int) -> list["DataFiles"]:
        """Return the files in at most *count* parts, but at least one part."""
        each = max(1, -(-len(self.paths) // count))
        starts = range(0, max(1, len(self.paths)), each)
        return [DataFiles(self.files, self.paths[at : at + each], self.schema) for at in starts]


_CALLS: Final = (
    *("__init__", "refresh", "marks", "files"),
    *("append", "remove", "forget_versions", "compact"),
)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


def unavailable(place: str, error: Exception) -> StorageUnavailable:
    """Return the error for *error* of a call at *place*, in one line, without colour codes."""
    text = " ".join(_COLOURS.sub("", str(error)).split())
    return StorageUnavailable(
        f"{place} cannot be read or written: {text}; see to its service, credentials and rights, "
        "and run it again"
    )


def deleted_rows(place: str) -> PipelineUnavailable:
    """Return the error for a table with delete files, which mark rows of other files as deleted."""
    return PipelineUnavailable(
        f"{place} has files of deleted rows, which this pipeline does not read; rewrite its data "
        "files with the engine that deleted the rows"
    )


def other_columns(place: str) -> ConfigurationError:
    """Return the error for a table that is not a history table."""
    return ConfigurationError(
        f"{place} is a table with other columns than a history has; name another place"
    )


def raises_unavailable(*kinds: type[Exception]) -> Callable[[type[Table]], type[Table]]:
    """Return a decorator: calls of a table raise StorageUnavailable for OSError and *kinds*."""
    failures: tuple[type[Exception], ...] = (OSError, *kinds)

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def guard(table: "HistoryTable", *given: Any, **named: Any) -> Any:
            try:
                return call(table, *given, **named)
            except failures as error:
                raise unavailable(table.place, error) from error

        return guard

    def decorated(kind: type[Table]) -> type[Table]:
        for name in _CALLS:
            setattr(kind, name, guarded(vars(kind)[name]))
        return kind

    return decorated


_REMEDIES: Final = {
    "_delta_log": "a Delta table; write its place as delta:{0}, or name another folder",
    "manifests": "a history table of Parquet files; write its place as {0}, or move its folders "
    "manifests and data into a folder of their own",
    "metadata/*.metadata.json": "an Iceberg table; write its place as "
    "iceberg:CATALOG.NAMESPACE.TABLE, or name another folder",
}
"""For each pattern of files, the table that it indicates, and the remedy."""


def require_alone(location: str, own: str) -> None:
    """Raise ConfigurationError if a local folder has a table of another format than *own* files.

    Each format removes files that it does not know.
    """
    folder = location.removeprefix("file://")
    for sign, remedy in _REMEDIES.items():
        if sign != own and any(Path(folder).glob(sign)):
            raise ConfigurationError(f"{folder} is {remedy.format(folder)}")


NO_FILES: Final = DataFiles(LocalFileSystem(), ())


class HistoryTable(Protocol):
    """A history table at one of its versions; ``refresh`` switches to the newest.

    Each call raises StorageUnavailable if the place cannot be read or written.
    """

    place: str

    @property
    def version(self) -> int | None:
        """The version; None while there is no table."""
        ...

    def refresh(self) -> None:
        """Switch to the newest version; a missing table has no events."""
        ...

    def marks(self, store: str) -> Marks:
        """Return the marks of *store*; empty before its first commit."""
        ...

    def files(self, where: Where = ANYTHING) -> DataFiles:
        """Return the files that can have events of *where*."""
        ...

    def append(self, store: str, batches: pa.RecordBatchReader, marks: Marks) -> None:
        """Commit events of *store*, which have WRITTEN's columns, with its new *marks*.

        Raises CommitConflict, and adds nothing, if another commit since this version conflicts:
        refresh, and read the marks again.
        """
        ...

    def remove(self, doomed: "Doomed") -> None:
        """Commit a version without the *doomed* rows; older versions keep them for a while.

        Raises CommitConflict like ``append``.
        """
        ...

    def forget_versions(self) -> None:
        """Permanently remove all files that the newest version lacks; older readers will fail.

        An Iceberg table keeps the files: the catalog's engine has to expire snapshots.
        """
        ...

    def compact(self, before: date) -> int:
        """Merge small files of days before *before*; return how many files were replaced."""
        ...


def as_written(batch: pa.RecordBatch, store: str) -> pa.RecordBatch:
    """Return *batch*, with columns of history and perhaps ``xid``, with all WRITTEN columns."""
    given = {"xid": pa.scalar(None, pa.int64()), "store": store}
    return with_columns(batch, WRITTEN, "at", given)


def with_columns(
    batch: pa.RecordBatch, written: pa.Schema, day: str, given: Mapping[str, Any]
) -> pa.RecordBatch:
    """Return *batch* with all columns of *written*; missing columns get their value in *given*.

    The instants in the column *day* and the endpoints determine the partition.
    """
    columns = {name: pa.repeat(value, batch.num_rows) for name, value in given.items()}
    columns |= {name: batch[name] for name in batch.schema.names}
    columns |= {"event_date": batch[day], "bucket": _buckets(batch["endpoint"])}
    arrays = [pc.cast(columns[field.name], field.type) for field in written]
    return pa.RecordBatch.from_arrays(arrays, schema=written)


def partition_of(path: str) -> tuple[date, int]:
    """Return the day and the bucket that the folders of a data file name.

    Raises KeyError if they name none.
    """
    named = dict(part.partition("=")[::2] for part in PurePosixPath(path).parts)
    return date.fromisoformat(named["event_date"]), int(named["bucket"])


def scattered(place: str, paths: Iterable[str], before: date) -> dict[tuple[date, int], list[str]]:
    """Return the *paths* that share a partition of a day before *before*, by partition."""
    found = defaultdict[tuple[date, int], list[str]](list)
    for path in paths:
        try:
            found[partition_of(path)].append(path)
        except KeyError:
            raise ConfigurationError(
                f"{place} has files outside of the partitions {', '.join(BUCKETED)}, such as "
                f"{path}; compact it with the engine that created or repartitioned it"
            ) from None
    return {key: some for key, some in sorted(found.items()) if key[0] < before and len(some) > 1}


def stored_columns(written: pa.Schema) -> pa.Schema:
    """Return the columns of *written* that are in the files, not in their paths."""
    return pa.schema([field for field in written if field.name not in BUCKETED])


def bucket_of(endpoint: str) -> int:
    """Return the bucket of *endpoint*."""
    return crc32(endpoint.encode()) % BUCKETS


def _buckets(endpoints: pa.Array) -> pa.Array:
    known = pc.dictionary_encode(endpoints)
    numbers = pa.array([bucket_of(one) for one in known.dictionary.to_pylist()], pa.int32())
    return numbers.take(known.indices)


def read_history(table: HistoryTable, columns: Sequence[str], where: Where = ANYTHING) -> pa.Table:
    """Return *columns* of the events that *where* selects."""
    schema = pa.schema([STORED.field(name) for name in columns])
    batches = table.files(where).read(columns, where)
    return pa.Table.from_batches((one.cast(schema) for one in batches), schema=schema)


def _instant(at: Micros) -> pa.Scalar:
    return pc.cast(pa.scalar(at, pa.int64()), HISTORY.field("at").type)
