"""Views of a queue: its depth, and its messages where the broker only hands messages out."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from timeoutmgr.contracts import Receiver, Transport
from timeoutmgr.errors import ConfigurationError, TransportUnavailable
from timeoutmgr.message.message import Received

MOST_HELD: Final = 65_535
"""Messages that a receiver of AMQP can hold at once."""
_PAGE: Final = 100
_WAIT: Final = 2.0
_EMPTY: Final = 0.1


def held(open_receiver: Callable[[int], Receiver], limit: int, count: int) -> Generator[Received]:
    """Yield up to *limit* messages of a queue that has about *count*: receive, hold, give back.

    All go back together at the end, and so in their order.
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


def count_waiting(transport: Transport, queue: str) -> int | None:
    """Return how many messages wait in *queue*; None, for not known, while the broker is away.

    Not known, too, if the queue or the tables of the queues are missing: nothing was installed.
    """
    try:
        transport.check()
        with closing(transport.session()) as session:
            return session.count(queue)
    except (TransportUnavailable, ConfigurationError):
        return None


def waiting_text(count: int | None, queue: str) -> str:
    """Return the sentence of *count* messages that wait in *queue*, for people."""
    if count is None:
        return f"how many messages wait in {queue} to be stored is not known: it cannot be reached"
    if count == 1:
        return f"1 message waits in {queue} to be stored"
    return f"{count} messages wait in {queue} to be stored"
