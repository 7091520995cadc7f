"""Dispatch step for due messages: lock them, send them, and close them with their outcomes."""

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeAlias, TypeVar

from timeoutmgr.contracts import SendResult, Timeout
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import DeliveryFailed, DeliveryUnknown, TransportUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.telemetry import (
    Addressed,
    CountEach,
    Dispatched,
    During,
    ObservesLateness,
    Operation,
    Telemetry,
    count_each_of,
    during_of,
)
from timeoutmgr.transport.delivery_policy import Undeliverable
from timeoutmgr.transport.error_queue import ErrorQueue, SendAnswer
from timeoutmgr.transport.work import IsolatedSends, send_each, start_each

from .forwarder import Forwarder

logger = logging.getLogger(__name__)

# --- overlap: the rows of a chunk are locked while the chunk before it is confirmed -----------

Result = TypeVar("Result")

DispatchSteps: TypeAlias = Generator[None, None, None]
"""Dispatch of a chunk: a generator that stops twice, with its rows locked, and when it is sent."""


class OverlappedDispatch:
    """Moves chunks through their steps. At its end it closes the last chunk.

    A chunk is sent after the chunk before it is closed, so that a crash leaves at most one chunk in
    doubt. *overlaps* is false if all chunks share a transaction: its own locks do not exclude it,
    so it would lock the rows of a chunk again that was ordered twice.
    """

    def __init__(self, *, overlaps: bool) -> None:
        self._overlaps = overlaps
        self._sent: DispatchSteps | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        # Even if the next chunk failed, because the sends of the last chunk must be recorded.
        self._close_last()

    def add(self, chunk: DispatchSteps) -> None:
        """Send *chunk* after the chunks before it."""
        if not self._overlaps:
            finish(chunk)
            return
        try:
            next(chunk)
            self._close_last()
            next(chunk)
        except BaseException:
            chunk.close()  # now, and not at garbage collection
            raise
        self._sent = chunk

    def _close_last(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            finish(sent)


def finish(chunk: Generator[None, None, Result]) -> Result:
    """Move *chunk* through all remaining steps; return its result."""
    while True:
        try:
            next(chunk)
        except StopIteration as ended:
            result: Result = ended.value
            return result


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLater:
    """A message that stays stored.

    *answer* is the broker's answer to the message, or to its error copy if the message
    *is_undeliverable*; no error copy was sent if the message *is_postponed*.
    """

    timeout: Timeout
    error: Exception
    answer: SendAnswer = SendResult.REFUSED
    is_undeliverable: bool = False
    is_postponed: bool = False

    @property
    def was_refused(self) -> bool:
        """Whether the attempt counts: without an answer, the broker has refused nothing."""
        return self.is_undeliverable or self.answer is SendResult.REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The result of a batch: each message is in exactly one list.

    *failed* messages are in the error queue, or settled in another way: nothing is left to send.
    """

    at: Micros = 0
    dispatched: Sequence[Timeout] = ()
    failed: Sequence[Undeliverable] = ()
    retries: Sequence[RetryLater] = ()


class LockedBatch(Protocol):
    """Due messages that are locked against other dispatchers until they are closed."""

    @property
    def timeouts(self) -> Sequence[Timeout]:
        """The locked messages."""
        ...

    def now(self) -> Micros:
        """Return the instant of the dispatch."""
        ...

    def close(self, result: BatchResult) -> None:
        """Record *result*; a message that is not in its *retries* is removed."""
        ...


@dataclass(frozen=True, slots=True)
class ClosedElsewhere:
    """Due messages that the caller settles later: the end of their dispatch does not close them."""

    timeouts: Sequence[Timeout]
    at: Micros

    def now(self) -> Micros:
        """Return the instant of the dispatch."""
        return self.at

    def close(self, result: BatchResult) -> None:
        """No-op."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoints:
    """The names of the crash points in the step."""

    locked: str
    confirmed: str
    error_copied: str
    closed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDispatch:
    """The step: send a locked batch, move undeliverable messages to the error queue, close.

    Messages are sent and confirmed first, and removed second: a crash in between repeats messages
    under their ids, and loses none.
    """

    endpoint: str
    error_queue: str
    forwarder: Forwarder
    points: StepPoints
    during: During

    def __call__(
        self, locked: LockedBatch, work: IsolatedSends
    ) -> Generator[None, None, BatchResult]:
        """Send *locked* and close it; yield once, while the broker confirms the messages."""
        at = locked.now()
        prepared = self.forwarder.prepare(locked.timeouts, at)
        reach(self.points.locked)
        with self.during(Operation.CONFIRM, addressed(locked.timeouts)):
            try:
                sending = start_each(prepared.outgoing, work)
            except TransportUnavailable:
                self.forwarder.unsent(prepared, work)
                raise
            yield
            results = sending()
        reach(self.points.confirmed)
        sent = self.forwarder.classify(prepared, results, work)
        moved, kept = self.move_to_error_queue(sent.failed, at, work)
        result = BatchResult(
            at=at,
            dispatched=sent.confirmed,
            failed=[*sent.settled, *moved],
            retries=[
                *(_unconfirmed(one, answer) for one, answer in sent.again),
                *kept,
                *(_without_place(one) for one in sent.postponed),
            ],
        )
        locked.close(result)
        reach(self.points.closed)
        return result

    def move_to_error_queue(
        self, failed: Sequence[Undeliverable], at: Micros, work: IsolatedSends
    ) -> tuple[list[Undeliverable], list[RetryLater]]:
        """Copy each of *failed*; return the moved messages, and the rest as retries."""
        if not failed:
            return [], []
        moved, kept = move_to_error_queue(
            ErrorQueue(self.error_queue, self.endpoint, at), failed, work
        )
        for _ in moved:
            reach(self.points.error_copied)
        return moved, kept


def move_to_error_queue(
    error_queue: ErrorQueue, failed: Sequence[Undeliverable], work: IsolatedSends
) -> tuple[list[Undeliverable], list[RetryLater]]:
    """Copy *failed* into *error_queue*; return the moved messages, and the rest as retries."""
    moved: list[Undeliverable] = []
    kept: list[RetryLater] = []
    answers = error_queue.move(
        [one.failed for one in failed], lambda copies: send_each(copies, work)
    )
    for one, answer in zip(failed, answers, strict=True):
        if answer is SendResult.CONFIRMED:
            logger.error(
                "dispatcher moves timeout %.80r to the error queue: %s",
                one.timeout.id,
                on_one_line(one.error),
                extra=fields_of("moved_to_error_queue", one.timeout),
            )
            moved.append(one)
        else:
            kept.append(_not_moved(one, error_queue.name, answer))
    return moved, kept


def _not_moved(one: Undeliverable, error_queue: str, answer: SendAnswer) -> RetryLater:
    error = DeliveryFailed(
        f"{one.error}; and the error queue {error_queue!r} did not take it ({answer})"
    )
    logger.error(
        "dispatcher leaves timeout %.80r stored: %s",
        one.timeout.id,
        on_one_line(error),
        extra=fields_of("error_copy_not_taken", one.timeout),
    )
    return RetryLater(timeout=one.timeout, error=error, answer=answer, is_undeliverable=True)


def _without_place(one: Undeliverable) -> RetryLater:
    error = DeliveryFailed(f"{one.error}; and there is no place for it yet")
    return RetryLater(timeout=one.timeout, error=error, is_undeliverable=True, is_postponed=True)


def _unconfirmed(timeout: Timeout, answer: SendAnswer) -> RetryLater:
    if answer is SendResult.REFUSED:
        error = DeliveryFailed(
            f"queue {timeout.destination!r:.80} refused the message; is it full?"
        )
        return RetryLater(timeout=timeout, error=error, answer=answer)
    unknown = DeliveryUnknown(
        f"no confirm came for message {timeout.message.id!r:.80} to {timeout.destination!r:.80}"
    )
    return RetryLater(timeout=timeout, error=unknown, answer=answer)


def fields_of(event: str, timeout: Timeout) -> dict[str, object]:
    """Return the fields of a log line about *timeout*."""
    return {
        "event": event,
        "message_id": timeout.message.id,
        "timeout_id": timeout.id,
        "destination": timeout.destination,
        "attempt": timeout.attempts + 1,
    }


@dataclass(frozen=True, slots=True)
class DispatchMeter:
    """Counts results under names that begin with *prefix*."""

    telemetry: Telemetry
    prefix: str
    observer: ObservesLateness | None = field(init=False)
    """The telemetry, if it observes each message: checked once, not for each batch."""
    during: During = field(init=False)
    """Returns the context for an operation."""
    count_each: CountEach = field(init=False)
    """Counts by a label."""

    def __post_init__(self) -> None:
        """Ask the telemetry once what it observes."""
        observer = self.telemetry if isinstance(self.telemetry, ObservesLateness) else None
        object.__setattr__(self, "observer", observer)
        object.__setattr__(self, "during", during_of(self.telemetry))
        object.__setattr__(self, "count_each", count_each_of(self.telemetry))

    def count(self, result: BatchResult) -> None:
        """Count the messages of *result* that are no longer stored."""
        self.add("dispatched", len(result.dispatched))
        self.failed(result.failed)

    def failed(self, failed: Sequence[Undeliverable]) -> None:
        """Count messages that were given up, also by destination and by reason."""
        if failed:
            self.add("failed", len(failed))
            self.count_each("closed_failed", (one.timeout.destination for one in failed))
            self.count_each("error_queue_messages", (type(one.error).__name__ for one in failed))

    def add(self, outcome: str, amount: int) -> None:
        """Count *amount* messages with one *outcome*."""
        if amount:
            self.telemetry.count(f"{self.prefix}_{outcome}", amount)

    def late(self, at: Micros, sent: Sequence[Dispatched]) -> None:
        """Note that *sent* were dispatched at the instant *at*; the value is the largest."""
        if sent:
            earliest = min(due for _destination, due in sent)
            self.telemetry.value("lateness_seconds", (at - earliest) / 1_000_000)
            if self.observer is not None:
                self.observer.late(at, sent)

    def late_by_host(self, at: Micros, sent: Sequence[Dispatched]) -> None:
        """Record *sent* at an instant of the host's clock, which may be behind the store's clock.

        The store found them due by its own clock.
        """
        if sent:
            self.late(max(at, *(due for _destination, due in sent)), sent)


def addressed(timeouts: Iterable[Timeout]) -> Iterator[Addressed]:
    """Yield what a telemetry observes of *timeouts*."""
    return ((timeout.destination, timeout.message) for timeout in timeouts)


def sent_of(timeouts: Sequence[Timeout]) -> list[Dispatched]:
    """Return what a meter records about *timeouts*."""
    return [(timeout.destination, timeout.due) for timeout in timeouts]
