"""Detection of servers that hang, while calls wait; a process that ends does not wait for them."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from timeoutmgr.contracts.answers import Answering, Answers
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.resilience.thread_task import begin_thread

logger = logging.getLogger(__name__)

_OVERDUE: Final = 5.0
"""Seconds without an answer that are an outage, unless half of the breaker's wait is shorter."""
_SHORTEST: Final = 1.0
_GRACE: Final = 3.0
"""Seconds that a process which ends waits for a silent server."""
_PATIENCE: Final = 6.0
"""Seconds that it waits for a call, such as for a lock or on a silently lost connection, while the
server answers other calls. A process ends within 10 seconds."""
_CHECK_EVERY: Final = 0.2


class SilenceWatch:
    """Arms *breaker* while *server* leaves calls unanswered; *wait* is the breaker's, in seconds.

    The outage counts from the beginning of the calls, so that it is reported after *wait*, whatever
    the calls' own time-out.
    """

    def __init__(self, server: Answering, breaker: OutageBreaker, wait: float) -> None:
        self._server = server
        self._breaker = breaker
        self._wait = wait
        self._signs = 0

    def start(self) -> None:
        """Bound calls by the breaker's wait."""
        self._server.unanswered.within(self, self._wait)

    def stop(self) -> None:
        """Remove the bound; repeatable, also before start."""
        self._server.unanswered.any_time(self)

    def check(self) -> None:
        """Check the server; the watchdog calls this about every second."""
        answers = self._server.unanswered
        silence = answers.silence()
        if silence >= max(_SHORTEST, min(_OVERDUE, self._wait / 2)):
            self._signs = answers.signs
            described = f"{self._server.describe()} has not answered for {silence:.1f} s"
            self._breaker.overdue(StorageUnavailable(described), silence)
        elif answers.signs != self._signs:
            # A call that has failed since is not an answer.
            self._breaker.answered()


@contextmanager
def hurrying(servers: Collection[Answering]) -> Iterator[None]:
    """While the block runs, give up *servers* that leave a call unanswered for too long."""
    done, begun = threading.Event(), time.monotonic()

    def hangs(answers: Answers) -> bool:
        waited = min(answers.oldest(), time.monotonic() - begun)
        return answers.silence() > _GRACE or waited > _PATIENCE

    def watch() -> None:
        while not done.wait(_CHECK_EVERY):
            for server in servers:
                if not server.unanswered.is_given_up and hangs(server.unanswered):
                    fields = {"event": "server_given_up"}
                    logger.warning(
                        "endpoint stops without %s, which hangs", server.describe(), extra=fields
                    )
                    server.unanswered.give_up()

    thread = _started(watch)
    try:
        yield
    finally:
        done.set()
        if thread is not None:
            thread.join()
        for server in servers:
            server.unanswered.resume()


def _started(watch: Callable[[], None]) -> threading.Thread | None:
    try:
        return begin_thread(watch, "timeoutmgr-hurry")
    except RuntimeError as error:  # the system has no more threads; ending frees some
        fields = {"event": "server_awaited"}
        logger.warning(
            "endpoint stops and waits for servers that hang: %s", on_one_line(error), extra=fields
        )
        return None
