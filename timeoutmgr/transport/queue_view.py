"""Views of a queue: its depth, its messages if the broker only hands messages out, its owner."""

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.contracts import BearsMarkers, Receiver, Transport, TransportSession
from timeoutmgr.errors import ConfigurationError, TransportUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.message.routes import DELAYED, DISPATCHER, TIMEOUTS

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


# --- whether a queue that is named like a satellite's is one: the transport is asked ----------

_KNOWN_FOR: Final = 10.0
"""Seconds for which an answer is remembered: an endpoint may be installed meanwhile."""
_MOST_KNOWN: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class InstalledSatellites:
    """Whether the endpoint is installed to which a queue of that name would belong."""

    transport: Transport
    monotonic: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[bool, float]] = field(default_factory=dict, repr=False)

    def __call__(self, name: str) -> bool:
        """Return whether *name*, which ends as a satellite's queue, is a satellite's queue.

        Raises TransportUnavailable.
        """
        now = self.monotonic()
        answer, until = self._known.get(name, (False, now))
        if now < until:
            return answer
        with closing(self.transport.session()) as session:
            answer = _is_installed(session, name)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[name] = answer, now + _KNOWN_FOR
        return answer


def _is_installed(session: TransportSession, name: str) -> bool:
    endpoint, dot, satellite = name.rpartition(".")
    if name.endswith(DISPATCHER):
        return True
    if dot + satellite == TIMEOUTS:
        return not session.missing_queues([endpoint + DISPATCHER])
    if endpoint and not session.missing_queues([endpoint]):
        return True
    # A send-only endpoint has no queue of its own name beside that of its delayed messages.
    if dot + satellite != DELAYED or not isinstance(session, BearsMarkers):
        return False
    return session.borne_marker(name, None) is not None
