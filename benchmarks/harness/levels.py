"""Delay levels on a program's own broker, and the minimal code that fills them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from timeoutmgr.clock import SystemClock
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.native.infrastructure import DelayLevels, delay_topology
from timeoutmgr.native.names import OURS, to_levels

from .figures import Sample, Watch
from .messages import BODY, DAY, HEADERS, SECOND, micros, transport_of

WINDOW = 500
_CLOCK = SystemClock()


def levels(broker: str, queue: str) -> DelayLevels:
    """Return our levels as they are by default."""
    return DelayLevels(
        transport=transport_of(broker), names=OURS, queue_type="quorum", bound=[queue]
    )


@contextmanager
def emptied(broker: str, queue: str) -> Iterator[None]:
    """Create the levels anew at the end: the next run begins with empty levels."""
    yield
    made = levels(broker, queue)
    with made.session() as session:
        session.remove(delay_topology(OURS, "quorum"))
    made.install()


def published(broker: str, queue: str, count: int, over: int = 0) -> Sample:
    """Publish messages into the levels, window by window.

    By default all messages go into one level, and none of them first waits for a part of a second.
    Spread *over* some microseconds from tomorrow on, they take the paths of a store's timeouts.
    """
    first, step = (DAY, over // count) if over else (2**21 * SECOND, SECOND)
    with closing(transport_of(broker).session()) as session, emptied(broker, queue):
        watch = Watch()
        for start in range(0, count, WINDOW):
            due = micros() + first
            numbers = range(start, min(start + WINDOW, count))
            session.send([_message(n, queue, due + n * step) for n in numbers])
        return watch.sample(count)


def _message(number: int, queue: str, due: int) -> Outgoing:
    message = Message(id=str(number), headers=HEADERS, body=BODY)
    return to_levels(Outgoing(queue, message), due, OURS, _CLOCK)
