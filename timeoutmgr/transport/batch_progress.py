"""How far a step is with a batch of which it handles each message by itself.

No message is begun once the batch has used up its time, so that none waits long for the commit of
its neighbours. Messages not begun form the next batch. Behind a message that takes long,
another thread gives them back to the queue, for other consumers.
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
"""Seconds of one message after which the messages behind it are given back."""
MOST_DELIVERIES: Final = 5
"""Messages that were delivered more often are not given back: brokers count deliveries, and move a
message beyond their limit to the error queue."""
_FIRST: Final = 10
"""The size of the first batch, when nothing is known of the step."""
_KEPT: Final = 0.9
"""The share of the moving average that one more message leaves to its predecessors."""


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
        """How many messages are to be here: the next batch too, but none behind a slow one."""
        return 1 if self.limit == 1 else 2 * self.limit

    def note(self, count: int, seconds: float) -> None:
        """Note that a batch of *count* messages took *seconds*, its commit included."""
        if count < 1:
            return
        each, kept = seconds / count, _KEPT**count
        before = each if self._average is None else self._average
        self._average = kept * before + (1 - kept) * each


class BatchProgress:
    """Iteration over *batch* by one thread; ``give_back`` is for another thread.

    The messages *behind* were received too, and belong into later batches. Until ``close``, the
    receiver of the batch may be in use by that other thread.
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
        """The failure of a return: the messages may be another consumer's, and are not begun."""
        self._handling_began = 0.0
        self._is_relieved = False
        self._is_closed = False

    def __iter__(self) -> Iterator[Received]:
        """Yield the messages in their order; end with the batch, or once it has taken its time."""
        with self._lock:
            self._waiting.extend(self.batch)
            self._begun = []
        end = self._monotonic() + BATCH_SECONDS
        while (received := self._next(end)) is not None:
            yield received
        self.close()  # what follows may use the receiver's connection

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
        """Return the progress of another attempt at *received*, behind which the rest waits now."""
        with self._lock:
            rest = self._withdrawn()
        again = BatchProgress([received], self._monotonic, rest)
        again.failure = self.failure
        return again

    def withdraw(self) -> Sequence[Received]:
        """Return the messages that were not given back; after ``close``, none of them waits."""
        with self._lock:
            return [*self.begun, *self._withdrawn()]

    def give_back(self, release: Callable[[Sequence[Received]], int]) -> int:
        """Call *release* with the messages behind a slow one, once for each; return its answer.

        A failure of the server leaves the messages with the batch, which ends: their tags may be
        dead. After a StorageConflict the next call tries again.
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
        """Let no more messages be given back; wait for the other thread. Twice is fine."""
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
        """Return what was not begun, which no longer waits; the caller has the lock."""
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
