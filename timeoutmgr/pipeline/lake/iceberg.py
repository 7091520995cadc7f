"""A history table in Iceberg, by pyiceberg: the marks are properties of the table.

Every commit asserts the snapshot from which it began. By default pyiceberg would retry on top of a
conflicting commit, which can hold the same events: a property of the table forbids the retry.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    SignError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In, NotEqualTo
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from sqlalchemy.exc import SQLAlchemyError

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.redaction import masked
from timeoutmgr.pipeline.errors import CommitConflict
from timeoutmgr.pipeline.lake.table import (
    ANYTHING,
    BUCKETED,
    NO_FILES,
    WRITTEN,
    DataFiles,
    Doomed,
    Marks,
    Where,
    deleted_rows,
    other_columns,
    raises_unavailable,
    require_alone,
    scattered,
    stored_columns,
)
from timeoutmgr.pipeline.options import ICEBERG

_PREFIX: Final = "timeoutmgr"
_FILES: Final = "metadata/*.metadata.json"
_ONCE: Final = {"commit.retry.num-retries": "0"}
_PACKED: Final = {"write.parquet.compression-codec": "zstd", "format-version": "2"}


@raises_unavailable(RESTError, SignError, SQLAlchemyError)
class IcebergHistory:
    """The table at ``iceberg:CATALOG.NAMESPACE.TABLE``, in a catalog configured for pyiceberg."""

    def __init__(
        self, place: str, version: int | None = None, written: pa.Schema = WRITTEN
    ) -> None:
        self.place = place
        self._written: Final = written
        catalog, _, self._name = place.removeprefix(ICEBERG).partition(".")
        if "." not in self._name or "" in self._name.split("."):
            raise ConfigurationError(
                f"an Iceberg table is {ICEBERG}CATALOG.NAMESPACE.TABLE, got {place!r}; the catalog "
                "is one of pyiceberg's configuration"
            )
        self._catalog: Final = _loaded(catalog)
        self._table: Table | None = None
        self._snapshot = version
        self.refresh()

    @property
    def version(self) -> int | None:
        """The id of the snapshot; None if the table lacks it, for example after its expiry."""
        if self._table is None:
            return None
        wanted, table = self._snapshot, self._table
        found = table.current_snapshot() if wanted is None else table.snapshot_by_id(wanted)
        return None if found is None else found.snapshot_id

    def refresh(self) -> None:
        """Switch to the newest version."""
        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._table = None
        else:
            require_alone(self._table.location(), _FILES)
            if not {*self._written.names} <= {*self._table.schema().column_names}:
                raise other_columns(self.place)

    def marks(self, store: str) -> Marks:
        """Return the marks of *store*."""
        if self._table is None:
            return {}
        prefix = _key(store, "")
        return {
            name.removeprefix(prefix): int(value)
            for name, value in self._table.properties.items()
            if name.startswith(prefix)
        }

    def files(self, where: Where = ANYTHING) -> DataFiles:
        """Return the files in the partitions of *where*, as pyiceberg plans them."""
        if self._table is None:
            return NO_FILES
        wanted = " AND ".join(f"{name} {sign} '{value}'" for name, sign, value in where.partitions)
        scan = self._table.scan(row_filter=wanted or AlwaysTrue(), snapshot_id=self._snapshot)
        planned = list(scan.plan_files())
        if any(task.delete_files for task in planned):
            raise deleted_rows(self.place)
        paths = [task.file.file_path for task in planned]
        if not paths:
            return NO_FILES
        io = self._table.io
        assert isinstance(io, PyArrowFileIO), "the data files are read by Arrow"
        parts = [PyArrowFileIO.parse_location(one, io.properties) for one in paths]
        scheme, netloc, _ = parts[0]
        found = tuple(path for *_, path in parts)
        return DataFiles(io.fs_by_scheme(scheme, netloc), found, stored_columns(self._written))

    def append(self, store: str, batches: pa.RecordBatchReader, marks: Marks) -> None:
        """Commit *batches* and *marks* in one snapshot."""
        table = self._table or self._created(store)
        with self._conflicts():
            if _ONCE.items() - table.properties.items():
                with table.transaction() as alone:
                    alone.set_properties(_ONCE)
            with table.transaction() as both:
                both.set_properties({_key(store, name): str(n) for name, n in marks.items()})
                both.append(batches.read_all())

    def remove(self, doomed: Doomed) -> None:
        """Commit a snapshot without the *doomed* rows."""
        if self._table is None:
            return
        # Typed as pydantic models with named fields, but their constructors take positions.
        is_in: Any = In
        equal: Any = EqualTo
        differs: Any = NotEqualTo
        wanted: BooleanExpression = is_in(doomed.column, {*doomed.values})
        if doomed.kept is not None:
            wanted = And(wanted, differs("event", doomed.kept))
        if doomed.store is not None:
            wanted = And(wanted, equal("store", doomed.store))
        with self._conflicts():
            self._table.delete(wanted)

    def forget_versions(self) -> None:
        """No-op: pyiceberg removes no files."""

    def compact(self, before: date) -> int:
        """Rewrite partitions that have several files, with a commit for each day."""
        table, old = self._table, scattered(self.place, self.files().paths, before)
        if table is None:
            return 0
        for day, partitions in groupby(old, key=itemgetter(0)):
            with self._conflicts(), table.transaction() as change:
                for _day, bucket in partitions:
                    this = f"event_date = '{day.isoformat()}' AND bucket = {bucket}"
                    rows = table.scan(row_filter=this).to_arrow()
                    change.overwrite(rows, overwrite_filter=this)
        return sum(map(len, old.values()))

    def _created(self, store: str) -> Table:
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with suppress(TableAlreadyExistsError), self._conflicts():
            making = self._catalog.create_table_transaction(
                self._name, self._written, properties=_ONCE | _PACKED
            )
            require_alone(making.table_metadata.location, _FILES)
            with making, making.update_spec() as spec:
                for name in BUCKETED:
                    spec.add_identity(name)
        self._table = self._catalog.load_table(self._name)
        # If another writer created the table and committed, use that version.
        if self.marks(store):
            raise CommitConflict(f"{self.place} was created by another writer meanwhile")
        return self._table

    @contextmanager
    def _conflicts(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedException as error:
            raise CommitConflict(f"{self.place}: {error}") from error


def _loaded(name: str) -> Catalog:
    try:
        # Pass the properties: otherwise pyiceberg uses the environment at the time of its import.
        properties: Any = Config().get_catalog_config(name) or {}
        return load_catalog(name, **properties)
    except (ValueError, NotInstalledError) as error:
        variable = f"PYICEBERG_CATALOG__{name.upper().replace('-', '_')}__URI"
        raise ConfigurationError(
            f"pyiceberg cannot load the catalog {name!r}: {masked(str(error))}; set its URI by the "
            f"variable {variable}, or as catalog.{name}.uri in .pyiceberg.yaml"
        ) from error


def _key(store: str, name: str) -> str:
    return f"{_PREFIX}.{sha256(store.encode()).hexdigest()[:16]}.{name}"
