"""Views of a store, their columns, and selections of rows. Pure values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.load import checked_bucket

INSTANT: Final = pa.timestamp("us", tz="UTC")

_DDL: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    INSTANT: "TIMESTAMP_LTZ",
}

_TYPES: Final[Mapping[str, pa.DataType]] = {
    **dict.fromkeys(("due", "created", "at", "closed_at", "bucket"), INSTANT),
    **dict.fromkeys(("version", "attempts", "attempt"), pa.int32()),
    **dict.fromkeys(("sequence", "messages", "bytes"), pa.int64()),
    **{"maybe_sent": pa.int16(), "body": pa.binary()},
}
"""The types of columns by their names, equal in all views; all other columns are texts."""


def _view(*names: str) -> pa.Schema:
    return pa.schema([(name, _TYPES.get(name, pa.string())) for name in names])


PENDING: Final = _view(
    *("endpoint", "id", "due", "destination", "saga_id", "message_id", "headers", "body"),
    *("content_type", "content_encoding", "created"),
    *("version", "attempts", "maybe_sent", "run_id", "hidden_by"),
)
"""A complete pending timeout; headers are JSON text."""

HISTORY: Final = _view(
    *("sequence", "id", "event", "at", "due", "endpoint", "destination", "attempt", "node"),
    *("run_id", "body_sha256"),
)
"""Events of timeouts."""

KEYS: Final = _view("endpoint", "id", "due", "version", "state", "closed_at")
"""Every stored id, until the end of its retention."""

LOAD: Final = _view("endpoint", "destination", "bucket", "messages", "bytes")
"""How many pending timeouts are due in each bucket of time, counted by the database."""

VIEWS: Final[Mapping[str, pa.Schema]] = {
    "pending": PENDING,
    "history": HISTORY,
    "keys": KEYS,
    "load": LOAD,
}

TO_STORE: Final = pa.schema([PENDING.field(i) for i in range(PENDING.get_field_index("version"))])
"""The columns of a timeout to store."""


def projected(view: str, columns: Sequence[str] | None) -> pa.Schema:
    """Return *columns* of *view*, in that order (None: all); raise WrongColumns if unknown.

    Raises ConfigurationError if the view is unknown.
    """
    if view not in VIEWS:
        raise ConfigurationError(f"there is no view {view!r}; views are {', '.join(VIEWS)}")
    schema = VIEWS[view]
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise WrongColumns(
            f"view {view!r}", [f"has no column {name!r}, only {schema.names}" for name in unknown]
        )
    return pa.schema([schema.field(name) for name in columns])


def in_numbers(schema: pa.Schema) -> pa.Schema:
    """Return *schema* as in the tables of a store, where instants are numbers."""
    return pa.schema(
        [(one.name, pa.int64() if one.type == INSTANT else one.type) for one in schema]
    )


def ddl(schema: pa.Schema) -> str:
    """Return *schema* in Spark's notation."""
    return ", ".join(f"{field.name} {_DDL[field.type]}" for field in schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects rows of a view; instants are half-open ranges, None means any.

    *due* applies to pending timeouts, keys and load, *at* to history, where *xid_from* is the first
    transaction on PostgreSQL. *saga_id* applies to pending timeouts; *open_since* leaves out keys
    that were closed before. *bucket* is the width of a bucket of the load.
    """

    endpoint: str | None = None
    destination: str | None = None
    saga_id: str | None = None
    due_from: Micros | None = None
    due_before: Micros | None = None
    at_from: Micros | None = None
    at_before: Micros | None = None
    xid_from: int | None = None
    open_since: Micros | None = None
    bucket: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        """Check the bucket."""
        checked_bucket(self.bucket)
