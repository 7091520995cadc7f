"""The work of an endpoint in the calling thread: the endpoint's own steps, message by message."""

import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from timeoutmgr import plugins
from timeoutmgr.contracts import Chunk, Clock, TimeoutStore, TransactionMode
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.runner import surroundings_of
from timeoutmgr.errors import ConfigurationError, DeliveryFailed
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Received
from timeoutmgr.message.routes import DISPATCHER, TIMEOUTS
from timeoutmgr.testing.kit.clock import KitClock
from timeoutmgr.testing.kit.commits import act_on_commits
from timeoutmgr.testing.kit.messages import ObservedFailure, observed
from timeoutmgr.testing.kit.transport import KitTransport
from timeoutmgr.transport.delivery_policy import FailurePolicy
from timeoutmgr.transport.pump import Pump
from timeoutmgr.transport.work import Work

MOST_AT_ONE_INSTANT: Final = 100_000
"""Maximum messages handled at one instant of the clock; more count as an endless loop."""
_CLAIMED_TOGETHER: Final = 1_000_000
_PURGE_EVERY: Final[Micros] = 1_800_000_000
"""The half hour of an endpoint's housekeeping."""


class KitWorker:
    """Stores, polls, dispatches and handles; settles each message before it takes the next."""

    def __init__(self, parts: AssembledEndpoint, transport: KitTransport, clock: KitClock) -> None:
        self._name = parts.settings.name
        self._error_queue = parts.settings.error_queue
        self._transport = transport
        self._clock = clock
        self._coroutines = parts.coroutines
        self._store = parts.features.store
        self._failed = _RecordedFailures(parts.features.policies.failures, self._error_queue)
        transport.on_arrival = self._failed.arrived
        surroundings = replace(surroundings_of(parts), failures=self._failed)
        self._pumps = {
            one.consumption.queue: Pump(one.consumption, surroundings) for one in parts.satellites
        }
        self._poll = None if self._store is None else _poll_step(parts, self._store, clock)
        self._runs = _RecurringRuns(parts)
        self._lock = threading.RLock()
        self._busy_thread: int | None = None
        self._handled = self._reported = self._purge_at = 0

    @property
    def is_busy(self) -> bool:
        """Whether a message is being handled now."""
        return self._busy_thread is not None

    @property
    def timeouts(self) -> TimeoutStore | None:
        """The store; None if the endpoint delays no messages."""
        return self._store

    @property
    def failures(self) -> list[ObservedFailure]:
        """The messages in the error queue, in order."""
        return [
            ObservedFailure(observed(one.message, self._name), self._failed.error_of(one))
            for one in self._transport.queues.get(self._error_queue, ())
        ]

    def next_due(self) -> Micros | None:
        """Return the earliest stored due time, including the due times of cancelled runs."""
        self.store()
        if self._store is None:
            return None
        dues = [self._store.next_due(), *self._runs.instants_after(self._clock.now())]
        return min((due for due in dues if due is not None), default=None)

    def store(self) -> None:
        """Store all messages that wait for the timeout manager, and the next recurring runs.

        Do nothing while another thread works: that thread stores them.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._arrange()
                self._empty(self._name + TIMEOUTS)
            finally:
                self._lock.release()

    def work(self, failed: Callable[[ObservedFailure], None]) -> None:
        """Handle all messages that wait or are due; call *failed* after each failure."""
        is_awaited = self._coroutines is not None and self._coroutines.is_here()
        if is_awaited or self._busy_thread == threading.get_ident():
            raise ConfigurationError(
                "a handler called advance or drain of the testing kit that handles its message; "
                "the call in the test handles also the messages that handlers send"
            )
        with self._lock:
            self._busy_thread, self._handled = threading.get_ident(), 0
            if self._coroutines is not None:
                self._coroutines.start()
            try:
                while self._next(failed):
                    self._count()
            finally:
                self._busy_thread = None
                if self._coroutines is not None:
                    self._coroutines.stop()

    def _next(self, failed: Callable[[ObservedFailure], None]) -> bool:
        """Dispatch due timeouts, then handle a message; return whether there was a message."""
        self._arrange()
        for queue in self._pumps:
            if queue != self._name:
                self._empty(queue)
        self._dispatch_due()
        handled = self._pump(self._name) if self._name in self._pumps else False
        self._report(failed)
        return handled

    def _arrange(self) -> None:
        """Let committed sends arrive, forget old ids, and store the next recurring runs."""
        act_on_commits()
        if self._store is not None and self._clock.now() >= self._purge_at:
            self._store.purge()
            self._purge_at = self._clock.now() + _PURGE_EVERY
        self._runs.store()

    def _count(self) -> None:
        self._handled += 1
        if self._handled > MOST_AT_ONE_INSTANT:
            raise ConfigurationError(
                f"more than {MOST_AT_ONE_INSTANT} messages were handled at "
                f"{self._clock.instant}; does a handler send to itself without a delay?"
            )

    def _report(self, failed: Callable[[ObservedFailure], None]) -> None:
        """Call *failed* once with each new failure, including failures to store a message."""
        if len(self._transport.queues.get(self._error_queue, ())) == self._reported:
            return
        for failure in self.failures[self._reported :]:
            self._reported += 1
            failed(failure)

    def _dispatch_due(self) -> None:
        due = None if self._store is None else self._store.next_due()
        if self._poll is None or due is None or due > self._clock.now():
            return
        with closing(self._transport.session()) as session:
            self._poll(session)
        self._empty(self._name + DISPATCHER)

    def _empty(self, queue: str) -> None:
        while queue in self._pumps and self._pump(queue):
            continue

    def _pump(self, queue: str) -> bool:
        """Handle a batch of *queue*; return whether there was a message. Propagates errors."""
        if not self._transport.queues.get(queue):
            return False
        with (
            closing(self._transport.session()) as session,
            closing(session.receiver(queue, prefetch=1)) as receiver,
        ):
            return self._pumps[queue].pump_once(session, receiver, 0) > 0


class _RecordedFailures(FailurePolicy):
    """Keeps the exceptions of messages in the error queue by tag: several may have one id."""

    def __init__(self, given: FailurePolicy, error_queue: str) -> None:
        self._given = given
        self._error_queue = error_queue
        self._moving: tuple[str, Exception] | None = None
        self._errors: dict[object, Exception] = {}

    def divert(
        self, received: Received, error: Exception, open_work: Callable[[], Work]
    ) -> str | None:
        place = self._given.divert(received, error, open_work)
        self._moving = (received.message.id, error) if place is None else None
        return place

    def arrived(self, received: Received) -> None:
        """Record the exception of a failed message once its copy arrives in the error queue."""
        if self._moving is None or received.queue != self._error_queue:
            return
        message_id, error = self._moving
        if message_id == received.message.id:
            self._errors[received.tag] = error
            self._moving = None

    def error_of(self, failed: Received) -> Exception:
        """Return the exception of *failed*; of a failed dispatch, only the text is known."""
        text = failed.message.headers.get(headers.EXCEPTION_MESSAGE, "")
        return self._errors.get(failed.tag) or DeliveryFailed(text)


def _poll_step(parts: AssembledEndpoint, store: TimeoutStore, clock: Clock) -> Any:
    poll = plugins.load(plugins.PARTS, "poll")
    return poll(
        store=_OrderOfSending(store),
        queue=parts.settings.name + DISPATCHER,
        owner=parts.owner,
        mode=TransactionMode.RECEIVE_ONLY,
        chunk=1,
        clock=clock,
        new_id=parts.settings.new_id,
        telemetry=parts.settings.telemetry,
    )


class _RecurringRuns:
    """The runs of the endpoint's schedules, if it has any."""

    def __init__(self, parts: AssembledEndpoint) -> None:
        self._task: Any = None
        self._schedules: Any = parts.features.store
        if parts.settings.recurring:
            from timeoutmgr.recurrence.task import RecurringTask  # loads APScheduler

            [self._task] = [one for one in parts.features.tasks if isinstance(one, RecurringTask)]

    def store(self) -> None:
        """Store the next run of each schedule, unless it is stored already."""
        if self._task is not None:
            self._task.step()

    def instants_after(self, now: Micros) -> Iterable[Micros]:
        """Yield the due time of each stored run, even if cancelled: the next run is stored then."""
        for record in () if self._task is None else self._schedules.schedules():
            if record.run_due is not None and record.run_due > now:
                yield record.run_due


class _OrderOfSending:
    """Claims timeouts singly, so that timeouts of one instant are sent in order of sending.

    A store would order them by their ids, which are random.
    """

    def __init__(self, store: TimeoutStore) -> None:
        self._store = store
        self.next_due = store.next_due
        self.now = store.now
        self.release = store.release

    def claim(self, now: Micros, limit: int, owner: str, **options: Any) -> Chunk:
        """Claim due timeouts, each by a separate claim."""
        options["chunks"] = _CLAIMED_TOGETHER
        chunk = self._store.claim(now, 1, owner, **options)
        first, *others = sorted(chunk.all, key=self._order) or [chunk]
        return replace(first, others=tuple(others), next_due=chunk.next_due)

    def _order(self, chunk: Chunk) -> tuple[Micros, Micros]:
        [key] = chunk.keys
        found = self._store.find(key.id)
        timeout = None if found is None else found[1]
        return key.due, 0 if timeout is None else timeout.created
