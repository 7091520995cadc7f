"""Samples of the store and of the queues, each in a thread of its own: either may hang."""

import logging
import math
from collections.abc import Callable
from typing import ClassVar, Final

from timeoutmgr.contracts import Clock, HasStoreClock, Insight, TimeoutFilter, TimeoutStore
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.features.delayed_delivery import StoreStart
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.metrics.memory import BREAKER_CELLS, QUEUE_CELLS, CountMemory, Section, State
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.resilience.thread_task import ThreadTask
from timeoutmgr.sender.sender import SessionPool

logger = logging.getLogger(__name__)

EVERY: Final = 5.0
"""Seconds between two samples: less than the 10 within which a ready process has its answers."""
COUNT_EVERY: Final = 30.0
"""Seconds between two counts of the messages in the queues."""
_BREAKER: Final = {BreakerState.DISARMED: 0.0, BreakerState.ARMED: 1.0, BreakerState.TRIGGERED: 2.0}


class Sampler(ThreadTask):
    """Takes a sample every few seconds; an outage shows by the age of the last sample."""

    thread_name: ClassVar[str] = "timeoutmgr-sampler"

    def __init__(self, sample: Callable[[], None], endpoint: str) -> None:
        super().__init__()
        self._sample = sample
        self._endpoint = endpoint

    def end(self) -> None:
        """Stop soon; do not wait for an answer that a server owes."""
        self._stop.set()

    def _run(self) -> None:
        while True:
            try:
                self._sample()
            except TimeoutManagerError as error:
                logger.debug(
                    "sampler of endpoint %s got no answer: %s",
                    self._endpoint,
                    on_one_line(error),
                    extra={"event": "no_sample", "endpoint": self._endpoint},
                )
            except Exception:
                logger.exception(
                    "sampler of endpoint %s failed and goes on",
                    self._endpoint,
                    extra={"event": "sampler_failed", "endpoint": self._endpoint},
                )
            if self._stop.wait(EVERY):
                return


def samplers_of(parts: AssembledEndpoint, memory: CountMemory, section: Section) -> list[Sampler]:
    """Return the samplers of the store and the queues of *parts*, which write into *section*."""
    clock, name = parts.settings.clock, parts.settings.name
    queues = QueueSample(parts.pool, parts.queues, clock, memory, section)
    oldest = _oldest_of(parts)
    if oldest is None:
        section.set_state(State.STORE_ANSWERED, math.inf)
        return [Sampler(queues, name)]
    return [Sampler(queues, name), Sampler(StoreSample(oldest, clock, section), name)]


def note_breakers(parts: AssembledEndpoint, memory: CountMemory, section: Section) -> None:
    """Write the states of the breakers of *parts* into *section*."""
    for breaker in parts.breakers:
        at = BREAKER_CELLS + memory.breakers.number(breaker.name)
        section.numbers[at] = _BREAKER[breaker.state]


def _oldest_of(parts: AssembledEndpoint) -> Callable[[], Micros | None] | None:
    """Return a function that returns the age of the oldest timeout; None without a store."""
    if parts.features.delayed is not None:
        delayed = parts.features.delayed
        return lambda: _oldest_delayed(delayed, parts.settings.clock)
    store = parts.features.store
    return None if store is None else age_in(store)


def age_in(store: TimeoutStore) -> Callable[[], Micros | None]:
    """Return a function that returns the age of the oldest timeout of *store* that no pause holds.

    Before it is due the age is negative; None without timeouts.
    """
    insight = store if isinstance(store, Insight) else None

    def age() -> Micros | None:
        now = store.now()
        oldest = None if insight is None else insight.overdue(now).oldest
        if oldest is not None:
            return now - oldest
        first = next(iter(store.list(TimeoutFilter(), limit=1)), None)
        if first is None:
            return None
        # None is overdue: the first has its next try, or the end of its pause, ahead.
        return now - first.due if insight is None else min(now - first.key.due, 0)

    return age


def _oldest_delayed(delayed: StoreStart, clock: Clock) -> Micros | None:
    first = delayed.store.next()
    now = delayed.store.now() if isinstance(delayed.store, HasStoreClock) else clock.now()
    return None if first is None else now - first


class StoreSample:
    """The age of the oldest timeout, and that the store has answered."""

    def __init__(self, oldest: Callable[[], Micros | None], clock: Clock, section: Section) -> None:
        self._oldest = oldest
        self._clock = clock
        self._section = section

    def __call__(self) -> None:
        """Ask the store. Raises StorageUnavailable."""
        age = self._oldest()
        # In this order: a reader in between must not add a long silence to the new age.
        self._section.set_state(State.STORE_ANSWERED, self._clock.monotonic())
        self._section.set_state(State.OLDEST_DUE, -math.inf if age is None else age / 1_000_000)


class QueueSample:
    """The numbers of messages in the queues, and that the broker has answered.

    To count is a scan where queues are tables, so that it happens less often.
    """

    def __init__(
        self,
        pool: SessionPool,
        queues: list[str],
        clock: Clock,
        memory: CountMemory,
        section: Section,
    ) -> None:
        self._pool = pool
        self._queues = queues
        self._clock = clock
        self._names = memory.queues
        self._section = section
        self._count_next = -math.inf

    def __call__(self) -> None:
        """Ask the broker. Raises TransportUnavailable."""
        with self._pool.session() as session:
            missing = session.missing_queues(self._queues)
            if self._clock.monotonic() >= self._count_next:
                for queue in self._queues:
                    if queue not in missing:
                        at = QUEUE_CELLS + self._names.number(queue)
                        self._section.numbers[at] = session.count(queue)
                self._count_next = self._clock.monotonic() + COUNT_EVERY
        self._section.set_state(State.BROKER_ANSWERED, self._clock.monotonic())
