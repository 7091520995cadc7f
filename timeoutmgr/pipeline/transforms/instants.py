"""Instants in columns that another program filled: timestamps, texts with a zone, or counts.

Texts follow ISO 8601, with a calendar date, a time and a zone. The number of digits of a count
since 1970 is its unit: 10 digits are seconds, 13 milliseconds, 16 microseconds and 19 nanoseconds,
each from 2001 to 2286. Fractions of a microsecond are rounded up, so no instant is early.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from timeoutmgr.message.instants import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import Column

EXAMPLE: Final = "2030-01-31T09:00:00Z"
EXPECTED: Final = f"{EXAMPLE}, or a count since 1970 of 10, 13, 16 or 19 digits"
KINDS: Final = (t.TimestampType, t.StringType, t.IntegralType, t.NullType)
"""Types of columns that can hold instants; other types have no zone."""

# Year, month, day, hour, minute, second, fraction, zone; with or without separators. In Java $ also
# matches before a final line end; only \z is the end.
_ISO: Final = (
    r"^(\d{4})(-?)(\d\d)\2(\d\d)[Tt ](\d\d)(?:(:?)(\d\d)(?:\6(\d\d)(?:[.,](\d+))?)?)?"
    r"([Zz]|[+-]\d\d(?::?\d\d)?)\z"
)
_YEAR, _MONTH, _DAY, _HOUR, _MINUTE, _SECOND, _FRACTION, _ZONE = 1, 3, 4, 5, 7, 8, 9, 10
_MICROS_OF_ONE: Final = {10: 1_000_000, 13: 1_000, 16: 1}
_NANOS: Final = 19


def instant(column: "Column", kind: t.DataType) -> "Column":
    """Return *column*, which is of *kind*, as timestamps; null for values without a zone."""
    if isinstance(kind, t.TimestampType):
        return column
    text = column.cast("string")
    return f.when(text.rlike(_ISO), _of_iso(text)).when(text.rlike(r"^\d+\z"), _of_count(text))


def of_nanos(nanos: "Column") -> "Column":
    """Return *nanos* since 1970 as timestamps, rounded up."""
    # Only integer arithmetic: a double would lose the last digits of such a count.
    rest = f.pmod(nanos, f.lit(1_000))
    down = f.call_function("div", nanos - rest, f.lit(1_000))
    return f.timestamp_micros(down + (rest > 0).cast("bigint"))


def is_thinkable(at: "Column") -> "Column":
    """Whether the instant *at* is in the years 1 to 9999: Spark's timestamps reach further."""
    return f.unix_micros(at).between(EARLIEST, LATEST)


def _of_iso(text: "Column") -> "Column":
    def part(number: int) -> "Column":
        return f.regexp_extract(text, _ISO, number)

    fraction, zone = part(_FRACTION), f.regexp_replace(part(_ZONE), ":", "")
    day = f.concat_ws("-", part(_YEAR), part(_MONTH), part(_DAY))
    time = f.concat_ws(":", part(_HOUR), *(f.lpad(part(at), 2, "0") for at in (_MINUTE, _SECOND)))
    hours = f.rpad(zone, 5, "0")
    offset = f.when(f.upper(zone) == "Z", f.lit("Z")).otherwise(
        f.concat(f.substring(hours, 1, 3), f.lit(":"), f.substring(hours, 4, 2))
    )
    micros = f.rpad(f.substring(fraction, 1, 6), 6, "0")
    at = f.concat(day, f.lit("T"), time, f.lit("."), micros, offset).try_cast("timestamp")
    is_finer = f.substring(fraction, 7, 100).rlike("[1-9]")
    return f.when(is_finer, f.timestamp_micros(f.unix_micros(at) + 1)).otherwise(at)


def _of_count(text: "Column") -> "Column":
    digits, number = f.length(text), text.try_cast("bigint")
    found = f.when(digits == _NANOS, of_nanos(number))
    for many, micros in _MICROS_OF_ONE.items():
        found = found.when(digits == many, f.timestamp_micros(number * micros))
    return found
