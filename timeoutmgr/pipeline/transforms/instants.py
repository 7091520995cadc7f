"""Instants in columns that somebody else filled: timestamps, or texts that say their zone."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from timeoutmgr.instants import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import Column

EXAMPLE: Final = "2030-01-31T09:00:00Z"
KINDS: Final = (t.TimestampType, t.StringType, t.NullType)
"""Types of columns that can hold instants; in others nothing tells the zone."""

# To Java $ is also before a line's end, and only \z the end.
_ISO: Final = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)\z"


def instant(column: "Column", kind: t.DataType) -> "Column":
    """Return *column*, which is of *kind*, as timestamps; empty where it is none with a zone."""
    if isinstance(kind, t.TimestampType):
        return column
    text = column.cast("string")
    return f.when(text.rlike(_ISO), text.try_cast("timestamp"))


def is_thinkable(at: "Column") -> "Column":
    """Whether a calendar has the instant *at*: Spark's timestamps reach further."""
    return f.unix_micros(at).between(EARLIEST, LATEST)
