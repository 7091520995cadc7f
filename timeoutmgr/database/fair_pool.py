"""Connection pool that serves waiting threads in the order of their requests."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from sqlalchemy import exc
from sqlalchemy.pool import QueuePool


class FairSemaphore:
    """A semaphore that admits waiting threads in order. Thread-safe.

    A signal handler, or the garbage collector that closes a forgotten connection, may release a
    place at any line of the interrupted thread. So the lock is re-entrant, and a thread waits on a
    plain lock, whose methods are atomic in the interpreter.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.RLock()
        self._free = count
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, timeout: float) -> bool:
        """Return True when admitted, False if that takes longer than *timeout* seconds."""
        place = threading.Lock()
        place.acquire()
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            self._waiting.append(place)
        try:
            if place.acquire(timeout=timeout):
                return True
        except BaseException:  # by a signal handler
            if not self._gives_up(place):
                self.release()
            raise
        return not self._gives_up(place)

    def _gives_up(self, place: threading.Lock) -> bool:
        """Return False if *place* was admitted at the last moment; otherwise remove it."""
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
                return True
            return False

    def release(self) -> None:
        """Admit the thread that has waited longest, or a later thread."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


class _Admitted(threading.local):
    """Whether this thread has a place in the pool while it gets a connection."""

    here: bool = False


class FairPool(QueuePool):
    """A pool that gives the next free connections to waiting threads.

    SQLAlchemy's pool wakes a waiting thread, but a thread that returns a connection and requests
    another is usually faster: with 13 busy threads and 12 connections a thread waited over 10 s.

    A connection that returns after ``dispose`` is closed: SQLAlchemy's pool would keep it open, and
    never lend it again.
    """

    # SQLAlchemy derives a logger from the class; its pools are silent unless ``echo_pool`` is set.
    _sqla_logger_namespace = "sqlalchemy.pool.impl.QueuePool"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._semaphore = FairSemaphore(self.size() + self._max_overflow)
        self._admitted = _Admitted()
        self._is_disposed = False

    def dispose(self) -> None:
        """Close the idle connections, and each lent connection when it returns."""
        self._is_disposed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the idle connections; the pool stays usable."""
        super().dispose()

    def _do_get(self) -> Any:
        if self._admitted.here:
            # SQLAlchemy's method calls itself again if another thread was faster. A second
            # admission would cost the pool a place forever.
            return super()._do_get()
        if not self._semaphore.acquire(self._timeout):
            most = self.size() + self._max_overflow
            raise exc.TimeoutError(
                f"all {most} connections of the pool were lent for {self._timeout:g} s; let it "
                "grow (pool_size), or hold transactions for a shorter time"
            )
        self._admitted.here = True
        try:
            return super()._do_get()
        except BaseException:
            self._semaphore.release()
            raise
        finally:
            self._admitted.here = False

    def _do_return_conn(self, record: Any) -> None:
        try:
            super()._do_return_conn(record)
            if self._is_disposed:
                self.close_idle()
        finally:
            self._semaphore.release()
