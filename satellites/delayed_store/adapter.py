"""A delayed message store as a source of due timeouts: fetched, sent and removed in batches."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from timeoutmgr.contracts import (
    Clock,
    DeadLetters,
    DelayedMessageStore,
    FetchesInBatches,
    RemovesInBatches,
    SendResult,
    StoresInBatches,
    Timeout,
    TransactionMode,
    TransportSession,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    DeliveryFailed,
    DeliveryUnknown,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.breakers import OutageBreaker, RateBreaker
from timeoutmgr.satellites.delivery.forwarder import Forwarder
from timeoutmgr.satellites.delivery.message import back_off, delivered
from timeoutmgr.satellites.delivery.undeliverable import (
    Undeliverable,
    move_to_error_queue,
    send_each,
)
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.error_queue import ErrorQueue
from timeoutmgr.transport.work import notify_best_effort

logger = logging.getLogger(__name__)

_SCOPE: Final = TransactionMode.TRANSACTION_SCOPE
_LEAST_PAUSE: Final = 0.2
_LOOK_AGAIN: Final = 1_000_000
"""Microseconds after which to look again at what is due and in other hands."""


@dataclass(frozen=True, slots=True)
class Batches:
    """*store*, of which at most *limit* messages are asked at a time."""

    store: DelayedMessageStore
    clock: Clock
    limit: int

    @property
    def size(self) -> int:
        """How many one fetch returns at most."""
        return self.limit if isinstance(self.store, FetchesInBatches) else 1

    def now(self) -> Micros:
        """Return the time that the store compares due times with."""
        own = getattr(self.store, "now", None)
        return self.clock.now() if own is None else int(own())

    def notify_stored(self, due: Micros) -> None:
        """Tell the store, if it wants to hear it, that a message of *due* is committed."""
        tell = getattr(self.store, "notify_stored", None)
        if tell is not None:
            tell(due)

    def fetch(self, transaction: Any, limit: int) -> Sequence[Timeout]:
        """Return what is due, at most *limit*, locked until *transaction* ends."""
        at = self.clock.now()
        if isinstance(self.store, FetchesInBatches):
            return self.store.fetch_due(at, limit, transaction=transaction)
        one = self.store.fetch_next_due_timeout(at, transaction=transaction)
        return [] if one is None else [one]

    def put(self, timeouts: Sequence[Timeout], transaction: Any) -> None:
        """Store *timeouts*, with a *transaction* in it."""
        if isinstance(self.store, StoresInBatches):
            self.store.store_many(timeouts, transaction=transaction)
            return
        for timeout in timeouts:
            self.store.store(timeout, transaction=transaction)
            reach("delayed.stored_one")

    def remove(self, timeouts: Sequence[Timeout], transaction: Any) -> int:
        """Remove *timeouts* in *transaction*; return how many were there."""
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
    """What one batch came to.

    *processed* counts what is no longer due: sent, given up, or put off. *pause* is how long
    to wait before the next round, in seconds, where the broker is away.
    """

    processed: int
    full: bool = False
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class _Sending:
    """Sends in the one transaction of queue and store, or by itself."""

    session: TransportSession
    scope: Any

    def send_isolated(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        return self.session.send(outgoing, transaction=self.scope) if outgoing else []

    def notify(self, outgoing: Sequence[Outgoing], *, isolated: bool) -> None:
        assert isolated, "nothing was received here that it could be sent with"
        notify_best_effort(self.send_isolated, outgoing)


@dataclass(frozen=True, slots=True)
class RetryLater:
    """A message that stays stored; *counts* says whether the attempt does."""

    timeout: Timeout
    error: Exception
    counts: bool = True


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came of a batch, once its transaction has ended."""

    at: Micros = 0
    taken: Sequence[Timeout] = ()
    given_up: Sequence[Timeout] = ()
    """In the error queue, or dead."""
    again: Sequence[RetryLater] = ()


@dataclass(slots=True, kw_only=True)
class DispatchDue:
    """The step: fetched under a lock, sent and confirmed, then removed and committed.

    In ``transaction_scope`` all of it is one transaction. In the other modes fetching and removing
    are one of the store's and the send is outside it: where the removal fails, the message goes
    out again under the same id. An attempt that fails is counted in a transaction of its own; one
    that could not be made, since broker or storage is away, is not. *turn* is held while
    fetching, and while failures are counted of what is free for the next fetch already.
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
    turn: AbstractContextManager[Any]
    dead_letters: DeadLetters | None = None
    alone: int = 0
    """How many messages to take one by one: among them is one that made a batch fail."""

    def __call__(self, session: TransportSession) -> DrainStep:
        """Deal with one batch; raises StorageUnavailable where it cannot be fetched or removed."""
        with ExitStack() as stack:
            stack.enter_context(self.turn)
            limit = 1 if self.alone else self.batches.size
            self.alone = max(0, self.alone - 1)
            batch: Sequence[Timeout] = []
            try:
                with self._transaction(session) as transaction:
                    batch = self.batches.fetch(transaction, limit)
                    stack.close()
                    dealt = self._deal_with(batch, session, transaction)
                    if dealt.again:
                        # Whoever fetches next must find them put off.
                        stack.enter_context(self.turn)
            except StorageUnavailable:
                raise
            except TransportUnavailable as error:
                return DrainStep(0, pause=self._broker_is_away(error))
            except Exception as error:
                if not batch:
                    raise
                return self._failed(batch, error, session)
            reach("due.committed")
            self._count(dealt)
            return self._follow(batch, dealt.again, limit)

    def _transaction(self, session: TransportSession) -> AbstractContextManager[Any]:
        return session.transaction() if self.mode is _SCOPE else self.batches.store.transaction()

    def _deal_with(
        self, batch: Sequence[Timeout], session: TransportSession, transaction: Any
    ) -> BatchResult:
        """Send *batch*, and remove what was taken by its queue or by the error queue."""
        if not batch:
            return BatchResult()
        reach("due.fetched")
        at = self.clock.now()
        sending = _Sending(session, transaction if self.mode is _SCOPE else None)
        forwarder = Forwarder(self.attempts, self.limits, self.dead_letters)
        prepared = forwarder.prepare(batch, at)
        results = send_each(prepared.outgoing, sending)
        reach("due.confirmed")
        ended = forwarder.classify(prepared, results, sending)
        given_up, kept = self._to_error_queue(ended.failed, sending)
        given_up += [one.timeout for one in ended.dead]
        kept += [self._not_buried(one) for one in ended.later]
        self._remove([*ended.taken, *given_up], transaction)
        reach("due.removed")
        refused = [
            RetryLater(one, _not_taken(one, result), counts=result is SendResult.REFUSED)
            for one, result in ended.again
        ]
        return BatchResult(at, ended.taken, given_up, [*refused, *kept])

    def _remove(self, timeouts: Sequence[Timeout], transaction: Any) -> None:
        gone = len(timeouts) - self.batches.remove(timeouts, transaction)
        if not gone:
            return
        if self.mode is _SCOPE:
            raise _TakenByAnother(f"{gone} of {len(timeouts)} messages were removed by another")
        logger.warning(
            "Potential more-than-once dispatch: %d delayed messages were removed by another "
            "process while they were sent",
            gone,
        )
        self.telemetry.count("delayed_gone", gone)

    def _to_error_queue(
        self, failed: Sequence[Undeliverable], sending: _Sending
    ) -> tuple[list[Timeout], list[RetryLater]]:
        """Copy each; return those that the error queue has taken, and those that it has not."""
        given_up: list[Timeout] = []
        kept: list[RetryLater] = []
        error_queue = ErrorQueue(self.error_queue, self.endpoint, self.clock.now())
        results = move_to_error_queue(error_queue, failed, sending)
        for one, result in zip(failed, results, strict=True):
            if result is SendResult.CONFIRMED:
                reach("due.error_copy_confirmed")
                logger.error(
                    "dispatcher moves delayed message %.80r to the error queue: %s",
                    one.timeout.id,
                    on_one_line(one.error),
                )
                given_up.append(one.timeout)
                continue
            not_taken = DeliveryFailed(
                f"{one.error}; and the error queue {self.error_queue!r} did not take it ({result})"
            )
            self._recovery_failed(one.timeout, not_taken)
            kept.append(RetryLater(one.timeout, not_taken))
        return given_up, kept

    def _not_buried(self, one: Undeliverable) -> RetryLater:
        """Return a message that is dead, and has no place to lie in yet."""
        waits = DeliveryFailed(f"{one.error}; and its dead letter has no place yet")
        self._recovery_failed(one.timeout, waits)
        return RetryLater(one.timeout, waits)

    def _follow(
        self, batch: Sequence[Timeout], again: Sequence[RetryLater], limit: int
    ) -> DrainStep:
        """Count what failed, put it off, and tell the breaker how the round went."""
        unanswered = [each for each in again if not each.counts]
        counted = all([self._put_off(each) for each in again if each.counts])
        pause = 0.0
        if len(again) < len(batch):
            self.dispatch.success()
        if unanswered or not counted:
            pause = max(self.dispatch.failure((unanswered or again)[0].error), _LEAST_PAUSE)
        elif again and len(again) == len(batch):
            self.dispatch.failure(again[0].error)
        return DrainStep(len(batch), full=len(batch) == limit, pause=pause)

    def _failed(
        self, batch: Sequence[Timeout], error: Exception, session: TransportSession
    ) -> DrainStep:
        """Deal with an error that no answer of broker or storage explains."""
        if len(batch) > 1:
            # One bad message must not sink its neighbours: each on its own.
            logger.warning(
                "dispatcher could not send a batch and tries each message alone: %s",
                on_one_line(error),
            )
            self.alone = len(batch)
            return DrainStep(0, full=True)
        [timeout] = batch
        pause = self.dispatch.failure(error)
        logger.warning("delayed message %.80r: %s", timeout.id, on_one_line(error))
        if timeout.attempts + 1 >= self.attempts and self._give_up(timeout, error, session):
            return DrainStep(1, full=True)
        counted = self._put_off(RetryLater(timeout, error))
        return DrainStep(1, full=True, pause=0.0 if counted else max(pause, _LEAST_PAUSE))

    def _give_up(self, timeout: Timeout, error: Exception, session: TransportSession) -> bool:
        """Copy into the error queue, then remove; return whether that was done.

        Never a dead letter: an error without a name says nothing of the delivery.
        """
        wrapped = error if isinstance(error, TimeoutManagerError) else DeliveryFailed(repr(error))
        message = delivered(timeout, to_wire(self.clock.now()))
        undeliverable = Undeliverable(timeout, message, wrapped)
        try:
            with session.transaction() if self.mode is _SCOPE else nullcontext() as scope:
                given_up, _ = self._to_error_queue([undeliverable], _Sending(session, scope))
                self._remove(given_up, scope)
                reach("due.given_up")
        except Exception as failure:
            self._recovery_failed(timeout, failure)
            return False
        self.telemetry.count("delayed_failed", len(given_up))
        return bool(given_up)

    def _put_off(self, again: RetryLater) -> bool:
        """Count a failed attempt in a transaction of its own; return whether that was done."""
        timeout = again.timeout
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
            on_one_line(again.error),
        )
        return True

    def _broker_is_away(self, error: TimeoutManagerError) -> float:
        self.telemetry.count("transport_failures")
        logger.warning(
            "dispatcher leaves due messages stored, the broker is away: %s", on_one_line(error)
        )
        return max(self.dispatch.failure(error), _LEAST_PAUSE)

    def _recovery_failed(self, timeout: Timeout, error: Exception) -> None:
        self.telemetry.count("recovery_failures")
        logger.error(
            "dispatcher leaves delayed message %.80r stored: %s", timeout.id, on_one_line(error)
        )
        self.recovery.failure(error)

    def _count(self, dealt: BatchResult) -> None:
        self.telemetry.count("delayed_dispatched", len(dealt.taken))
        if dealt.given_up:
            self.telemetry.count("delayed_failed", len(dealt.given_up))
        if dealt.taken:
            lateness = dealt.at - min(timeout.due for timeout in dealt.taken)
            self.telemetry.value("lateness_seconds", lateness / 1_000_000)


class _TakenByAnother(TimeoutManagerError):
    """What was fetched under a lock is gone; what was sent for it is undone."""


def _not_taken(timeout: Timeout, result: object) -> TimeoutManagerError:
    if result is SendResult.REFUSED:
        return DeliveryFailed(f"queue {timeout.destination!r:.80} refused the message; is it full?")
    return DeliveryUnknown(
        f"no confirm came for message {timeout.message.id!r:.80} to {timeout.destination!r:.80}"
    )


@dataclass(slots=True)
class DrainProgress:
    """What the lanes of one drain share."""

    over: bool = False
    processed: int = 0
    pause: float = 0.0
    errors: list[Exception] = field(default_factory=list)

    def add(self, done: DrainStep) -> None:
        """Add the result of one step of a lane."""
        self.processed += done.processed
        self.pause = max(self.pause, done.pause)
        self.over |= bool(done.pause) or not done.full


class DrainLoop:
    """Rounds of the step until nothing is due; with *lanes* 2, fetching overlaps with sending.

    The second lane is a thread that lives as long as there is more due than one batch.
    """

    def __init__(self, step: DispatchDue, *, sessions: SessionPool, lanes: int) -> None:
        self._stopping: Callable[[], bool] = lambda: False
        self._step = step
        self._batches = step.batches
        self._sessions = sessions
        self._lanes = lanes

    lead: Final = 0

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Return early from now on where *stopping* says so."""
        self._stopping = stopping

    def now(self) -> Micros:
        """Return the time of the store's clock."""
        return self._batches.now()

    def notify_stored(self, due: Micros) -> None:
        """Hear that a message of *due* was stored, and is committed."""
        self._batches.notify_stored(due)

    def __call__(self, session: TransportSession) -> Micros | None:
        """Deal with all that is due; return the store's instant of the next look, None for none.

        Raises StorageUnavailable where the store cannot be used.
        """
        while not self._stopping():
            first = self._batches.store.next()
            if first is None or first > self.now():
                return first
            drain = self._drained(session)
            self._step.telemetry.count("delayed_fetched", drain.processed)
            if drain.pause:
                return self.now() + round(drain.pause * 1_000_000)
            if not drain.processed:
                return self.now() + _LOOK_AGAIN
        return None

    def _drained(self, session: TransportSession) -> DrainProgress:
        drain = DrainProgress()
        helper: threading.Thread | None = None
        try:
            while not (drain.over or self._stopping()):
                drain.add(self._step(session))
                if helper is None and self._lanes > 1 and not drain.over:
                    helper = threading.Thread(
                        target=self._help, args=(drain,), name="timeoutmgr-due-2", daemon=True
                    )
                    helper.start()
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
