"""Calls that wait for an answer of a server: how long they have waited, and when they fail.

A server that hangs answers no call and sends no error. So calls are recorded while they wait: a
watchdog sees that the oldest call is overdue before it fails, and an ending process does not wait.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol, runtime_checkable

SHORTEST: Final = 5.0
"""Seconds; a shorter bound would mistake a busy server for a hanging server."""
LONGEST: Final = 60.0


class Answers:
    """Calls of this process that wait for an answer. Safe for many threads."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may send while its thread has the lock.
        self._lock = threading.RLock()
        self._waiting: dict[object, tuple[float, int | None]] = {}
        self._last_sign = time.monotonic()
        self.signs = 0
        """How often the server sent something; two signs at the same moment may count once."""
        self._bounds: dict[object, float] = {}
        self._is_given_up = False

    def after_fork(self) -> None:
        """Forget the calls of the parent's threads, and whether they were given up."""
        self._lock, self._waiting = threading.RLock(), {}
        self._is_given_up = False

    def within(self, user: object, seconds: float) -> None:
        """Make calls that begin from now on fail after *seconds* without a sign of the server.

        The bound applies until *user* calls ``any_time``. The shortest of several bounds counts,
        limited to SHORTEST and LONGEST.
        """
        with self._lock:
            self._bounds[user] = min(max(SHORTEST, seconds), LONGEST)

    def any_time(self, user: object) -> None:
        """Remove the bound of *user*; idempotent."""
        with self._lock:
            self._bounds.pop(user, None)

    @property
    def bound(self) -> float:
        """How many seconds a call may wait without any sign of the server."""
        with self._lock:
            return min(self._bounds.values(), default=LONGEST)

    @property
    def is_given_up(self) -> bool:
        """Whether calls fail at once, because the process is ending and the server was silent."""
        return self._is_given_up

    @contextmanager
    def waiting(self, descriptor: int | None) -> Iterator[None]:
        """Record a call that waits on the socket *descriptor*; None while it connects."""
        call = object()
        with self._lock:
            self._waiting[call] = (time.monotonic(), descriptor)
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[call]

    def sign(self) -> None:
        """Record that the server sent something, on any connection."""
        self._last_sign = time.monotonic()
        self.signs += 1

    def silence(self) -> float:
        """Return for how many seconds a call has been waiting while the server said nothing."""
        return self._since(self._last_sign)

    def oldest(self) -> float:
        """Return how many seconds the oldest call has been waiting, whether or not signs came."""
        return self._since(0.0)

    def _since(self, earliest: float) -> float:
        with self._lock:
            oldest = min((since for since, _ in tuple(self._waiting.values())), default=None)
        return 0.0 if oldest is None else time.monotonic() - max(oldest, earliest)

    def give_up(self) -> None:
        """End the waiting calls, and fail each further call at once, until ``resume``."""
        with self._lock:
            self._is_given_up = True
            # Calls are recorded under this lock, so none of these sockets can be closed now.
            for _, descriptor in tuple(self._waiting.values()):
                if descriptor is not None:
                    _shut_down(descriptor)

    def resume(self) -> None:
        """Let calls reach the server again."""
        self._is_given_up = False


@runtime_checkable
class Answering(Protocol):
    """A server as its clients see it: a database, or the broker of a transport."""

    @property
    def unanswered(self) -> Answers:
        """The calls that wait for it."""
        ...

    def describe(self) -> str:
        """Return its URL with every secret masked."""
        ...


def _shut_down(descriptor: int) -> None:
    """Shut down a socket on which another thread waits; that thread sees the end of the stream."""
    # The server may have shut it down already, or its user may have closed it.
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
        same.shutdown(socket.SHUT_RDWR)
