"""The pump: one thread that receives batches from one queue and settles every message.

In the end every message is acknowledged: handled, moved for a later retry, or copied into the error
queue. Until then it stays in the queue. While the storage or the broker is away, the pump stops
consuming (rather than requeue: RabbitMQ counts redeliveries, and from 4.0 on drops after twenty).
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.contracts import (
    Clock,
    Receiver,
    ResizesPrefetch,
    SendResult,
    StandsBack,
    TransactionMode,
    TransportSession,
)
from timeoutmgr.contracts import Transport as TransportPort
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    DeliveryUnknown,
    HandlerFailed,
    HandlerStopped,
    InvalidMessage,
    LeaseLost,
    MessageRejected,
    QueueMissing,
    StorageConflict,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.resilience.error_copy import class_and_message, with_last_failure, with_traceback
from timeoutmgr.resilience.recovery import (
    SATELLITE_POLICY,
    Conflicts,
    RecoverabilitySettings,
    Recovery,
    decide,
)
from timeoutmgr.telemetry import Operation, Telemetry, count_each_of, during_of
from timeoutmgr.transport.batch_progress import BatchPace, BatchProgress, may_return
from timeoutmgr.transport.delivery_policy import (
    PLAIN_FAILURES,
    FailurePolicy,
    Outage,
    StorageOutage,
)
from timeoutmgr.transport.error_queue import ErrorQueue, FailedMessage, SendAnswer, message_fields
from timeoutmgr.transport.in_flight import ConcurrentHandling
from timeoutmgr.transport.work import BATCH_BYTES, OUTAGES, Consumer, Step, Work, in_sub_batches

logger = logging.getLogger(__name__)

IDLE_WAIT: Final = 0.5
"""Seconds that one receive from an empty queue waits."""
LONGEST_RELAPSE: Final = 30.0
"""Maximum seconds between tries of a storage that answers but fails whenever it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """A queue to consume, the step for its messages, and their settings."""

    name: str
    queue: str
    step: Step
    batch: int = 1
    is_paced: bool = False
    """Whether a batch may take only BATCH_SECONDS; its step handles messages one by one."""
    split: Callable[[Sequence[Received]], Iterable[Sequence[Received]]] = lambda batch: [batch]
    """Splits a batch, in its order, into parts that are settled together."""
    policy: RecoverabilitySettings = SATELLITE_POLICY
    storage: Outage | None = None
    """The storage behind the step."""
    broker: OutageBreaker | None = None
    """The breaker for failures to reach the broker, instead of the endpoint's breaker."""
    retry_later: Callable[[Message], Outgoing] | None = None
    """Makes the delayed retry of a failed message; None if delayed retries are impossible."""
    concurrent: ConcurrentHandling | None = None
    """Handles messages concurrently, beside the step; None if the step handles every message."""


@dataclass(frozen=True, slots=True)
class ConsumedQueue:
    """The session and the receiver by which a pump consumes its queue."""

    session: TransportSession
    receiver: Receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpSurroundings:
    """Parts that all pumps of an endpoint share."""

    endpoint: str
    transport: TransportPort
    mode: TransactionMode
    error_queue: str
    clock: Clock
    telemetry: Telemetry
    broker: OutageBreaker
    failures: FailurePolicy = PLAIN_FAILURES
    monotonic: Callable[[], float] = time.monotonic
    stop: threading.Event = field(default_factory=threading.Event)
    number: int | None = None
    """The number by which a consumer recognises timeouts that it stored; None: a random number."""


class Pump:
    """Consumes one queue in one thread. ``run`` is the loop, ``pump_once`` the step."""

    def __init__(self, consumption: Consumption, surroundings: PumpSurroundings) -> None:
        self._what = consumption
        self._around = surroundings
        self._broker = consumption.broker or surroundings.broker
        self._is_cut_off = False
        """Whether this pump reported that it cannot reach the broker."""
        self._during = during_of(surroundings.telemetry)
        self._count_each = count_each_of(surroundings.telemetry)
        self._receiver: Receiver | None = None
        self._pace = BatchPace(consumption.batch)
        if (number := surroundings.number) is None:
            number = int.from_bytes(os.urandom(2), "big")
        self._consumer = Consumer(number, surroundings.clock.monotonic())
        self._progress: tuple[BatchProgress, Receiver] | None = None
        self._conflicts = Conflicts()
        self._relapses = 0
        self._outages = set[Outage]()
        """Outages that this pump reported: that another pump works does not end them."""

    def run(self) -> None:
        """Consume until stopped; neither a message nor an outage ends the loop."""
        while not self._around.stop.is_set():
            try:
                self._consume()
            except StorageConflict as error:
                self._try_again(error)
            except StorageUnavailable as error:
                self._sit_out(error)
            except HandlerStopped:
                self._around.telemetry.count("handlers_stopped")
            except (TransportUnavailable, DeliveryUnknown, QueueMissing, LeaseLost) as error:
                self._around.telemetry.count("transport_failures")
                self._around.stop.wait(self._cut_off(error))
            except Exception as error:
                logger.exception(
                    "pump of %s failed and starts again",
                    self._what.queue,
                    extra={"event": "pump_failed", "endpoint": self._around.endpoint},
                )
                self._around.telemetry.count("pump_failures")
                self._around.stop.wait(max(1.0, self._cut_off(error)))

    def interrupt(self) -> None:
        """Make a waiting pump check whether it should stop; from any thread."""
        if (receiver := self._receiver) is not None:
            receiver.interrupt()

    @property
    def gives_back(self) -> bool:
        """Whether messages that wait behind a slow message still belong to the queue."""
        return self._what.is_paced and self._around.mode is not TransactionMode.NONE

    def give_back(self) -> None:
        """Give back the messages behind a slow message; from another thread."""
        if (current := self._progress) is not None and self.gives_back:
            progress, receiver = current

            def release(waiting: Sequence[Received]) -> int:
                if isinstance(receiver, StandsBack):
                    return receiver.stand_back(waiting, may_return)
                receiver.release(waiting)
                return len(waiting)

            given = progress.give_back(release)
            self._around.telemetry.count("messages_given_back", given)

    def pump_once(self, session: TransportSession, receiver: Receiver, wait: float) -> int:
        """Receive one batch and deal with it; return its number of messages."""
        opened = ConsumedQueue(session, receiver)
        limit = self._limit
        batch = receiver.receive(limit, wait)
        self._consumer.received(batch, limit, self._around.clock.monotonic())
        sound = [received for received in batch if received.defect is None]
        if batch:
            reach("pump.received")
            if self._outages or self._is_cut_off:
                self._report_retry()
        if batch and self._around.mode is TransactionMode.NONE:
            receiver.ack(batch)
        self._handle_in_order(sound, opened)
        for received in batch:
            if received.defect is not None:
                self._move_to_error(received, MessageRejected(received.defect), opened)
        self._end_outages(proved=bool(sound))
        return len(batch)

    def _consume(self) -> None:
        with (
            closing(self._around.transport.session()) as session,
            closing(session.receiver(self._what.queue, prefetch=self._prefetch)) as receiver,
        ):
            self._receiver = receiver
            try:
                while not self._around.stop.is_set():
                    self.pump_once(session, receiver, IDLE_WAIT)
                    if isinstance(receiver, ResizesPrefetch):
                        receiver.resize(self._prefetch)
                self._finish(ConsumedQueue(session, receiver))
            finally:
                self._receiver = None

    def _finish(self, opened: ConsumedQueue) -> None:
        """Settle the messages in flight of a stopped pump; this pump has none after a step."""

    @property
    def _limit(self) -> int:
        return self._pace.limit if self._what.is_paced else self._what.batch

    @property
    def _prefetch(self) -> int:
        return self._pace.prefetch if self._what.is_paced else 2 * self._what.batch

    def _end_outages(self, *, proved: bool) -> None:
        """End the outages that this pump reported: a batch proves that its storage works.

        If another process received the failed message, a probe must end the outage, so that it does
        not trigger. A batch proves nothing about a policy's storage, which few messages need.
        """
        if proved:
            self._conflicts.won()
            self._relapses = 0
        if self._is_cut_off:
            self._end_cut_off()
        for outage in tuple(self._outages):
            outage.end(proved=proved and outage is self._what.storage)
            self._outages.remove(outage)

    def _try_again(self, error: StorageConflict) -> None:
        """Pause before a retry of a lost transaction; its messages are still in the queue."""
        pause = self._conflicts.lost()
        if pause is None:
            self._sit_out(error)
            return
        self._around.telemetry.count("storage_conflicts")
        self._around.stop.wait(pause)

    def _sit_out(self, error: StorageUnavailable) -> None:
        """Wait without consuming until the storage answers again.

        If the storage answers but fails again on the first message (a full disk), the tries become
        less frequent: each try is a redelivery, and brokers count redeliveries.
        """
        self._around.telemetry.count("storage_failures")
        storage = error.outage if isinstance(error, StorageOutage) else self._what.storage
        if storage is None:
            self._around.stop.wait(self._cut_off(error))
            return
        if self._is_cut_off:
            self._end_cut_off()
        self._outages.add(storage)
        away: Exception = error
        while not self._around.stop.wait(storage.breaker.failure(away)):
            try:
                storage.probe()
            except Exception as still_away:
                # Other causes (missing rights, a newer schema) may also be repaired meanwhile.
                logger.warning(
                    "pump of %s cannot reach the storage: %s",
                    self._what.queue,
                    on_one_line(still_away),
                    extra={"event": "storage_away", "endpoint": self._around.endpoint},
                )
                away = still_away
            else:
                if self._relapses:
                    self._around.stop.wait(min(2.0**self._relapses, LONGEST_RELAPSE))
                self._relapses += 1
                return

    def _report_retry(self) -> None:
        """Report a new try of broker and storage; its handlers may take long."""
        if self._what.is_paced:
            for outage in self._outages:
                outage.breaker.retrying()
            if self._is_cut_off:
                self._broker.retrying()

    def _cut_off(self, error: Exception) -> float:
        """Report that the broker cannot be reached; return the seconds to pause."""
        self._is_cut_off = True
        return self._broker.failure(error)

    def _end_cut_off(self) -> None:
        """Report that the pump has reached the broker: the broker gave it a message."""
        self._is_cut_off = False
        self._broker.success()

    def _handle_in_order(self, received: Sequence[Received], opened: ConsumedQueue) -> None:
        """Handle *received* in batches; messages that were not begun go into the next batch.

        If a batch is undone, each message becomes a batch: a message must not fail its neighbours.
        """
        waiting, undone = received, set[int]()
        while waiting:
            began = self._around.monotonic()
            batch = waiting[:1] if id(waiting[0]) in undone else self._first_batch(waiting)
            progress = BatchProgress(batch, self._around.monotonic, waiting[len(batch) :])
            self._progress = (progress, opened.receiver)
            again: Sequence[Received] = ()
            try:
                again = self._handle(progress, opened)
            finally:
                last, self._progress = self._progress[0], None  # of the last attempt
                last.close()
            undone.update(map(id, again))
            waiting = [*again, *last.waiting]
            self._pace.note(len(progress.begun), self._around.monotonic() - began)
            if last.failure is not None:
                raise last.failure  # a new receiver gets the messages that are still in the queue
            if self._around.stop.is_set() and self._around.mode is not TransactionMode.NONE:
                return  # the receiver gives the other messages back when it closes

    def _first_batch(self, waiting: Sequence[Received]) -> Sequence[Received]:
        """Return the first messages of *waiting* that are settled together, at least one."""
        sub_batch = next(in_sub_batches(waiting, BATCH_BYTES))
        return next(iter(self._what.split(sub_batch)))

    def _handle(self, progress: BatchProgress, opened: ConsumedQueue) -> Sequence[Received]:
        """Handle a batch, and settle it; return its messages if it was undone."""
        try:
            failed = self._attempt(progress, opened)
        except LeaseLost:
            # The leases of waiting messages are no younger; a lost connection loses all of them.
            self._leave(progress.withdraw(), opened.receiver)
        except StorageConflict:
            if len(progress.begun) == 1:
                raise
            return progress.begun
        except OUTAGES as error:
            if self._around.mode is not TransactionMode.NONE:
                raise
            # They have left the queue: only the error queue can keep them now.
            for received in progress.begun:
                self._move_to_error(received, error, opened)
        except Exception as error:
            if len(progress.begun) > 1:
                return progress.begun
            self._recover(progress.begun[0], error, opened)
        else:
            self._recover_failed(failed, opened)
        return ()

    def _attempt(
        self, progress: BatchProgress, opened: ConsumedQueue
    ) -> Sequence[tuple[Received, Exception]]:
        mode = self._around.mode
        with Work(opened.session, opened.receiver, mode, progress, self._consumer) as work:
            try:
                self._what.step(progress.batch, work)
            except HandlerStopped as error:
                failure = self._failure_of(error)
                if failure is error:
                    raise
                raise failure from error
            finally:
                progress.close()
            reach("pump.handled")
            if self._around.mode is not TransactionMode.NONE:
                self._settle_handled(progress.begun, work)
        return [(received, self._failure_of(error)) for received, error in work.failed]

    def _failure_of(self, error: Exception) -> Exception:
        """Return *error* of a step, or HandlerFailed if a handler itself raised an error of ours.

        Only an acknowledgement can lose a lease, and only a stop of the endpoint stops a handler. A
        handler that raises such an error at another time would raise it at each delivery.
        """
        is_stopped = isinstance(error, HandlerStopped) and not self._around.stop.is_set()
        if not (is_stopped or isinstance(error, LeaseLost)):
            return error
        failed = HandlerFailed(error)
        failed.__cause__ = error
        return failed

    def _settle_handled(self, handled: Sequence[Received], work: Work) -> None:
        """Acknowledge *handled*, whose effects are in *work*."""
        queue = self._what.queue
        with self._during(Operation.SETTLE, ((queue, each.message) for each in handled)):
            work.ack(handled)
        reach("pump.acked")

    def _recover_failed(
        self, failed: Sequence[tuple[Received, Exception]], opened: ConsumedQueue
    ) -> None:
        """Recover the failed messages of a batch that is settled; an outage is raised last."""
        outage: Exception | None = None
        for received, error in failed:
            if isinstance(error, OUTAGES):
                outage = error  # the message stays in the queue
            elif isinstance(error, MessageRejected):
                self._move_to_error(received, error, opened)
            else:
                self._recover(received, error, opened)
        if outage is not None:
            raise outage

    def _leave(self, batch: Sequence[Received], receiver: Receiver) -> None:
        """Release *batch*, which was undone; lost leases now belong to another consumer.

        Messages that are still ours come again. A receiver that kept them would withhold them from
        everybody, and have less and less room.
        """
        self._around.telemetry.count("leases_lost", len(batch))
        receiver.release(batch)

    def _recover(self, received: Received, error: Exception, opened: ConsumedQueue) -> None:
        attempt = 1
        while self._retries_now(FailedAttempt(received, error, attempt), opened):
            attempt += 1
            try:
                failed = self._attempt(self._repeat(received, opened.receiver), opened)
            except LeaseLost:
                self._leave([received], opened.receiver)
                return
            except OUTAGES:
                raise
            except Exception as again:
                error = again
            else:
                self._recover_failed(failed, opened)
                return

    def _repeat(self, received: Received, receiver: Receiver) -> BatchProgress:
        """Return the progress of another attempt; later messages can still be given back."""
        assert self._progress is not None, "an attempt is repeated while its batch is handled"
        again = self._progress[0].repeat(received)
        self._progress = (again, receiver)
        return again

    def _retries_now(self, failed: "FailedAttempt", opened: ConsumedQueue) -> bool:
        """Return whether to retry the message at once; otherwise move it elsewhere."""
        received, shown = failed.received, class_and_message(failed.error)
        action = self._decide(failed)
        if action is Recovery.RETRY_NOW:
            self._log_attempt(failed, shown)
            self._around.telemetry.count("immediate_retries")
            return True
        if action is Recovery.RETRY_LATER and self._what.retry_later is not None:
            self._delay(failed, self._what.retry_later, opened)
        else:
            self._move_to_error(received, failed.error, opened)
        self._log_attempt(failed, shown)
        return False

    def _delay(
        self,
        failed: "FailedAttempt",
        retry_later: Callable[[Message], Outgoing],
        opened: ConsumedQueue,
    ) -> None:
        """Replace a failed message by its delayed retry, or else move it to the error queue."""
        received = failed.received
        try:
            later = retry_later(with_last_failure(received.message, failed.error))
            self._replace(received, later, opened)
        except (InvalidMessage, OverflowError) as refusal:
            self._move_to_error(received, failed.error, opened)
            logger.warning(
                "pump of %s could not delay message %.80r: %s",
                received.queue,
                received.message.id,
                on_one_line(refusal),
                extra=self._fields("message_not_delayed", received, attempt=failed.attempt),
            )
        else:
            self._around.telemetry.count("delayed_retries")
            logger.warning(
                "pump retries message %.80r later: %s",
                received.message.id,
                class_and_message(failed.error),
                extra=self._fields("retried_later", received, attempt=failed.attempt),
            )

    def _decide(self, failed: "FailedAttempt") -> Recovery:
        if self._around.mode is TransactionMode.NONE:  # it has already left the queue
            return Recovery.MOVE_TO_ERROR
        now = self._around.clock.now()
        message, policy = failed.received.message, self._what.policy
        return decide(policy, message, failed.error, failed.attempt, now)

    def _move_to_error(self, received: Received, error: Exception, opened: ConsumedQueue) -> None:
        """First copy into the error queue, then settle: a failure in between repeats the copy.

        The failure policy may divert a message to another place, in the same order.
        """
        place = self._around.failures.divert(
            received, error, lambda: Work(opened.session, opened.receiver, self._around.mode)
        )
        if place is not None:
            self._log_end(received, error, place)
            return
        error_queue = ErrorQueue(
            self._around.error_queue, self._around.endpoint, self._around.clock.now()
        )
        [answer] = error_queue.move(
            [FailedMessage(received.message, error, received.queue)],
            lambda copies: self._send_copy(received, copies, opened),
        )
        if isinstance(answer, InvalidMessage):
            raise answer
        if answer is SendResult.REFUSED:
            raise Refused(f"the broker refused {received.message.id!r:.80}")
        self._around.telemetry.count("moved_to_error")
        self._count_each("error_queue_messages", [type(error).__name__])
        # Log last: a log call that takes long or fails must not bring the message back.
        self._log_end(received, error, "the error queue")

    def _send_copy(
        self, received: Received, copies: Sequence[Outgoing], opened: ConsumedQueue
    ) -> list[SendAnswer]:
        """Replace *received* by the only copy in *copies*; raise if a smaller copy cannot help."""
        [copy] = copies
        try:
            self._replace(received, copy, opened)
        except Refused:
            return [SendResult.REFUSED]
        except InvalidMessage as refusal:
            return [refusal]
        return [SendResult.CONFIRMED]

    def _replace(self, received: Received, outgoing: Outgoing, opened: ConsumedQueue) -> None:
        """Send *outgoing*, then settle *received*; in one transaction if the mode has one."""
        with Work(opened.session, opened.receiver, self._around.mode) as work:
            [result] = opened.session.send([outgoing], transaction=work.transaction)
            if result is SendResult.REFUSED:
                raise Refused(f"the broker refused {outgoing.message.id!r:.80}")
            if result is not SendResult.CONFIRMED:
                raise TransportUnavailable(
                    f"queue {outgoing.destination!r:.80} did not take message "
                    f"{outgoing.message.id!r:.80} ({result.value}); it stays in {received.queue!r}"
                )
            to_error = outgoing.destination == self._around.error_queue
            reach("pump.error_copy_sent" if to_error else "pump.retry_sent")
            if self._around.mode is not TransactionMode.NONE:
                work.ack([received])
                reach("pump.replaced")

    def _log_attempt(self, failed: "FailedAttempt", shown: str) -> None:
        logger.info(
            "message %.80r failed in attempt %d: %s",
            failed.received.message.id,
            failed.attempt,
            shown,
            extra=self._fields("attempt_failed", failed.received, attempt=failed.attempt),
        )

    def _log_end(self, received: Received, error: Exception, place: str) -> None:
        logger.error(
            "pump moves message %.80r from %s to %s: %s",
            received.message.id,
            received.queue,
            place,
            with_traceback(error),
            extra=self._fields("message_moved", received),
        )

    def _fields(self, event: str, received: Received, **more: int) -> dict[str, object]:
        """Return the log fields of *event*."""
        fields = message_fields(event, received.message, received.queue)
        return {**fields, "endpoint": self._around.endpoint, **more}


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A message whose handling failed, for the *attempt*-th time since it was received."""

    received: Received
    error: Exception
    attempt: int = 1


class Refused(TransportUnavailable):
    """The broker refused a message; a smaller copy of it may pass."""
