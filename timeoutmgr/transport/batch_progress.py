"""The progress of a step that handles the messages of a batch one by one.

No message is begun once the batch has used up its time, so that none waits long for the commit of
its neighbours. Messages not begun form the next batch. If a message takes long, another thread
gives the messages behind it back to the queue, for other consumers.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from timeoutmgr.errors import LeaseLost, StorageConflict, StorageUnavailable, TransportUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)

BATCH_SECONDS: Final = 0.05
"""Seconds that a batch should take, from its first message to its commit."""
LONG_HANDLING: Final = 0.25
"""Seconds that one message may take before the messages behind it are given back."""
MOST_DELIVERIES: Final = 5
"""Messages with more deliveries are not given back: brokers count deliveries, and move a message to
the error queue if it exceeds their limit."""
_FIRST: Final = 10
"""The size of the first batch, when nothing is known about the step."""
_KEPT: Final = 0.9
"""The weight that earlier messages keep in the moving average when a message is added."""


def may_return(received: Received) -> bool:
    """Return whether *received* can be given back without coming near a broker's limit."""
    return received.delivery_count < MOST_DELIVERIES


class BatchPace:
    """The size of the next batch: as many messages as take BATCH_SECONDS, by a moving average."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._average: float | None = None

    @property
    def limit(self) -> int:
        """The size of the next batch, at least 1."""
        if self._average is None:
            return min(self._most, _FIRST)
        if self._average <= 0:
            return self._most
        return max(1, int(min(self._most, BATCH_SECONDS / self._average)))

    @property
    def prefetch(self) -> int:
        """Number of messages to have here: the next batch too, but none behind a slow message."""
        return 1 if self.limit == 1 else 2 * self.limit

    def note(self, count: int, seconds: float) -> None:
        """Note that a batch of *count* messages took *seconds*, including its commit."""
        if count < 1:
            return
        each, kept = seconds / count, _KEPT**count
        before = each if self._average is None else self._average
        self._average = kept * before + (1 - kept) * each


class BatchProgress:
    """Iteration over *batch* by one thread; ``give_back`` is for another thread.

    The messages *behind* were received too, and belong in later batches. Until ``close``, that
    other thread may be using the receiver of the batch.
    """

    def __init__(
        self,
        batch: Sequence[Received],
        monotonic: Callable[[], float] = time.monotonic,
        behind: Sequence[Received] = (),
    ) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._giving = threading.Lock()
        self.batch: Final = batch
        self._waiting: deque[Received] = deque()
        self._behind: Sequence[Received] = behind
        self._begun: list[Received] | None = None
        self.failure: Exception | None = None
        """The failure of a return: others may have the messages, so they are not begun here."""
        self._handling_began = 0.0
        self._is_relieved = False
        self._is_closed = False

    def __iter__(self) -> Iterator[Received]:
        """Yield the messages in their order; end with the batch, or when its time is used up."""
        with self._lock:
            self._waiting.extend(self.batch)
            self._begun = []
        end = self._monotonic() + BATCH_SECONDS
        while (received := self._next(end)) is not None:
            yield received
        self.close()  # the code that follows may use the receiver's connection

    @property
    def begun(self) -> Sequence[Received]:
        """The messages that were begun; the whole batch if the step does not iterate."""
        return self.batch if self._begun is None else self._begun

    @property
    def waiting(self) -> Sequence[Received]:
        """The messages that were not begun, and not given back."""
        with self._lock:
            return [*self._waiting, *self._behind]

    def repeat(self, received: Received) -> "BatchProgress":
        """Return the progress of another attempt at *received*; the rest now waits behind it."""
        with self._lock:
            rest = self._withdrawn()
        again = BatchProgress([received], self._monotonic, rest)
        again.failure = self.failure
        return again

    def withdraw(self) -> Sequence[Received]:
        """Return all messages that were not given back; call after ``close``, and begin no more."""
        with self._lock:
            return [*self.begun, *self._withdrawn()]

    def give_back(self, release: Callable[[Sequence[Received]], int]) -> int:
        """Call *release*, once, with the messages behind a slow message; return its answer.

        If the server fails, the messages stay with the batch, which ends: their tags may be
        invalid. After a StorageConflict, the next call tries again.
        """
        with self._giving:
            given = self._behind_a_long_handling()
            if given is None:
                return 0
            count = None
            try:
                count = release(given)
            except StorageConflict:
                self._is_relieved = False  # the next call tries again
            except (StorageUnavailable, TransportUnavailable, LeaseLost) as error:
                self.failure = error
                logger.warning(
                    "pump could not give back %d messages behind a slow handler: %s",
                    len(given),
                    on_one_line(error),
                    extra={"event": "messages_not_given_back"},
                )
            finally:
                if count is None:
                    with self._lock:
                        self._behind = [*given, *self._behind]
            return count or 0

    def close(self) -> None:
        """Stop giving messages back, and wait for the other thread. Twice is fine."""
        with self._giving:
            self._is_closed = True

    def _next(self, end: float) -> Received | None:
        with self._lock:
            now = self._monotonic()
            if not self._waiting or self._begun is None or self.failure is not None:
                return None
            if self._begun and now >= end:
                return None
            self._handling_began, self._is_relieved = now, False
            received = self._waiting.popleft()
            self._begun.append(received)
            return received

    def _withdrawn(self) -> list[Received]:
        """Return and remove the messages that were not begun; the caller has the lock."""
        rest = [*self._waiting, *self._behind]
        self._waiting.clear()
        self._behind = ()
        return rest

    def _behind_a_long_handling(self) -> list[Received] | None:
        with self._lock:
            if self._is_closed or not self._begun or self._is_relieved:
                return None
            if self._monotonic() - self._handling_began < LONG_HANDLING:
                return None
            self._is_relieved = True
            behind = self._withdrawn()
            self._behind = [one for one in behind if not may_return(one)]
            return [one for one in behind if may_return(one)]
