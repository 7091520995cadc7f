"""Looking into a queue whose broker only hands messages out: receive, hold, give back."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from timeoutmgr.contracts import Receiver
from timeoutmgr.message import Received

MOST_HELD: Final = 65_535
"""Messages that a receiver of AMQP can hold at once."""
_PAGE: Final = 100
_WAIT: Final = 2.0
_EMPTY: Final = 0.1


def held(open_receiver: Callable[[int], Receiver], limit: int, count: int) -> Generator[Received]:
    """Yield up to *limit* messages of a queue that has about *count*; all go back at the end.

    They go back at once, and so in their order.
    """
    limit = min(limit, MOST_HELD)
    if not limit:
        return
    with closing(open_receiver(limit)) as receiver:
        seen = 0
        while seen < limit:
            page = receiver.receive(min(_PAGE, limit - seen), _WAIT if seen < count else _EMPTY)
            if not page:
                return
            seen += len(page)
            yield from page
