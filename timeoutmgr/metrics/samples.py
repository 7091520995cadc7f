"""Samples of the store and the queues, in two threads, since either server may hang."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from timeoutmgr.contracts import (
    Clock,
    HasStoreClock,
    Insight,
    LoadWindow,
    TimeoutFilter,
    TimeoutStore,
)
from timeoutmgr.contracts.pauses import PausesDispatch
from timeoutmgr.database.engine import Database
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.features.delayed_delivery import StoreStart
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.metrics.memory import (
    BREAKER_CELLS,
    DESTINATIONS,
    PAUSE_CELLS,
    QUEUE_CELLS,
    CountMemory,
    Section,
    State,
)
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.resilience.thread_task import ThreadTask
from timeoutmgr.sender.sender import SessionPool

logger = logging.getLogger(__name__)

EVERY: Final = 5.0
"""Seconds between two samples: less than the 10 for which an answer counts for readiness."""
COUNT_EVERY: Final = 30.0
"""Seconds between two counts of the messages in the queues, and of the pending timeouts."""
_ALL_TIME: Final = LoadWindow(0, 1 << 60, 1)
_BREAKER: Final = {BreakerState.DISARMED: 0.0, BreakerState.ARMED: 1.0, BreakerState.TRIGGERED: 2.0}


class Sampler(ThreadTask):
    """Takes a sample every few seconds; the age of the last sample reveals an outage."""

    thread_name: ClassVar[str] = "timeoutmgr-sampler"

    def __init__(self, sample: Callable[[], None], endpoint: str) -> None:
        super().__init__()
        self._sample = sample
        self._endpoint = endpoint

    def end(self) -> None:
        """Stop soon, without waiting for a server's answer."""
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
    """Return the samplers for the store and queues of *parts*; they write into *section*."""
    clock, name = parts.settings.clock, parts.settings.name
    queues = QueueSample(parts.pool, parts.queues, clock, memory, section)
    oldest = _oldest_of(parts)
    if oldest is None:
        section.set_state(State.STORE_ANSWERED, math.inf)
        return [Sampler(queues, name)]
    details = _details_of(parts, memory, section)
    return [Sampler(queues, name), Sampler(StoreSample(oldest, clock, section, details), name)]


def note_breakers(parts: AssembledEndpoint, memory: CountMemory, section: Section) -> None:
    """Write the states of the breakers of *parts* into *section*."""
    for breaker in parts.breakers:
        at = BREAKER_CELLS + memory.breakers.number(breaker.name)
        section.numbers[at] = _BREAKER[breaker.state]


def note_connections(parts: AssembledEndpoint, section: Section) -> None:
    """Write the numbers of used and idle connections to the databases of *parts*."""
    pools = [each.connections() for each in parts.databases if isinstance(each, Database)]
    if pools:
        section.set_state(State.CONNECTIONS_USED, sum(used for used, _ in pools))
        section.set_state(State.CONNECTIONS_IDLE, sum(idle for _, idle in pools))


def _details_of(
    parts: AssembledEndpoint, memory: CountMemory, section: Section
) -> "StoreDetails | None":
    """Return the sampler of further details; a delayed message store has none."""
    store = parts.features.store
    if store is None or parts.features.delayed is not None:
        return None
    return StoreDetails(store, parts.settings.clock, memory, section)


def _oldest_of(parts: AssembledEndpoint) -> Callable[[], Micros | None] | None:
    """Return a function that returns the age of the oldest timeout; None without a store."""
    if parts.features.delayed is not None:
        delayed = parts.features.delayed
        return lambda: _oldest_delayed(delayed, parts.settings.clock)
    store = parts.features.store
    return None if store is None else age_in(store)


def age_in(store: TimeoutStore) -> Callable[[], Micros | None]:
    """Return a function for the age of the oldest timeout in *store* that no pause holds.

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
        # No timeout is overdue: the first waits for a retry or for the end of its pause.
        return now - first.due if insight is None else min(now - first.key.due, 0)

    return age


def _oldest_delayed(delayed: StoreStart, clock: Clock) -> Micros | None:
    first = delayed.store.next()
    now = delayed.store.now() if isinstance(delayed.store, HasStoreClock) else clock.now()
    return None if first is None else now - first


@dataclass(frozen=True, slots=True)
class StoreSample:
    """Samples the age of the oldest timeout, and whether the store answers."""

    oldest: Callable[[], Micros | None]
    clock: Clock
    section: Section
    details: Callable[[], None] | None = None

    def __call__(self) -> None:
        """Ask the store. Raises StorageUnavailable."""
        age = self.oldest()
        # In this order: otherwise a concurrent reader could add a long silence to the new age.
        self.section.set_state(State.STORE_ANSWERED, self.clock.monotonic())
        self.section.set_state(State.OLDEST_DUE, -math.inf if age is None else age / 1_000_000)
        if self.details is not None:
            self.details()


class StoreDetails:
    """Samples the pending and in-flight timeouts of a store, and its pauses.

    Counting the pending timeouts reads up to 50000 of them, so it happens less often.
    """

    def __init__(
        self, store: TimeoutStore, clock: Clock, memory: CountMemory, section: Section
    ) -> None:
        self._insight = store if isinstance(store, Insight) else None
        self._pauses = store if isinstance(store, PausesDispatch) else None
        self._clock = clock
        self._names = memory.destinations
        self._section = section
        self._count_next = -math.inf

    def __call__(self) -> None:
        """Ask the store. Raises StorageUnavailable."""
        if self._pauses is not None:
            self._note_paused({pause.destination for pause in self._pauses.pauses()})
        if self._insight is not None:
            self._section.set_state(State.IN_FLIGHT, self._insight.in_flight().number)
            if self._clock.monotonic() >= self._count_next:
                self._note_pending(self._insight.load(_ALL_TIME).total.number)

    def _note_pending(self, number: int) -> None:
        now = self._clock.monotonic()
        self._section.set_state(State.PENDING, number)
        self._section.set_state(State.PENDING_AS_OF, now)
        self._count_next = now + COUNT_EVERY

    def _note_paused(self, destinations: set[str | None]) -> None:
        """Write 1 for each of *destinations*, and 0 for a destination that was paused before."""
        numbers = self._section.numbers
        paused = {
            PAUSE_CELLS + (DESTINATIONS + 1 if name is None else self._names.number(name))
            for name in destinations
        }
        for at in range(PAUSE_CELLS, PAUSE_CELLS + DESTINATIONS + 2):
            if at in paused or not math.isnan(numbers[at]):
                numbers[at] = at in paused


class QueueSample:
    """Samples the numbers of messages in the queues, and whether the broker answers.

    Counting is a scan if queues are tables, so it happens less often.
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
