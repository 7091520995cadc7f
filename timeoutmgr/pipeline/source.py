"""Spark's data source ``timeouts``; it reads and writes in Spark's Python workers.

Options of a read: ``store``, ``view``, ``snapshot``, ``partitions``, ``parts``, ``endpoint``,
``destination``, ``saga_id``, ``due_from``, ``due_to``, ``at_from``, ``at_to`` (half-open ranges of
instants in ISO 8601 with a zone, or in UTC microseconds; ``due_before`` and ``at_before`` are
synonyms of ``due_to`` and ``at_to``), ``open_since`` (of keys) and ``bucket_seconds``. The
requested schema is the projection.
Options of a read of a history table: ``table``, ``version``, ``partitions``, ``of_store``,
``endpoint``, ``destination``, ``at_from``, ``at_before``.
Options of a write, and of a stream into the store: ``store``, ``run_id``, ``on_conflict``,
``chunk_rows``; for rows that are messages to send also ``endpoint``, ``dataset`` and
``message_type``. Options of a stream from the store: ``store``, ``batch_events``,
``any_timeline``. A store that is named by a word also has ``schema`` and ``prefix``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from timeoutmgr.clock import SystemClock
from timeoutmgr.endpoint.configuration import check_endpoint_name
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message.instants import Micros, from_micros, to_micros
from timeoutmgr.pipeline.lake.table import STORED, Where
from timeoutmgr.pipeline.ledger import JobLedger
from timeoutmgr.pipeline.options import check_dataset
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.readers.statements import (
    PARTITIONS,
    Part,
    from_option,
    number_option,
    parts_of,
)
from timeoutmgr.pipeline.stores import NamedStore, keep_modules
from timeoutmgr.pipeline.views import Selection, ddl, projected
from timeoutmgr.pipeline.writers.conflicts import KnownIdRule
from timeoutmgr.pipeline.writers.loader import CHUNK_ROWS, Loader
from timeoutmgr.pipeline.writers.sent_rows import NEEDED, SentRows, is_to_send

_ENDS: Final = {"due_to": "due_before", "at_to": "at_before"}
_INSTANTS: Final = ("due_from", "due_before", "at_from", "at_before", "open_since")
_KNOWN: Final = (
    *("store", "schema", "prefix", "view", "snapshot", "partitions", "parts"),
    *("endpoint", "destination", "saga_id"),
    *(*_INSTANTS, *_ENDS),
    *("xid_from", "table", "version", "of_store", "before_xid"),
    *("bucket_seconds", "run_id", "on_conflict", "chunk_rows", "batch_events"),
    *("any_timeline", "dataset", "message_type"),
)
_OF_SPARK: Final = ("checkpointlocation", "queryname")
"""Options of a query that writes a stream: Spark also passes them to the data source."""
_OF_TABLES: Final = (
    *("table", "version", "of_store", "before_xid", "at_from", "at_before"),
    *("endpoint", "destination", "partitions", "at_to"),
)
_OF_STREAMS: Final = ("store", "schema", "prefix", "view", "batch_events", "any_timeline")


@dataclass(kw_only=True)
class TimeoutsReader(DataSourceReader):
    """Reads *columns* of *view*; with *snapshot*, in *tasks* tasks or in a task for each part.

    Without a snapshot a single task reads, since several tasks would see different moments.
    """

    store: NamedStore
    view: str
    columns: pa.Schema
    which: Selection
    snapshot: str | None
    tasks: int
    parts: list[Part] | None

    def partitions(self) -> list[InputPartition]:
        """Return the parts that are given, or cut the view into parts."""
        if self.snapshot and self.parts:
            return [*map(InputPartition, self.parts)]
        store = self.store.open()
        store.require_tables()
        count = self.tasks if self.snapshot else 1
        return [*map(InputPartition, parts_of(store, self.view, count, self.which))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of *partition*."""
        if partition.value is None:
            return  # Spark invents a part if there is none
        keep_modules()
        yield from fetch(
            self.store.open(),
            self.view,
            self.columns,
            self.which,
            part=partition.value,
            snapshot=self.snapshot,
        )


class FilteringReader(TimeoutsReader):
    """Reads only rows that can pass the filters of a query.

    Spark refuses a source whose reader has ``pushFilters`` unless the session allows it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Narrow the read; return filters that Spark must still apply: a range may be too wide."""
        for one in filters:
            before, self.which = self.which, narrowed(self.which, self.view, one)
            is_exact = isinstance(one, EqualTo) and isinstance(one.value, str)
            if not is_exact or self.which == before:
                yield one


class TimeoutsDataSource(DataSource):
    """Reads a view of a store, and stores timeouts."""

    _reader: type[TimeoutsReader] = TimeoutsReader

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        keep_modules()
        unknown = sorted(name for name in options if name.lower() not in (*_KNOWN, *_OF_SPARK))
        if unknown:
            raise ConfigurationError(
                f"the data source 'timeouts' has no option {unknown[0]!r}, only {', '.join(_KNOWN)}"
            )

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "timeouts"

    def schema(self) -> str:
        """Return all columns of the view, or of the history table."""
        return ddl(STORED if "table" in self.options else projected(self._view, None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of *schema*."""
        keep_modules()
        if "table" in self.options:
            return self._table_reader(schema.names)
        options, parts = self.options, self.options.get("parts")
        return self._reader(
            store=self._named,
            view=self._view,
            columns=projected(self._view, schema.names),
            which=self._which,
            snapshot=options.get("snapshot"),
            tasks=number_option(options, "partitions", PARTITIONS),
            parts=None if parts is None else from_option(parts),
        )

    def _table_reader(self, names: Sequence[str]) -> DataSourceReader:
        from timeoutmgr.pipeline.lake.reader import TableReader

        others = [name for name in self._options() if name not in _OF_TABLES]
        unknown = [name for name in names if name not in STORED.names]
        if others or unknown:
            raise ConfigurationError(
                f"a history table has the columns {', '.join(STORED.names)} and the options "
                f"{', '.join(_OF_TABLES)}; got {(others + unknown)[0]!r}"
            )
        given, which = self.options, self._which
        where = Where(
            store=given.get("of_store"),
            begin=which.at_from,
            end=which.at_before,
            endpoint=which.endpoint,
            destination=which.destination,
            before_xid=self._whole("before_xid"),
        )
        tasks = number_option(given, "partitions", PARTITIONS)
        columns = pa.schema([STORED.field(name) for name in names])
        return TableReader(given["table"], self._whole("version"), columns, where, tasks)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader that follows the whole history."""
        from timeoutmgr.pipeline.readers.history_stream import HistoryStream

        self._require_whole_history()
        columns = projected("history", schema.names)
        return HistoryStream(self._named, columns, self._options())

    def writer(self, schema: StructType, overwrite: bool) -> "TimeoutsWriter":
        """Return a writer of rows of *schema*; timeouts are never overwritten."""
        if overwrite:
            raise ConfigurationError(
                "timeouts are added, never overwritten; write with mode('append')"
            )
        return TimeoutsWriter(self._named, self._options(), self._sent_rows(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TimeoutsWriter":
        """Return a writer of the micro-batches of a stream."""
        return TimeoutsWriter(self._named, self._options(), self._sent_rows(schema))

    def _sent_rows(self, schema: StructType) -> SentRows | None:
        """Return the conversion of rows of *schema* to timeouts; None if they are timeouts."""
        if not is_to_send(schema.names):
            return None
        missing = [name for name in ("endpoint", "dataset") if name not in self.options]
        if missing:
            raise ConfigurationError(
                f"rows that are to be sent need option({missing[0]!r}, …), and the columns "
                f"{', '.join(NEEDED)}: endpoint is whose timeouts they are, and dataset with the "
                "key of a row is its message id"
            )
        check_dataset(self.options["dataset"])
        made = SentRows(
            endpoint=check_endpoint_name(self.options["endpoint"]),
            dataset=self.options["dataset"],
            message_type=self.options.get("message_type"),
            clock=SystemClock(),
            store=self._named.name,
        )
        made.require(schema.names)
        return made

    def _require_whole_history(self) -> None:
        others = [name for name in self._options() if name not in _OF_STREAMS]
        if others:
            raise ConfigurationError(
                f"a stream of the data source 'timeouts' has no option {others[0]!r}, only "
                f"{', '.join(_OF_STREAMS)}: it has every event of the history; choose among them "
                "by .where(…) on the stream"
            )
        view = self.options.get("view", "history")
        if view != "history":
            raise ConfigurationError(
                f"a stream follows the view 'history', got {view!r}; read others by spark.read"
            )

    @property
    def _view(self) -> str:
        return self.options.get("view", "pending")

    @property
    def _named(self) -> NamedStore:
        if "store" not in self.options:
            raise ConfigurationError(
                "the data source 'timeouts' needs option('store', …): a word NAME whose URL is in "
                "TIMEOUTMGR_STORE_NAME, or a settings file"
            )
        get = self.options.get
        return NamedStore(self.options["store"], get("schema"), get("prefix"))

    @property
    def _which(self) -> Selection:
        instants: dict[str, Any] = {
            _ENDS.get(name, name): _instant(name, self.options[name])
            for name in (*_INSTANTS, *_ENDS)
            if name in self.options
        }
        return Selection(
            endpoint=self.options.get("endpoint"),
            destination=self.options.get("destination"),
            saga_id=self.options.get("saga_id"),
            xid_from=self._whole("xid_from"),
            bucket=timedelta(seconds=number_option(self.options, "bucket_seconds", 60)),
            **instants,
        )

    def _whole(self, name: str) -> int | None:
        return number_option(self.options, name, 0, 0) if name in self.options else None

    def _options(self) -> dict[str, str]:
        return {name: self.options[name] for name in _KNOWN if name in self.options}


class FilteringDataSource(TimeoutsDataSource):
    """The data source for sessions that push filters down."""

    _reader = FilteringReader


_TEXTS: Final = {
    "pending": ("endpoint", "destination", "saga_id"),
    "history": ("endpoint", "destination"),
    "keys": ("endpoint",),
}
_COMPARISONS: Final = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_TIMES: Final = {"pending": "due", "keys": "due", "history": "at"}


def narrowed(which: Selection, view: str, asked: Filter) -> Selection:
    """Return *which*, narrowed by *asked* as far as a selection of *view* can express it."""
    if not isinstance(asked, _COMPARISONS) or len(asked.attribute) != 1:
        return which
    (name,), value, known = asked.attribute, asked.value, asdict(which)
    if isinstance(asked, EqualTo) and name in _TEXTS.get(view, ()) and known[name] is None:
        return replace(which, **{name: value})
    if name != _TIMES.get(view) or not isinstance(value, datetime) or value.tzinfo is None:
        return which
    at, begin, end = to_micros(value), f"{name}_from", f"{name}_before"
    if not isinstance(asked, LessThan | LessThanOrEqual):
        known[begin] = max(at, at if known[begin] is None else known[begin])
    if not isinstance(asked, GreaterThan | GreaterThanOrEqual):
        known[end] = min(at + 1, at + 1 if known[end] is None else known[end])
    return Selection(**known)


class WrittenRows(WriterCommitMessage):
    """The number of rows that a task stored, and how many were *new*."""

    def __init__(self, new: int) -> None:
        self.new = new


class TimeoutsWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Stores rows in chunks, each in a transaction; a retried task recognizes its own rows.

    A failed run undoes nothing: Spark may call ``abort`` while tasks still write, and leaves out
    tasks that it does not know. Stored rows stay, and the next run has the same ids. In a stream,
    the id of a row identifies it, not the id of its micro-batch: after a new checkpoint the ids of
    batches begin anew, and mean other rows.
    """

    def __init__(
        self, store: NamedStore, options: Mapping[str, str], sent: SentRows | None = None
    ) -> None:
        self._store = store
        self._sent = sent
        self._run_id = options.get("run_id")
        self._on_conflict = KnownIdRule.named(options.get("on_conflict", "ignore"))
        self._chunk_rows = number_option(options, "chunk_rows", CHUNK_ROWS)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task; return how many were new."""
        keep_modules()
        store = self._store.open()
        store.require_tables()
        loader = Loader(store, run_id=self._run_id, on_conflict=self._on_conflict)
        rows = iterator if self._sent is None else map(self._sent.timeouts, iterator)
        return WrittenRows(loader.load(rows, self._chunk_rows))

    def commit(
        self, messages: list[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """Record in the ledger how many rows were new; every chunk is already committed.

        The ledger has no runs of micro-batches.
        """
        if self._run_id is not None and batchId is None:
            counts = [one.new for one in messages if isinstance(one, WrittenRows)]
            JobLedger(self._store.open()).note_batches(self._run_id, counts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """No-op: the next attempt finds the rows of this attempt."""


def _instant(name: str, value: str) -> Micros:
    try:
        is_number = value.removeprefix("-").isdecimal()
        at = int(value) if is_number else to_micros(datetime.fromisoformat(value))
        from_micros(at)
        return at
    except (ValueError, OverflowError, InvalidMessage):
        raise ConfigurationError(
            f"option {name!r} is an instant of ISO 8601 with a zone, such as 2030-01-31T09:00:00Z, "
            f"or a whole number of UTC microseconds, of the years 1 to 9999; got {value!r}"
        ) from None
