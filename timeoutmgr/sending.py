"""Sending from any thread: sessions are pooled, and every result is looked at."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from timeoutmgr.contracts import Clock, Transaction, Transport, TransportSession
from timeoutmgr.errors import Unroutable
from timeoutmgr.message import Outgoing
from timeoutmgr.transport.work import require_confirmed

logger = logging.getLogger(__name__)

_KNOWN_FOR = 60.0
"""Seconds for which a queue that was seen counts as existing."""


class SessionPool:
    """Transport sessions that nobody uses now; a session is one thread's at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._idle: list[TransportSession] = []

    @contextmanager
    def session(self) -> Iterator[TransportSession]:
        """Lend a session; one that met an error is closed, not lent again."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        session = session or self._transport.session()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        with self._lock:
            self._idle.append(session)

    def close(self) -> None:
        """Close what is idle now; the pool stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()


class Sender:
    """Puts messages into queues and raises unless every one was taken. Safe for many threads."""

    def __init__(self, pool: SessionPool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._seen: dict[str, float] = {}

    def send(
        self,
        outgoing: Sequence[Outgoing],
        *,
        finally_for: Sequence[str] = (),
        transaction: Transaction | None = None,
    ) -> None:
        """Send all of *outgoing*.

        *finally_for* are the destinations of delayed messages: a queue that is missing now would
        be found out only when the message is due, so it is an error at the door.

        Raises Unroutable, DeliveryUnknown or TransportUnavailable.
        """
        with self._pool.session() as session:
            missing = self._missing_now(session, finally_for)
            results = [] if missing else session.send(outgoing, transaction=transaction)
        if missing:
            raise Unroutable(missing[0])
        require_confirmed(outgoing, results)

    def require_queues(self, queues: Sequence[str]) -> None:
        """Raise Unroutable for the first of *queues* that does not exist."""
        if self._unseen(queues):
            with self._pool.session() as session:
                missing = self._missing_now(session, queues)
            if missing:
                raise Unroutable(missing[0])

    def _missing_now(self, session: TransportSession, queues: Sequence[str]) -> list[str]:
        """Return those of *queues* that do not exist; what was seen lately is not asked again."""
        unseen = self._unseen(queues)
        missing = session.missing_queues(sorted(unseen)) if unseen else []
        if missing:
            return missing
        if len(self._seen) > 10_000:  # destinations come from callers: bounded
            self._seen.clear()
        self._seen |= dict.fromkeys(unseen, self._clock.monotonic() + _KNOWN_FOR)
        return []

    def _unseen(self, queues: Sequence[str]) -> set[str]:
        now = self._clock.monotonic()
        return {queue for queue in queues if self._seen.get(queue, 0.0) <= now}
