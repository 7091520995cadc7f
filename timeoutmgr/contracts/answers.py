"""Calls that wait for an answer of one server: for how long, and when they are given up.

A server that hangs answers no call and sends no error. The calls are therefore written down while
they wait: a watchdog sees that the oldest call is overdue before it fails, and an ending process
does not wait for it.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
        """How often the server said something; two signs at once may count once."""
        self._bounds: dict[object, float] = {}
        self._is_given_up = False

    def after_fork(self) -> None:
        """Forget the calls of the parent's threads, and their end: a child has none of them."""
        self._lock, self._waiting = threading.RLock(), {}
        self._is_given_up = False

    def within(self, user: object, seconds: float) -> None:
        """Have calls that begin from now on fail after *seconds* without a sign of the server.

        It holds until *user* says ``any_time``. Of several bounds the shortest counts, from
        SHORTEST to LONGEST.
        """
        with self._lock:
            self._bounds[user] = min(max(SHORTEST, seconds), LONGEST)

    def any_time(self, user: object) -> None:
        """Take the bound of *user* away; twice is fine."""
        with self._lock:
            self._bounds.pop(user, None)

    @property
    def bound(self) -> float:
        """How many seconds a call may be without any sign of the server."""
        with self._lock:
            return min(self._bounds.values(), default=LONGEST)

    @property
    def is_given_up(self) -> bool:
        """Whether calls fail at once: the process ends, and the server was silent."""
        return self._is_given_up

    @contextmanager
    def waiting(self, descriptor: int | None) -> Iterator[None]:
        """Note a call that waits on the socket *descriptor*, None while it connects."""
        call = object()
        with self._lock:
            self._waiting[call] = (time.monotonic(), descriptor)
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[call]

    def sign(self) -> None:
        """Note that the server sent something, on any connection."""
        self._last_sign = time.monotonic()
        self.signs += 1

    def silence(self) -> float:
        """Return for how many seconds a call has been waiting while the server said nothing."""
        return self._since(self._last_sign)

    def oldest(self) -> float:
        """Return for how many seconds the oldest call has been waiting, signs or not."""
        return self._since(0.0)

    def _since(self, earliest: float) -> float:
        with self._lock:
            oldest = min((since for since, _ in tuple(self._waiting.values())), default=None)
        return 0.0 if oldest is None else time.monotonic() - max(oldest, earliest)

    def give_up(self) -> None:
        """End the waiting calls, and fail each further call at once, until ``resume``."""
        with self._lock:
            self._is_given_up = True
            # A call is noted under this lock: none of these sockets can be closed meanwhile.
            for _, descriptor in tuple(self._waiting.values()):
                if descriptor is not None:
                    _shut_down(descriptor)

    def resume(self) -> None:
        """Ask the server again."""
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
    """End the traffic on a socket that another thread waits on; it sees the end of the stream."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as same:
            same.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the server has ended the traffic already, or its user has closed the socket
