"""Dispatch from a delayed message store: due messages are fetched, sent and removed in batches."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from timeoutmgr.contracts import (
    Answered,
    Clock,
    DelayedMessageStore,
    FetchesInBatches,
    HasStoreClock,
    HearsOfStored,
    RemovesInBatches,
    Sending,
    SendResult,
    StoresInBatches,
    Timeout,
    TransactionMode,
    TransportSession,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    DeliveryFailed,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.resilience.breakers import OutageBreaker, RateBreaker
from timeoutmgr.resilience.thread_task import begin_thread
from timeoutmgr.satellites.delivery.dispatch import (
    BatchDispatch,
    BatchResult,
    DispatchMeter,
    RetryLater,
    StepPoints,
    fields_of,
    finish,
    sent_of,
)
from timeoutmgr.satellites.delivery.forwarder import Forwarder, back_off, delivered
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.delivery_policy import PLAIN_FORWARDING, ForwardingPolicy, Undeliverable
from timeoutmgr.transport.work import notify_best_effort

logger = logging.getLogger(__name__)

_POINTS: Final = StepPoints(
    locked="due.fetched",
    confirmed="due.confirmed",
    error_copied="due.error_copy_confirmed",
    closed="due.removed",
)
_SCOPE: Final = TransactionMode.TRANSACTION_SCOPE
_LEAST_PAUSE: Final = 0.2
_EMPTY_POLL_DELAY: Final = 1_000_000
"""Microseconds until the next poll for due messages that another process has locked."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Access to *store* in batches of at most *limit* messages."""

    store: DelayedMessageStore
    clock: Clock
    limit: int

    @property
    def size(self) -> int:
        """Maximum number of messages that a fetch returns."""
        return self.limit if isinstance(self.store, FetchesInBatches) else 1

    def now(self) -> Micros:
        """Return the time with which the store compares due times."""
        return int(self.store.now()) if isinstance(self.store, HasStoreClock) else self.clock.now()

    def notify_stored(self, due: Micros) -> None:
        """Notify the store, if it supports this, that a message due at *due* was committed."""
        if isinstance(self.store, HearsOfStored):
            self.store.notify_stored(due)

    def fetch(self, transaction: Any, limit: int) -> Sequence[Timeout]:
        """Return at most *limit* due messages, locked until *transaction* ends."""
        at = self.clock.now()
        if isinstance(self.store, FetchesInBatches):
            return self.store.fetch_due(at, limit, transaction=transaction)
        one = self.store.fetch_next_due_timeout(at, transaction=transaction)
        return [] if one is None else [one]

    def put(self, timeouts: Sequence[Timeout], transaction: Any) -> None:
        """Store *timeouts*, in *transaction* if it is given."""
        if isinstance(self.store, StoresInBatches):
            self.store.store_many(timeouts, transaction=transaction)
            return
        for timeout in timeouts:
            self.store.store(timeout, transaction=transaction)
            reach("delayed.stored_one")

    def remove(self, timeouts: Sequence[Timeout], transaction: Any) -> int:
        """Remove *timeouts* in *transaction*; return how many of them were stored."""
        if not timeouts:
            return 0
        if isinstance(self.store, RemovesInBatches):
            return self.store.remove_many(timeouts, transaction=transaction)
        removed = 0
        for timeout in timeouts:
            removed += self.store.remove(timeout, transaction=transaction)
            reach("due.removed_one")
        return removed


@dataclass(frozen=True, slots=True)
class DrainStep:
    """The result of the step on a batch.

    *processed* counts messages that are no longer due: sent, given up, or deferred. *pause* is
    the wait before the next step, in seconds, while the broker is away.
    """

    processed: int
    full: bool = False
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class _DrainWork:
    """The unit of work of a batch, in the common transaction of queue and store or on its own."""

    session: TransportSession
    scope: Any

    def send_isolated(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        return self.session.send(outgoing, transaction=self.scope) if outgoing else []

    def start_isolated(self, outgoing: Sequence[Outgoing]) -> Sending:
        # The other lane fetches meanwhile, so a later wait would gain nothing.
        return Answered(self.send_isolated(outgoing))

    def notify(self, outgoing: Sequence[Outgoing], *, isolated: bool) -> None:
        assert isolated, "nothing was received here that it could be sent with"
        notify_best_effort(self.send_isolated, outgoing)


class _NotRemoved(Exception):
    """The store failed to remove messages that were sent; the store's error is the cause."""


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A fetched batch as locked timeouts: its close removes all messages except retries.

    Without ``transaction_scope`` the send is outside of the *transaction* of fetch and removal.
    Another process may have removed messages in the meantime; the batch counts these.
    """

    timeouts: Sequence[Timeout]
    batches: Batches
    transaction: Any
    in_one_transaction: bool
    telemetry: Telemetry

    def now(self) -> Micros:
        """Return the instant of the dispatch."""
        return self.batches.clock.now()

    def close(self, result: BatchResult) -> None:
        """Remove the messages of *result* that are not to be retried."""
        settled = [*result.dispatched, *(one.timeout for one in result.failed)]
        try:
            missing = len(settled) - self.batches.remove(settled, self.transaction)
        except TimeoutManagerError:
            raise
        except Exception as error:
            raise _NotRemoved from error
        if not missing:
            return
        if self.in_one_transaction:
            raise _RemovedByAnother(
                f"{missing} of {len(settled)} messages were removed by another process"
            )
        logger.warning(
            "Potential more-than-once dispatch: %d delayed messages were removed by another "
            "process while they were sent",
            missing,
            extra={"event": "removed_by_another"},
        )
        self.telemetry.count("delayed_gone", missing)


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class DispatchDue:
    """The step for a batch: fetch under a lock, send and confirm, then remove and commit.

    In ``transaction_scope`` everything is a single transaction. In the other modes fetch and
    removal share a transaction of the store, and the send is outside of it: if the removal fails,
    the message goes out again under the same id. A failed attempt is counted in a transaction of
    its own; an attempt that failed because broker or storage was out of reach is not counted.
    """

    batches: Batches
    endpoint: str
    error_queue: str
    limits: Limits
    mode: TransactionMode
    attempts: int
    clock: Clock
    telemetry: Telemetry
    dispatch: OutageBreaker
    recovery: RateBreaker
    policy: ForwardingPolicy = PLAIN_FORWARDING
    alone: int = 0
    """Number of messages to fetch one by one, because one message made their batch fail."""
    fetch_lock: threading.Lock = field(init=False)
    """Locked during a fetch, and while failures of messages are counted that a fetch may lock."""
    _meter: DispatchMeter = field(init=False)

    def __post_init__(self) -> None:
        """Ask the telemetry once what it observes."""
        self._meter = DispatchMeter(self.telemetry, "delayed")
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock: in a child, a fetch of the parent may keep it locked."""
        self.fetch_lock = threading.Lock()

    def __call__(self, session: TransportSession) -> DrainStep:
        """Process a batch; raise StorageUnavailable if it cannot be fetched or removed."""
        with ExitStack() as stack:
            stack.enter_context(self.fetch_lock)
            limit = 1 if self.alone else self.batches.size
            self.alone = max(0, self.alone - 1)
            batch: Sequence[Timeout] = []
            try:
                with self._transaction(session) as transaction:
                    batch = self.batches.fetch(transaction, limit)
                    stack.close()
                    result = self._dispatch(batch, session, transaction)
                    if result.retries:
                        # The next fetch must see that they are deferred.
                        stack.enter_context(self.fetch_lock)
            except StorageUnavailable:
                raise
            except TransportUnavailable as error:
                return DrainStep(0, pause=self._broker_is_away(error))
            except Exception as error:
                if not batch:
                    raise
                return self._failed(batch, error, session)
            reach("due.committed")
            self._count(result)
            return self._follow(batch, result.retries, limit)

    def _transaction(self, session: TransportSession) -> AbstractContextManager[Any]:
        return session.transaction() if self.mode is _SCOPE else self.batches.store.transaction()

    def _dispatch(
        self, batch: Sequence[Timeout], session: TransportSession, transaction: Any
    ) -> BatchResult:
        """Send *batch*; remove messages that reached their queue or the error queue."""
        if not batch:
            return BatchResult()
        scope = transaction if self.mode is _SCOPE else None
        fetched = self._fetched(batch, transaction)
        result = finish(self._step(fetched, _DrainWork(session, scope)))
        for one in result.retries:
            if one.is_undeliverable and not one.is_postponed:
                self._count_recovery_failure(one.error)
        return result

    @property
    def _step(self) -> BatchDispatch:
        return BatchDispatch(
            endpoint=self.endpoint,
            error_queue=self.error_queue,
            forwarder=Forwarder(self.attempts, self.limits, self.policy),
            points=_POINTS,
            during=self._meter.during,
        )

    def _fetched(self, batch: Sequence[Timeout], transaction: Any) -> FetchedBatch:
        return FetchedBatch(batch, self.batches, transaction, self.mode is _SCOPE, self.telemetry)

    def _follow(
        self, batch: Sequence[Timeout], retries: Sequence[RetryLater], limit: int
    ) -> DrainStep:
        """Count failed attempts, defer the messages, and notify the breaker of the result."""
        unanswered = [one for one in retries if not one.was_refused]
        counted = all([self._defer(one.timeout, one.error) for one in retries if one.was_refused])
        pause = 0.0
        if len(retries) < len(batch):
            self.dispatch.success()
        if unanswered or not counted:
            pause = max(self.dispatch.failure((unanswered or retries)[0].error), _LEAST_PAUSE)
        elif retries and len(retries) == len(batch):
            self.dispatch.failure(retries[0].error)
        return DrainStep(len(batch), full=len(batch) == limit, pause=pause)

    def _failed(
        self, batch: Sequence[Timeout], error: Exception, session: TransportSession
    ) -> DrainStep:
        """Handle an error that is not an answer of broker or storage."""
        if len(batch) > 1:
            # A bad message must not make its neighbours fail: send each on its own.
            logger.warning(
                "dispatcher could not send a batch and tries each message alone: %s",
                on_one_line(error),
                extra={"event": "batch_failed", "endpoint": self.endpoint},
            )
            self.alone = len(batch)
            return DrainStep(0, full=True)
        [timeout] = batch
        is_sent = isinstance(error, _NotRemoved)
        if is_sent and isinstance(error.__cause__, Exception):
            # The store fails, not the dispatch: the caller reports this with another text.
            error = error.__cause__
            self._count_recovery_failure(error)
        pause = 0.0 if is_sent else self.dispatch.failure(error)
        logger.warning(
            "dispatcher could not send delayed message %.80r: %s",
            timeout.id,
            on_one_line(error),
            extra=fields_of("dispatch_failed", timeout),
        )
        if timeout.attempts + 1 >= self.attempts and self._give_up(timeout, error, session):
            return DrainStep(1, full=True)
        counted = self._defer(timeout, error)
        if is_sent and counted:
            self.dispatch.failure(error)
        return DrainStep(1, full=True, pause=0.0 if counted else max(pause, _LEAST_PAUSE))

    def _give_up(self, timeout: Timeout, error: Exception, session: TransportSession) -> bool:
        """Copy the message into the error queue, then remove it; return whether it was removed.

        It never becomes a dead letter: an unknown error says nothing about the delivery.
        """
        wrapped = error if isinstance(error, TimeoutManagerError) else DeliveryFailed(repr(error))
        at = self.batches.clock.now()
        undeliverable = Undeliverable(timeout, delivered(timeout, to_wire(at)), wrapped)
        try:
            with session.transaction() if self.mode is _SCOPE else nullcontext() as scope:
                work = _DrainWork(session, scope)
                moved, kept = self._step.move_to_error_queue([undeliverable], at, work)
                for one in kept:
                    self._count_recovery_failure(one.error)
                locked = self._fetched([timeout], scope)
                locked.close(BatchResult(at=at, failed=moved))
                reach("due.given_up")
        except Exception as failure:
            self._recovery_failed(timeout, failure)
            return False
        self._meter.failed(moved)
        return bool(moved)

    def _defer(self, timeout: Timeout, error: Exception) -> bool:
        """Count a failed attempt in a transaction of its own; return whether it is counted."""
        try:
            not_before = self.batches.now() + back_off(timeout.attempts)
            self.batches.store.increment_failure_count(timeout, not_before)
        except Exception as failure:
            self._recovery_failed(timeout, failure)
            return False
        reach("due.counted")
        self.telemetry.count("delayed_retries")
        logger.info(
            "dispatcher retries delayed message %.80r later: %s",
            timeout.id,
            on_one_line(error),
            extra=fields_of("retried_later", timeout),
        )
        return True

    def _broker_is_away(self, error: TimeoutManagerError) -> float:
        self.telemetry.count("transport_failures")
        logger.warning(
            "dispatcher leaves due messages stored, the broker is away: %s",
            on_one_line(error),
            extra={"event": "broker_away", "endpoint": self.endpoint},
        )
        return max(self.dispatch.failure(error), _LEAST_PAUSE)

    def _recovery_failed(self, timeout: Timeout, error: Exception) -> None:
        logger.error(
            "dispatcher leaves delayed message %.80r stored: %s",
            timeout.id,
            on_one_line(error),
            extra=fields_of("recovery_failed", timeout),
        )
        self._count_recovery_failure(error)

    def _count_recovery_failure(self, error: Exception) -> None:
        self.telemetry.count("recovery_failures")
        self.recovery.failure(error)

    def _count(self, result: BatchResult) -> None:
        self._meter.count(result)
        self._meter.late_by_host(result.at, sent_of(result.dispatched))


class _RemovedByAnother(TimeoutManagerError):
    """Another process removed messages that we had locked; the sends are undone."""


@dataclass(slots=True)
class DrainProgress:
    """Progress that the lanes of a drain share."""

    over: bool = False
    processed: int = 0
    pause: float = 0.0
    errors: list[Exception] = field(default_factory=list)

    def add(self, done: DrainStep) -> None:
        """Add the result of one step of a lane; the end that another lane sets meanwhile stays."""
        self.processed += done.processed
        if done.pause:
            self.pause = max(self.pause, done.pause)
        if done.pause or not done.full:
            self.over = True


class DrainLoop:
    """Repeats the step until nothing is due; with *lanes* 2, fetches overlap with sends.

    The second lane is a thread that runs as long as more than one batch is due.
    """

    def __init__(self, step: DispatchDue, *, sessions: SessionPool, lanes: int) -> None:
        self._stopping: Callable[[], bool] = lambda: False
        self._step = step
        self._batches = step.batches
        self._sessions = sessions
        self._lanes = lanes

    lead: Final = 0

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Return early from now on if *stopping* returns true."""
        self._stopping = stopping

    def now(self) -> Micros:
        """Return the time of the store's clock."""
        return self._batches.now()

    def notify_stored(self, due: Micros) -> None:
        """Note that a message due at *due* was stored and committed."""
        self._batches.notify_stored(due)

    def __call__(self, session: TransportSession) -> Micros | None:
        """Process all due messages; return when to poll next by the store's clock, or None.

        Raises StorageUnavailable if the store cannot be used.
        """
        while not self._stopping():
            first = self._batches.store.next()
            if first is None or first > self.now():
                self._step.dispatch.success()  # another process may have sent what failed here
                return first
            drain = self._drained(session)
            self._step.telemetry.count("delayed_fetched", drain.processed)
            if drain.pause:
                return self.now() + round(drain.pause * 1_000_000)
            if not drain.processed:
                return self.now() + _EMPTY_POLL_DELAY
        return None

    def _drained(self, session: TransportSession) -> DrainProgress:
        drain = DrainProgress()
        helper: threading.Thread | None = None
        try:
            while not (drain.over or self._stopping()):
                drain.add(self._step(session))
                if helper is None and self._lanes > 1 and not drain.over:
                    with suppress(RuntimeError):  # the system has no more threads
                        helper = begin_thread(partial(self._help, drain), "timeoutmgr-due-2")
        finally:
            drain.over = True
            if helper is not None:
                helper.join()
        if drain.errors:
            raise drain.errors[0]
        return drain

    def _help(self, drain: DrainProgress) -> None:
        try:
            with self._sessions.session() as session:
                while not (drain.over or self._stopping()):
                    drain.add(self._step(session))
        except Exception as error:  # the first lane raises it
            drain.errors.append(error)
            drain.over = True
