"""The data source ``timeouts`` of Spark: reading and writing run in its Python workers.

Options of a read: ``store``, ``view``, ``snapshot``, ``partitions``, ``parts``, ``endpoint``,
``destination``, ``due_from``, ``due_before``, ``at_from``, ``at_before`` (instants of ISO 8601 with
a zone, or UTC microseconds) and ``bucket_seconds``; the schema that is asked for is the projection.
Options of a write: ``store``, ``run_id``, ``on_conflict``, ``chunk_rows``. Options of a stream:
``store``, ``batch_events``, ``any_timeline``. A store that is named by a word has ``schema`` and
``prefix`` too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.instants import Micros, to_micros
from timeoutmgr.pipeline.fetching import fetch
from timeoutmgr.pipeline.ledger import Ledger
from timeoutmgr.pipeline.loading import CHUNK_ROWS, Loaded, Loader, checked_on_conflict
from timeoutmgr.pipeline.parts import PARTITIONS, from_option, parts_of
from timeoutmgr.pipeline.statements import Part
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.views import Selection, ddl, projected

_INSTANTS: Final = ("due_from", "due_before", "at_from", "at_before")
_KNOWN: Final = (
    *("store", "schema", "prefix", "view", "snapshot", "partitions", "parts"),
    *("endpoint", "destination"),
    *_INSTANTS,
    *("bucket_seconds", "run_id", "on_conflict", "chunk_rows", "batch_events"),
    "any_timeline",
)
_OF_STREAMS: Final = ("store", "schema", "prefix", "view", "batch_events", "any_timeline")


class TimeoutsDataSource(DataSource):
    """Reads a view of a store, and stores timeouts."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        unknown = sorted(name for name in options if name.lower() not in _KNOWN)
        if unknown:
            raise ConfigurationError(
                f"the data source 'timeouts' has no option {unknown[0]!r}, only {', '.join(_KNOWN)}"
            )

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` calls it."""
        return "timeouts"

    def schema(self) -> str:
        """Return all columns of the view."""
        return ddl(projected(self._view, None))

    def reader(self, schema: StructType) -> "TimeoutsReader":
        """Return what reads the columns of *schema*."""
        columns = projected(self._view, schema.names)
        return TimeoutsReader(self._named, self._view, columns, self._which, self._options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what follows the history, all of it."""
        from timeoutmgr.pipeline.following import HistoryStream

        self._require_whole_history()
        columns = projected("history", schema.names)
        return HistoryStream(self._named, columns, self._options())

    def writer(self, schema: StructType, overwrite: bool) -> "TimeoutsWriter":
        """Return what stores rows of *schema*; there is no overwriting of timeouts."""
        if overwrite:
            raise ConfigurationError(
                "timeouts are added, never overwritten; write with mode('append')"
            )
        return TimeoutsWriter(self._named, self._options())

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
    def _named(self) -> "NamedStore":
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
            name: _instant(name, self.options[name]) for name in _INSTANTS if name in self.options
        }
        return Selection(
            endpoint=self.options.get("endpoint"),
            destination=self.options.get("destination"),
            bucket=timedelta(
                seconds=_number("bucket_seconds", self.options.get("bucket_seconds", "60"))
            ),
            **instants,
        )

    def _options(self) -> dict[str, str]:
        return {name: self.options[name] for name in _KNOWN if name in self.options}


_kept: dict[object, Store] | None = None


def keep_stores() -> None:
    """Have this process keep the stores that it opens, for one task after the other."""
    global _kept
    _kept = {}


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store by name; what workers get, and open for themselves."""

    name: str
    schema: str | None = None
    prefix: str | None = None

    @classmethod
    def of(cls, store: str | Store) -> "NamedStore":
        """Return by what workers find *store*, be it opened or named."""
        if isinstance(store, str):
            return cls(store)
        if not store.name or store.name.endswith(".toml"):
            return cls(store.name)  # all else is in the settings
        table = store.tables.timeouts
        return cls(store.name, table.schema, table.name.removesuffix("timeouts"))

    def open(self) -> Store:
        """Return the store; see ``open_store``."""
        if _kept is None:
            return self._opened()
        # Another file under that name is another store.
        path = Path(self.name)
        key = (self, path.stat().st_mtime_ns if path.is_file() else None)
        if key not in _kept:
            _kept[key] = self._opened()
        return _kept[key]

    def _opened(self) -> Store:
        return open_store(self.name, schema=self.schema, prefix=self.prefix)


class PartOfView(InputPartition):
    """What one task reads."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self.part = part


class TimeoutsReader(DataSourceReader):
    """Reads a view, in parts where a shared snapshot is held."""

    def __init__(
        self,
        store: NamedStore,
        view: str,
        columns: pa.Schema,
        which: Selection,
        options: Mapping[str, str],
    ) -> None:
        self._store = store
        self._view = view
        self._columns = columns
        self._which = which
        self._snapshot = options.get("snapshot")
        self._count = _number("partitions", options.get("partitions", str(PARTITIONS)))
        self._parts = options.get("parts")

    def partitions(self) -> list[InputPartition]:
        """Return the parts; one where no snapshot would make several agree."""
        if self._snapshot and self._parts:
            return [PartOfView(part) for part in from_option(self._parts)]
        count = self._count if self._snapshot else 1
        store = self._store.open()
        store.require_tables()
        return [PartOfView(part) for part in parts_of(store, self._view, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of *partition*."""
        assert isinstance(partition, PartOfView)
        yield from fetch(
            self._store.open(),
            self._view,
            self._columns,
            self._which,
            part=partition.part,
            snapshot=self._snapshot,
        )


class Written(WriterCommitMessage):
    """What one task stored."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded


class TimeoutsWriter(DataSourceArrowWriter):
    """Stores rows in chunks, each in a transaction; a task that is tried again finds its rows.

    There is nothing to undo when a run failed: Spark may call ``abort`` while tasks still write,
    and leaves out those that it does not know of. What was stored stays, under ids that the next
    run has too.
    """

    def __init__(self, store: NamedStore, options: Mapping[str, str]) -> None:
        self._store = store
        self._run_id = options.get("run_id")
        self._on_conflict = checked_on_conflict(options.get("on_conflict", "ignore"))
        self._chunk_rows = _number("chunk_rows", options.get("chunk_rows", str(CHUNK_ROWS)))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task; return how many were new."""
        store = self._store.open()
        store.require_tables()
        loader = Loader(store, run_id=self._run_id, on_conflict=self._on_conflict)
        return Written(loader.load(iterator, self._chunk_rows))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write into the ledger how many rows were new; every chunk is committed already."""
        if self._run_id is not None:
            counts = [one.loaded.new for one in messages if isinstance(one, Written)]
            Ledger(self._store.open()).note_batches(self._run_id, counts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing; see above."""


def _instant(name: str, value: str) -> Micros:
    try:
        if value.removeprefix("-").isdecimal():
            return int(value)
        return to_micros(datetime.fromisoformat(value))
    except (ValueError, InvalidMessage):
        raise ConfigurationError(
            f"option {name!r} is an instant of ISO 8601 with a zone, such as 2030-01-31T09:00:00Z, "
            f"or a whole number of UTC microseconds; got {value!r}"
        ) from None


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigurationError(f"option {name!r} is a whole number, got {value!r}") from None
