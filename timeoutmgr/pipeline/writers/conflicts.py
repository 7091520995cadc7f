"""Rules for ids that a store already knows, and the comparison of the content of two rows.

Both writers follow these rules, the writer for PostgreSQL in SQL.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.headers import DELIVER_AT, TIME_SENT
from timeoutmgr.pipeline.errors import ContentDiffers

COMPARED: Final = ("destination", "saga_id", "body", "content_type", "content_encoding")
"""Columns whose values have to be equal. Due times and headers have rules of their own:

The first due time of a stored row counts, unless the timeout was rescheduled. All headers count
except TIME_HEADERS, in any order.
"""
TIME_HEADERS: Final = (TIME_SENT, DELIVER_AT)
"""Each run sends at another time; the due time is compared as a column."""

KNOWN: Final = "which on_conflict=error forbids"
DIFFERENT: Final = "with other contents"
GIVEN_TWICE: Final = "or are given twice, with other contents"


class KnownIdRule(StrEnum):
    """Rules for an id that the store knows."""

    IGNORE = "ignore"
    """Skip the row: its timeout is stored."""
    ERROR = "error"
    """Refuse the chunk, unless this run stored the row, with the same content."""
    VERIFY = "verify"
    """Refuse the chunk if the pending timeout has another content."""

    @classmethod
    def named(cls, given: str) -> "KnownIdRule":
        """Return the value named *given*; raise ConfigurationError for any other text."""
        try:
            return cls(given)
        except ValueError:
            raise ConfigurationError(
                f"on_conflict is one of {', '.join(cls)}, got {given!r}"
            ) from None

    @property
    def compares(self) -> bool:
        """Whether contents are compared."""
        return self is not KnownIdRule.IGNORE


def refuse(ids: Sequence[str], why: str) -> None:
    """Raise ContentDiffers for *ids*, if there are any."""
    if ids:
        raise ContentDiffers(ids, why)


def same_content(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two rows have the same content, apart from due times."""
    return all(one[name] == other[name] for name in COMPARED) and same_headers(
        json.loads(one["headers"]), json.loads(other["headers"])
    )


def same_headers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two rows have the same headers, except TIME_HEADERS."""
    return _without_times(one) == _without_times(other)


def _without_times(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name not in TIME_HEADERS}
