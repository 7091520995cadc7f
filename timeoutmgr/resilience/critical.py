"""Critical errors: hooks receive errors that the endpoint cannot repair itself.

Errors that are raised before the endpoint runs are kept, and reported when it runs. Hooks run in
order on their own thread, so that a hook may stop the endpoint without waiting for itself.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from timeoutmgr.contracts.callables import unrun
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import ChildEnds, ThreadSafe
from timeoutmgr.resilience.thread_task import begin_thread

logger = logging.getLogger(__name__)


class CriticalAction(StrEnum):
    """The action if no hook was defined."""

    STOP = "stop"
    """Stop the endpoint; ``timeoutmgr run`` then exits non-zero."""
    LOG = "log"
    """Log the error and continue."""


@dataclass(frozen=True, slots=True)
class CriticalErrorContext:
    """The error that a hook receives, and the action that it can take."""

    error: str
    exception: BaseException
    stop: Callable[[], None]
    """Stop the endpoint; returns when it has stopped."""


CriticalErrorHook: TypeAlias = Callable[[CriticalErrorContext], object]


class CriticalErrors(ThreadSafe):
    """Receives critical errors and runs the hooks, in order of registration."""

    def __init__(
        self,
        hooks: tuple[CriticalErrorHook, ...] = (),
        action: CriticalAction = CriticalAction.STOP,
    ) -> None:
        self._hooks = hooks or (_stop if action is CriticalAction.STOP else _log,)
        super().__init__()
        self._latched: list[tuple[str, BaseException]] = []
        self.raised: tuple[str, BaseException] | None = None
        """The first critical error, for the report at the end of the endpoint."""

    def after_fork(self) -> None:
        """Forget the run and the hooks, which are the parent's."""
        super().after_fork()
        self._stop: Callable[[], None] | None = None
        self._threads: list[threading.Thread] = []

    def raise_error(self, error: str, exception: BaseException) -> None:
        """Report *error* to the hooks, now or when the endpoint runs; return at once."""
        if not error:
            raise ValueError("a critical error needs a sentence on its cause")
        with self._lock:
            if self.raised is None:
                self.raised = (error, exception)
            if self._stop is None:
                self._latched.append((error, exception))
                return
            self._spawn(error, exception, self._stop)

    def started(self, stop: Callable[[], None]) -> None:
        """Report the kept errors, and from now on each error at once; *stop* ends the endpoint."""
        with self._lock:
            self._stop = stop
            kept, self._latched = self._latched, []
            for error, exception in kept:
                self._spawn(error, exception, stop)

    def report_kept(self) -> None:
        """Report in this thread, which has no locks, errors that found no thread of their own."""
        with self._lock:
            if (stop := self._stop) is None:
                return
            kept, self._latched = self._latched, []
        for error, exception in kept:
            self._run(CriticalErrorContext(error, exception, stop))

    def stopped(self) -> None:
        """Keep errors that are raised from now on: the endpoint no longer runs."""
        with self._lock:
            self._stop = None

    def join(self, timeout: float) -> None:
        """Wait for running hooks, but never for the calling hook."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _spawn(self, error: str, exception: BaseException, stop: Callable[[], None]) -> None:
        context = CriticalErrorContext(error, exception, stop)
        self._threads = [other for other in self._threads if other.is_alive()]
        try:
            self._threads.append(begin_thread(partial(self._run, context), "timeoutmgr-critical"))
        except RuntimeError:  # the system has no more threads: the watchdog reports it
            self._latched.append((error, exception))

    def _run(self, context: CriticalErrorContext) -> None:
        fields = {"event": "critical_error"}
        logger.critical(
            "%s (%s)", on_one_line(context.error), on_one_line(context.exception), extra=fields
        )
        for hook in self._hooks:
            try:
                with ChildEnds():
                    left = unrun(hook(context))
            except BaseException:
                # Also a SystemExit: on this thread it would end only the hooks.
                failed = {"event": "critical_error_hook_failed"}
                logger.exception(
                    "critical error hook %.80r failed; the next hook runs", hook, extra=failed
                )
                continue
            if left is not None:
                logger.error(
                    "critical error hook %.80r returned a %s, which does not run",
                    hook,
                    left,
                    extra={"event": "critical_error_hook_not_run"},
                )


def _stop(context: CriticalErrorContext) -> None:
    context.stop()


def _log(_context: CriticalErrorContext) -> None:
    logger.critical(
        "critical_error_action is 'log': the endpoint is NOT terminated, it goes on",
        extra={"event": "critical_error_ignored"},
    )
