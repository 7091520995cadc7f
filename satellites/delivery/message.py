"""A due message as its destination gets it, and how long it rests between attempts. Pure."""

from typing import Final

from timeoutmgr.contracts import Timeout
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, with_headers

_FIRST_BACK_OFF: Final = 1_000_000
_LONGEST_BACK_OFF: Final = 60_000_000


def delivered(timeout: Timeout, at: str) -> Message:
    """Return the message as its destination gets it: its own id, TimeSent and body kept.

    *at* is the instant of the dispatch as a header spells it.
    """
    added = {headers.RELATED_TO_TIMEOUT: timeout.id, headers.DISPATCHED_AT: at}
    return with_headers(timeout.message, {**timeout.message.headers, **added})


def back_off(attempts: int) -> Micros:
    """Return how long a message waits after *attempts* failures: 1, 2, 4 … 60 seconds."""
    return min(_FIRST_BACK_OFF << min(attempts, 10), _LONGEST_BACK_OFF)


def waited(attempts: int) -> Micros:
    """Return how long a timeout has waited at least between its *attempts*; 0 before the first."""
    return sum(back_off(attempt) for attempt in range(attempts))
