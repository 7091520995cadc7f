"""Whether two messages of one id have the same headers: all count but those that tell the time."""

from collections.abc import Mapping
from typing import Any, Final

from timeoutmgr.headers import DELIVER_AT, TIME_SENT

OF_TIMES: Final = (TIME_SENT, DELIVER_AT)
"""When it was sent is another time in each run; when it is due is a column, and compared there."""


def same_headers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether both have the same headers, but for OF_TIMES."""
    return _but_times(one) == _but_times(other)


def _but_times(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name not in OF_TIMES}
