"""Base class for a task of a running endpoint in its own thread."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from timeoutmgr.resilience.after_fork import begin_anew_after_fork


def begin_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Return a started daemon thread; raise RuntimeError if the system has no more threads."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class ThreadTask(ABC):
    """Runs ``_run`` in a daemon thread from ``start`` to ``stop``.

    A subclass defines ``_run``, which waits with ``self._stop.wait`` and returns when that is true,
    and creates its locks in ``after_fork``.
    """

    thread_name: ClassVar[str]

    def __init__(self) -> None:
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Create all locks: in a child, a thread of the parent may keep them locked."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start; the first step runs at once."""
        self._stop.clear()
        self._thread = begin_thread(self._run, self.thread_name)

    def stop(self) -> None:
        """Stop; return when the thread has ended. Idempotent, and allowed before ``start``.

        In the thread itself, as when middleware stops its endpoint, it returns at once.
        """
        self._stop.set()
        thread = self._thread
        if thread is not None and not self.is_here():
            thread.join()
        self._thread = None

    def is_here(self) -> bool:
        """Return whether the calling thread is the task's: ``stop`` of others waits for it."""
        return self._thread is threading.current_thread()

    def watch(self) -> None:  # noqa: B027 - a task that needs no watching inherits it
        """No-op."""

    @abstractmethod
    def _run(self) -> None:
        """Run until ``self._stop`` is set."""
