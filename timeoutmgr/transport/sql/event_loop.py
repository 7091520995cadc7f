"""Delivery of the SQL queue's messages in kombu's event loop, as a Celery worker runs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Any, Final

from timeoutmgr.transport.sql.wakeups import Wakeup

_AT_ONCE: Final = 20
"""Messages that are delivered before the loop serves its other sockets again."""
_WAKES: Final = 4096


class LoopDelivery:
    """Calls *deliver* in the thread of *loop*, until it raises Empty.

    *deliver* delivers one message without waiting. It is called when any thread notifies *wakeup*,
    after ``ring``, and every *pause* seconds: nothing announces a message in an SQLite file, or a
    message that another process gave back. An error of *deliver* ends the loop, as an error of a
    broker's socket does. Except for ``ring``, only the loop's thread calls the methods.
    """

    def __init__(self, loop: Any, deliver: Callable[[], None], wakeup: Wakeup) -> None:
        self._loop = loop
        self._deliver = deliver
        self._wakeup = wakeup
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._is_rung = False
        self._timer: Any = None
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)

    def start(self, pause: float) -> None:
        """Start to deliver."""
        self._loop.add_reader(self._reading, self._on_ring)
        self._timer = self._loop.call_repeatedly(pause, self.ring)
        self._wakeup.subscribe(self.ring)
        self.ring()

    def stop(self) -> None:
        """Stop delivering; twice is fine, and so is a loop that was reset meanwhile."""
        if self._timer is None:
            return
        self._wakeup.unsubscribe(self.ring)
        self._timer.cancel()
        self._loop.remove_reader(self._reading)
        with self._lock:
            self._timer = None
            os.close(self._reading)
            os.close(self._writing)

    def ring(self) -> None:
        """Have the loop deliver waiting messages; from any thread, also after ``stop``."""
        # A forked child shares its parent's pipe, and has a lock that may never be released.
        if self._is_rung or self._process != os.getpid():
            return
        with self._lock:
            if self._timer is not None and not self._is_rung:
                self._is_rung = True
                os.write(self._writing, b".")

    def _on_ring(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._reading, _WAKES)
        self._is_rung = False  # before the query: later messages ring again
        for _ in range(_AT_ONCE):
            if self._timer is None:  # a consumer closed the connection
                return
            try:
                self._deliver()
            except Empty:
                return
        self.ring()
