"""Retry or delete messages of the error queue: first send and confirm, then remove."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from timeoutmgr.contracts import (
    BrowsesQueues,
    Receiver,
    SendResult,
    TransactionMode,
    Transport,
    TransportSession,
)
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.foreign import finally_to, outgoing_to
from timeoutmgr.message.instants import Micros, instant_of, require_window, to_micros
from timeoutmgr.message.message import Message, Received, enclosed_types
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.resilience.error_copy import without_failure

# --- the messages of an error queue: their failures, filters and groups -----------------------

MOST_BROWSED: Final = 60_000
"""Maximum messages that one browse reads: an AMQP receiver can hold at most 65,535."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """The failure of a message, read from its headers; None for a missing header."""

    message_id: str
    exception: str | None
    reason: str | None
    message_type: str | None
    queue: str | None
    endpoint: str | None
    at: Micros | None
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFilter:
    """Selects messages of the error queue; None accepts any.

    *exception* is a class with or without its module; *reason* is part of the error's text in any
    case; *since* and *until* limit the time of the failure, and exclude messages without a time.
    With *is_group*, the filter selects the group of *exception* and *message_type*, where None
    selects messages that have none.
    """

    ids: frozenset[str] = frozenset()
    exception: str | None = None
    reason: str | None = None
    message_type: str | None = None
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    is_group: bool = False

    def __post_init__(self) -> None:
        """Refuse an empty time window."""
        require_window(InvalidMessage, since=self.since, until=self.until)

    def matches(self, received: Received) -> bool:
        """Return whether the filter selects *received*."""
        failure = failure_record(received)
        exception = failure.exception or ""
        group = failure.exception, failure.message_type
        return (
            (not self.is_group or group == (self.exception, self.message_type))
            and (not self.ids or failure.message_id in self.ids)
            and self.exception in (None, exception, exception.rpartition(".")[2] or None)
            and (self.reason is None or self.reason.lower() in (failure.reason or "").lower())
            and (self.message_type is None or self.message_type in enclosed_types(received.message))
            and self.queue in (None, failure.queue)
            and self._is_in_time(failure.at)
        )

    def _is_in_time(self, at: Micros | None) -> bool:
        if self.since is None and self.until is None:
            return True
        return (
            at is not None
            and (self.since is None or at >= to_micros(self.since))
            and (self.until is None or at < to_micros(self.until))
        )


ANY_FAILURE: Final = FailureFilter()
"""Selects every message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failed messages of one exception class and one message type."""

    exception: str | None
    message_type: str | None
    count: int
    oldest: Micros | None
    newest: Micros | None
    example: str | None


def browse(transport: Transport, error_queue: str, which: FailureFilter) -> Generator[Received]:
    """Yield the messages of *error_queue* that *which* selects, oldest first, and remove none.

    Raises QueueMissing, TransportUnavailable, and ConfigurationError if browsing would count
    towards a delivery limit.
    """
    with closing(transport.session()) as session:
        if not isinstance(session, BrowsesQueues):
            raise ConfigurationError(
                f"transport {transport.capabilities.name!r} cannot browse a queue; use the "
                "broker's own tools, or retry all"
            )
        with closing(session.browse(error_queue, MOST_BROWSED)) as messages:
            yield from (received for received in messages if which.matches(received))


def failure_record(received: Received) -> FailureRecord:
    """Return the failure of *received*, read from its headers."""
    given, types = received.message.headers, enclosed_types(received.message)
    return FailureRecord(
        message_id=received.message.id,
        exception=given.get(headers.EXCEPTION_TYPE) or None,
        reason=received.defect or given.get(headers.EXCEPTION_MESSAGE),
        message_type=types[0] if types else None,
        queue=given.get(headers.FAILED_QUEUE),
        endpoint=given.get(headers.PROCESSING_ENDPOINT),
        at=instant_of(given, headers.TIME_OF_FAILURE, None),
        size=len(received.message.body),
    )


def failure_groups(failures: Iterable[FailureRecord]) -> list[FailureGroup]:
    """Return the groups of *failures* by exception class and message type, the largest first."""
    groups: dict[tuple[str | None, str | None], list[FailureRecord]] = {}
    for failure in failures:
        groups.setdefault((failure.exception, failure.message_type), []).append(failure)
    found = [_group(members) for members in groups.values()]
    return sorted(found, key=lambda group: (-group.count, group.exception or ""))


def _group(members: list[FailureRecord]) -> FailureGroup:
    times = [failure.at for failure in members if failure.at is not None]
    return FailureGroup(
        exception=members[0].exception,
        message_type=members[0].message_type,
        count=len(members),
        oldest=min(times, default=None),
        newest=max(times, default=None),
        example=members[-1].reason,
    )


MOST_SKIPPED: Final = 5_000
"""Messages that a run skips and holds, so that they do not come again during the run."""
_WAIT: Final = 2.0


class RetryResult(StrEnum):
    """The result of a retry for one message."""

    LEFT = "left"
    RETRIED = "retried"
    WOULD_RETRY = "would_retry"
    DELETED = "deleted"
    WOULD_DELETE = "would_delete"
    UNREADABLE = "unreadable"
    NAMES_NO_QUEUE = "names_no_queue"
    NOT_ALLOWED = "not_allowed"
    UNROUTABLE = "unroutable"
    REFUSED = "refused"
    UNKNOWN = "unknown"

    @property
    def is_success(self) -> bool:
        """Whether the message was, or would be, retried or deleted."""
        return self in _SUCCESSES


_SUCCESSES: Final = frozenset(
    {RetryResult.RETRIED, RetryResult.WOULD_RETRY, RetryResult.DELETED, RetryResult.WOULD_DELETE}
)
_REMOVED: Final = frozenset({RetryResult.RETRIED, RetryResult.DELETED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequest:
    """Selects messages to retry; without ids it selects all, and without a limit any number.

    *which* narrows the selection further; *delete* deletes the messages instead of a retry.
    """

    ids: frozenset[str] = frozenset()
    limit: int | None = None
    dry_run: bool = False
    which: FailureFilter = ANY_FAILURE
    delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedMessage:
    """The result for a message of the error queue; *reason* is its failure, or the refusal."""

    message_id: str
    queue: str | None
    result: RetryResult
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointErrorQueue:
    """The error queue *name* of *endpoint*; messages leave it as *limits* permit.

    A header of the message names its queue, and an attacker may have forged the message.
    """

    name: str
    endpoint: str
    limits: Limits

    def refusal(self, queue: str, message: Message) -> str | None:
        """Return why *message* may not go back to *queue*; None if it may."""
        try:
            check_destination(queue, self.limits, back_to=self.endpoint, message=message)
        except InvalidMessage as error:
            return str(error)
        return None

    def judge(self, received: Received, request: RetryRequest) -> RetriedMessage:
        """Return the result of *request* for *received*, before a send."""
        message = received.message
        queue = message.headers.get(headers.FAILED_QUEUE)
        reason = received.defect or message.headers.get(headers.EXCEPTION_MESSAGE)
        result = _result(received, queue, request)
        refusal = self.refusal(queue, message) if queue and result in _BACK else None
        if refusal is not None:
            result, reason = RetryResult.NOT_ALLOWED, refusal
        return RetriedMessage(message_id=message.id, queue=queue, result=result, reason=reason)


_BACK: Final = frozenset({RetryResult.RETRIED, RetryResult.WOULD_RETRY})


def _result(received: Received, queue: str | None, request: RetryRequest) -> RetryResult:
    if request.ids and received.message.id not in request.ids:
        return RetryResult.LEFT
    if not request.which.matches(received):
        return RetryResult.LEFT
    if request.delete:
        return RetryResult.WOULD_DELETE if request.dry_run else RetryResult.DELETED
    if received.defect is not None:
        return RetryResult.UNREADABLE
    if not queue:
        return RetryResult.NAMES_NO_QUEUE
    return RetryResult.WOULD_RETRY if request.dry_run else RetryResult.RETRIED


Prepare: TypeAlias = Callable[[Message], Message]


def retry(
    transport: Transport,
    errors: EndpointErrorQueue,
    request: RetryRequest,
    *,
    prepare: Prepare = without_failure,
) -> list[RetriedMessage]:
    """Retry or delete the selected messages of an error queue; give back all others at the end.

    *prepare* creates the message to send. The run ends when the queue is empty. A message that
    fails again meanwhile, and so returns, is left for the next run. Raises QueueMissing and
    TransportUnavailable.
    """
    with (
        closing(transport.session()) as session,
        closing(session.receiver(errors.name, prefetch=MOST_SKIPPED)) as receiver,
    ):
        atomic = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE in transport.capabilities.modes
        move = _Move(session, receiver, prepare, atomic)
        return _Run(receiver, errors, request, move).results()


@dataclass(frozen=True, slots=True)
class _Move:
    """Moves a message back to its queue: prepare, send, and acknowledge if confirmed."""

    session: TransportSession
    receiver: Receiver
    prepare: Prepare
    is_atomic: bool
    """Whether the send and the acknowledgement are one transaction."""

    def __call__(self, received: Received, queue: str) -> SendResult:
        message = self.prepare(received.message)
        # A message that waits for its delay keeps its form until it is due.
        waits = headers.EXPIRE in message.headers
        outgoing = outgoing_to(queue, message) if waits else finally_to(queue, message)
        with self.session.transaction() if self.is_atomic else nullcontext() as transaction:
            (answer,) = self.session.send([outgoing], transaction=transaction)
            if answer is SendResult.CONFIRMED:
                self.receiver.ack([received], transaction=transaction)
        return answer


class _Run:
    """One pass over the queue; it holds every message that it does not remove."""

    def __init__(
        self, receiver: Receiver, errors: EndpointErrorQueue, request: RetryRequest, move: _Move
    ) -> None:
        self._receiver = receiver
        self._errors = errors
        self._request = request
        self._move = move
        self._results: list[RetriedMessage] = []
        self._missing = set(request.ids)
        self._sent: set[tuple[str, str | None]] = set()
        self._held = 0
        self._left = request.limit

    def results(self) -> list[RetriedMessage]:
        """Process the queue; return the result of each message."""
        # A count of the queue does not bound the run: brokers do not count messages that are on
        # their way, or messages that we hold.
        while self._held < MOST_SKIPPED and self._left != 0:
            if self._request.ids and not self._missing:
                break
            batch = self._receiver.receive(1, _WAIT)
            if not batch:
                break
            self._process(batch[0])
        # Closing the receiver returns the held messages all at once, and so keeps their order.
        return self._results

    def _process(self, received: Received) -> None:
        if _place_of(received) in self._sent:
            self._held += 1
            return
        # Only ids that are still missing: leave a second copy of a message alone.
        request = replace(self._request, ids=frozenset(self._missing))
        judged = self._errors.judge(received, request)
        done = self._carried_out(received, judged)
        self._results.append(done)
        self._held += done.result not in _REMOVED
        if done.result is not RetryResult.LEFT:
            self._missing.discard(done.message_id)
            self._left = None if self._left is None else self._left - 1

    def _carried_out(self, received: Received, judged: RetriedMessage) -> RetriedMessage:
        if judged.result is RetryResult.DELETED:
            self._receiver.ack([received])
        if judged.result is not RetryResult.RETRIED:
            return judged
        try:
            answer = self._move(received, judged.queue or "")
        except InvalidMessage as error:
            return replace(judged, result=RetryResult.REFUSED, reason=str(error))
        self._sent.add(_place_of(received))
        if answer is SendResult.CONFIRMED:
            return judged
        return replace(judged, result=RetryResult(answer.value))


def _place_of(received: Received) -> tuple[str, str | None]:
    """Return id and failed queue: a published message may fail in several queues."""
    return received.message.id, received.message.headers.get(headers.FAILED_QUEUE)
