"""Sender of an endpoint: pooled sessions for any thread, and a check of every result."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from timeoutmgr.contracts import Clock, SendResult, TellsTime, Transport, TransportSession
from timeoutmgr.contracts.stores import DirectStorage
from timeoutmgr.errors import SchemaMissing, Unroutable
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Outgoing
from timeoutmgr.resilience.after_fork import begin_anew_after_fork, of_parent
from timeoutmgr.sender.composer import Composer
from timeoutmgr.sender.window import SendingWindow
from timeoutmgr.transport.delivery_policy import PLAIN_SENDING, SendingPolicy
from timeoutmgr.transport.work import require_confirmed

Result = TypeVar("Result")

_KNOWN_FOR = 60.0
"""Seconds for which a queue counts as existing after it was found."""


class SessionPool:
    """Idle transport sessions; one thread uses a session at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._idle: list[TransportSession] = []
        begin_anew_after_fork(self)

    @contextmanager
    def session(self) -> Iterator[TransportSession]:
        """Yield a session; after an error, close the session instead of reusing it."""
        session = self._popped() or self._transport.session()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        self._idle.append(session)

    def _popped(self) -> TransportSession | None:
        # No lock: a signal handler that sends would wait forever for its own thread.
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def after_fork(self) -> None:
        """Keep the parent's sessions, unused: the garbage collector would close them."""
        of_parent.extend(self._idle)
        self._idle = []

    def close(self) -> None:
        """Close the idle sessions; the pool stays usable."""
        while session := self._popped():
            session.close()


class Sender:
    """Puts messages into queues, and raises unless all are confirmed. Thread-safe."""

    def __init__(
        self,
        pool: SessionPool,
        clock: Clock,
        policy: SendingPolicy = PLAIN_SENDING,
        missing: Callable[[TransportSession, Sequence[str]], list[str]] | None = None,
        *,
        has_clock: bool = False,
    ) -> None:
        self._pool = pool
        self._missing = missing or (lambda session, queues: session.missing_queues(queues))
        self._clock = clock
        self._policy = policy
        self._has_clock = has_clock
        self._seen: dict[str, float] = {}

    def send(self, outgoing: Sequence[Outgoing], *, finally_for: Sequence[str] = ()) -> None:
        """Send all of *outgoing*.

        *finally_for* are the destinations of delayed messages: a missing queue is an error now,
        because it would otherwise be noticed only when the message is due.

        Raises Unroutable, with nothing sent for a missing queue of *finally_for*; DeliveryUnknown
        or TransportUnavailable.
        """
        with self._pool.session() as session:
            missing = self._missing_now(session, finally_for)
            results = [] if missing else self._send(session, outgoing)
        if missing:
            raise Unroutable(missing[0])
        require_confirmed(outgoing, results)

    def now(self) -> Micros | None:
        """Return the time of the clock beside the queues; None if only the host's clock counts.

        Raises TransportUnavailable.
        """
        if not self._has_clock:
            return None
        with self._pool.session() as session:
            return session.now() if isinstance(session, TellsTime) else None

    def window(self) -> SendingWindow:
        """Return a window, which sends messages as they come, and waits for all results once."""
        return SendingWindow(
            self._pool.session, self._missing_now, self._send, at_once=self._policy.sends_at_once
        )

    def _send(self, session: TransportSession, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        return self._policy.wrap(session).send(outgoing)

    def require_queues(self, queues: Sequence[str]) -> None:
        """Raise Unroutable for the first of *queues* that does not exist."""
        if self._unseen(queues):
            with self._pool.session() as session:
                missing = self._missing_now(session, queues)
            if missing:
                raise Unroutable(missing[0])

    def _missing_now(self, session: TransportSession, queues: Sequence[str]) -> list[str]:
        """Return the *queues* that do not exist; skip queues that were found within a minute."""
        unseen = self._unseen(queues)
        missing = self._missing(session, sorted(unseen)) if unseen else []
        if missing:
            return missing
        if len(self._seen) > 10_000:  # bounded, because destinations come from callers
            self._seen.clear()
        self._seen |= dict.fromkeys(unseen, self._clock.monotonic() + _KNOWN_FOR)
        return []

    def wait_for(self, function: Callable[[], Result]) -> Result:
        """Return the result of *function*, which waits for a server."""
        return function()

    def _unseen(self, queues: Sequence[str]) -> set[str]:
        now = self._clock.monotonic()
        return {queue for queue in queues if self._seen.get(queue, 0.0) <= now}


# --- the outlet of an endpoint: the parts that send messages ----------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """The parts of an endpoint that are needed to send.

    *manager_address* is the queue of the timeout manager; *direct* bypasses that queue.
    *missing_schema* returns which tables an error is about, if they are missing or too old.
    """

    endpoint: str
    transport: Transport
    clock: Clock
    new_id: Callable[[], str]
    check_destinations: bool
    composer: Composer
    sender: Sender
    missing_schema: Callable[[Exception], SchemaMissing | None]
    manager_address: str | None = None
    direct: DirectStorage | None = None
    policy: SendingPolicy = PLAIN_SENDING
