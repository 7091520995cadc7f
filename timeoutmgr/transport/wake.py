"""A way for one thread to end another's wait on a socket."""

import select
import socket


class Wake:
    """Readable, for a selector, from ``set`` until ``take``."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return what a selector waits on."""
        return self._reader.fileno()

    def set(self) -> None:
        """End the wait that is on, or the next; from any thread, and after ``close`` too."""
        try:
            self._writer.send(b"\0")
        except OSError:
            return  # the pipe is full, so it is readable already; or closed, so nobody waits

    def wait(self, seconds: float) -> None:
        """Wait until ``set``, or so long; ``take`` tells which."""
        select.select([self._reader], [], [], max(seconds, 0))

    def take(self) -> bool:
        """Return whether ``set`` was called since the last time."""
        taken = False
        try:
            while self._reader.recv(4096):
                taken = True
        except BlockingIOError:
            return taken
        return taken

    def close(self) -> None:
        """Free both ends."""
        self._reader.close()
        self._writer.close()
