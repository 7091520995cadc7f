"""Handlers of an endpoint: the step that calls them, and the context with which they send."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack, overload

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from timeoutmgr.contracts import Clock, ConflictName, OnConflict, RaiseCriticalError
from timeoutmgr.contracts.callables import unrun
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.failures import fails_again
from timeoutmgr.endpoint.handled_classes import read_typed
from timeoutmgr.endpoint.handler_session import HandlerSession, WorkOfHandler, context_ended
from timeoutmgr.endpoint.middleware import CallNext, run_through
from timeoutmgr.errors import (
    DeliveryUnknown,
    HandlerFailed,
    InvalidMessage,
    LeaseLost,
    MessageRejected,
    ReceivedTooLate,
    StorageUnavailable,
    TimeoutManagerError,
    TransactionLost,
    TransportUnavailable,
)
from timeoutmgr.message import headers
from timeoutmgr.message.classes import NO_BODY, TypedMessage, TypedMessageClass, type_and_body
from timeoutmgr.message.ids import RepeatableIds
from timeoutmgr.message.instants import LATEST, duration_micros, from_timespan, from_wire, to_wire
from timeoutmgr.message.labels import Labels
from timeoutmgr.message.message import Expiry, Message, Outgoing, Received, enclosed_types
from timeoutmgr.message.routes import ClearOrder, DelayRoute
from timeoutmgr.message.validation import decode_body
from timeoutmgr.resilience.after_fork import ChildEnds
from timeoutmgr.resilience.recovery import RecoverabilitySettings, delayed_retries, retry_delay
from timeoutmgr.sender.composer import (
    Composer,
    DelayClock,
    SendKeywords,
    SendOptions,
    Sent,
    TypedSendKeywords,
    not_options,
)
from timeoutmgr.telemetry import During, Operation, Telemetry, during_of
from timeoutmgr.transport.delivery_policy import PLAIN_HANDLING, HandlingPolicy
from timeoutmgr.transport.error_queue import SendAnswer
from timeoutmgr.transport.work import OUTAGES, Work, require_confirmed

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from timeoutmgr.contracts import DeliveryOptions

logger = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Any, "HandlerContext"], Sent | None]
"""A plain function; the type excludes coroutine functions, whose body a call would not run."""

Body = TypeVar("Body")
TypedHandler: TypeAlias = Callable[[Body, "HandlerContext"], Sent | None]
"""A handler that gets an object of its class."""

HandlerMiddleware: TypeAlias = Callable[["HandlerContext", CallNext], None]
"""A function that wraps the handlers of a message."""

RequireQueues: TypeAlias = Callable[[Sequence[str]], None]
"""Raises Unroutable if the final destination of a delayed message does not exist."""

AGAIN: Final = 10
"""Maximum messages that are settled together when they are delivered for the second time."""

ANY: Final = "*"
"""The message type of a handler for messages without a handler of their own type."""


class _NotGiven:
    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final[Any] = _NotGiven()
"""Default of the keywords of a send; None would override the value of *options*."""

_FIELDS: Final = tuple(SendOptions.__dataclass_fields__)


class HandlerContext:
    """The message that a handler handles, and the actions that the handler can take.

    Sends leave together with the message's acknowledgement: not at all if the handler fails, and in
    the transaction of the acknowledgement if the mode has a transaction. A send after the end of
    the handler, by a thread or task that outlives it, raises RuntimeError.
    """

    def __init__(
        self,
        received: Received,
        message_type: str,
        composer: Composer,
        queue: str,
        work: WorkOfHandler,
        require_queues: RequireQueues,
        policy: HandlingPolicy = PLAIN_HANDLING,
        *,
        ends_transaction: bool = False,
        raise_critical: RaiseCriticalError | None = None,
    ) -> None:
        self.message: Final[Message] = received.message
        self.message_type: Final = message_type
        self.delivery_count: Final = received.delivery_count
        self._composer = composer
        self._queue = queue
        self._delay_clock: DelayClock = work.now
        self._require_queues = require_queues
        self._policy = policy
        self._raise_critical = raise_critical
        self._outgoing: list[Outgoing | ClearOrder] = []
        self._delayed_for: list[str] = []
        self._session = HandlerSession(work, ends_transaction=ends_transaction)
        self._ids = None if work.is_atomic else _repeatable_ids(composer.endpoint, self.message)

    @property
    def message_id(self) -> str:
        """The id of the message; a redelivery has the same id."""
        return self.message.id

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers, read-only: retries and the error queue get them unchanged."""
        return MappingProxyType(self.message.headers)

    @property
    def saga_id(self) -> str | None:
        """The saga that the message belongs to, if its sender named a saga."""
        return self.message.headers.get(headers.SAGA_ID)

    @property
    def reply_to(self) -> str | None:
        """The queue for replies, if the message names a queue."""
        return self.message.headers.get(headers.REPLY_TO)

    @property
    def session(self) -> "Session":
        """An SQLAlchemy session inside the transaction that also settles this message.

        The endpoint commits. A rollback or commit of the session affects only a savepoint: the
        message and the rest of its batch are settled in the surrounding transaction. Raises
        RuntimeError in modes without a transaction.
        """
        return self._session.open()

    @overload
    def send(
        self, destination: str, message: TypedMessage, /, **given: Unpack[TypedSendKeywords]
    ) -> Sent: ...

    @overload
    def send(
        self,
        destination: str,
        message_type: str,
        body: object,
        options: SendOptions | None = None,
        **given: Unpack[SendKeywords],
    ) -> Sent: ...

    def send(
        self,
        destination: str,
        message_type: str | TypedMessage,
        body: object = NO_BODY,
        options: SendOptions | None = None,
        *,
        delay: timedelta | float | None = NOT_GIVEN,
        deliver_at: datetime | None = NOT_GIVEN,
        saga_id: str | None = NOT_GIVEN,
        headers: Mapping[str, str] = NOT_GIVEN,
        message_id: str | None = NOT_GIVEN,
        content_type: str | None = NOT_GIVEN,
        time_to_be_received: timedelta | None = NOT_GIVEN,
        delivery: "DeliveryOptions | None" = NOT_GIVEN,
        cancellable: bool = NOT_GIVEN,
        on_conflict: OnConflict | ConflictName | None = NOT_GIVEN,
        labels: Labels = NOT_GIVEN,
    ) -> Sent:
        """Send to *destination*; a keyword overrides the same field of *options*."""
        return self._send(destination, message_type, body, chosen_options(options, locals()))

    def _send(
        self, destination: str, message_type: str | TypedMessage, body: object, chosen: SendOptions
    ) -> Sent:
        if self._session.has_ended:  # before the clock, which uses the connection of the pump
            raise context_ended()
        if not isinstance(message_type, str) or body is NO_BODY:
            message_type, body = type_and_body(message_type, body)
        composed = self._composer.compose(
            destination,
            message_type,
            body,
            chosen,
            self.message,
            ids=self._ids,
            delay_clock=self._delay_clock,
        )
        if self._session.has_ended:  # asked again: another thread may have ended it meanwhile
            raise context_ended()
        self._outgoing.append(composed.outgoing)
        sent = composed.sent
        if sent.id is not None:
            # Not the given value: middleware may have changed it.
            saga_id = composed.outgoing.message.headers.get(headers.SAGA_ID)
            self._keep(sent.id, saga_id)
        if composed.due is not None:
            # Not the given value, which may be a format name.
            self._delayed_for.append(sent.destination)
        return sent

    @overload
    def send_local(self, message: TypedMessage, /, **given: Unpack[TypedSendKeywords]) -> Sent: ...

    @overload
    def send_local(
        self,
        message_type: str,
        body: object,
        options: SendOptions | None = None,
        **given: Unpack[SendKeywords],
    ) -> Sent: ...

    def send_local(
        self,
        message_type: str | TypedMessage,
        body: object = NO_BODY,
        options: SendOptions | None = None,
        *,
        delay: timedelta | float | None = NOT_GIVEN,
        deliver_at: datetime | None = NOT_GIVEN,
        saga_id: str | None = NOT_GIVEN,
        headers: Mapping[str, str] = NOT_GIVEN,
        message_id: str | None = NOT_GIVEN,
        content_type: str | None = NOT_GIVEN,
        time_to_be_received: timedelta | None = NOT_GIVEN,
        delivery: "DeliveryOptions | None" = NOT_GIVEN,
        cancellable: bool = NOT_GIVEN,
        on_conflict: OnConflict | ConflictName | None = NOT_GIVEN,
        labels: Labels = NOT_GIVEN,
    ) -> Sent:
        """Send to this endpoint's own queue; otherwise as ``send``."""
        return self._send(self._queue, message_type, body, chosen_options(options, locals()))

    @overload
    def reply(self, message: TypedMessage, /, **given: Unpack[TypedSendKeywords]) -> Sent: ...

    @overload
    def reply(
        self,
        message_type: str,
        body: object,
        options: SendOptions | None = None,
        **given: Unpack[SendKeywords],
    ) -> Sent: ...

    def reply(
        self,
        message_type: str | TypedMessage,
        body: object = NO_BODY,
        options: SendOptions | None = None,
        *,
        delay: timedelta | float | None = NOT_GIVEN,
        deliver_at: datetime | None = NOT_GIVEN,
        saga_id: str | None = NOT_GIVEN,
        headers: Mapping[str, str] = NOT_GIVEN,
        message_id: str | None = NOT_GIVEN,
        content_type: str | None = NOT_GIVEN,
        time_to_be_received: timedelta | None = NOT_GIVEN,
        delivery: "DeliveryOptions | None" = NOT_GIVEN,
        cancellable: bool = NOT_GIVEN,
        on_conflict: OnConflict | ConflictName | None = NOT_GIVEN,
        labels: Labels = NOT_GIVEN,
    ) -> Sent:
        """Send to the queue that the message names for replies; otherwise as ``send``."""
        chosen = chosen_options(options, locals())
        if self.reply_to is None:
            raise InvalidMessage(
                f"message {self.message_id!r:.80} names no reply address; send to a destination"
            )
        return self._send(self.reply_to, message_type, body, chosen)

    def clear_timeouts(self, saga_id: str) -> None:
        """Ask the timeout manager to cancel the timeouts of a saga that were sent until now.

        The order leaves with the messages that the handler sends, and not at all if the handler
        fails. Timeouts of the saga that the handler sends after this call are kept.
        """
        order = self._composer.clear(saga_id, ids=self._ids)
        if self._session.has_ended:
            raise context_ended()
        self._outgoing.append(order)

    def raise_critical_error(self, error: str, exception: BaseException | None = None) -> None:
        """Report *error*, which the endpoint cannot repair itself, to the critical error hooks.

        By default the endpoint stops. The call returns at once, and raises nothing: the handler
        goes on, and its own failure or success decides about the message. If it fails and is tried
        again, it reports again. *exception* is the cause, if there is one.
        """
        if not error:
            raise InvalidMessage("a critical error needs a sentence on its cause")
        assert self._raise_critical is not None, "an endpoint gives the way to its hooks"
        self._raise_critical(error, exception or RuntimeError(error))

    def keep(self) -> Sequence[Outgoing]:
        """Keep the effects, and return the collected messages; call it after the last handler.

        Effects are kept last, because ``undo`` cannot revert them afterwards.
        """
        self._session.process = None  # first: a message that is collected later would be lost
        outgoing = self.collected()
        self._session.keep()
        return outgoing

    def collected(self) -> Sequence[Outgoing]:
        """Return the collected messages; raise Unroutable if a delayed message has no queue."""
        if self._delayed_for:
            self._require_queues(self._delayed_for)
        return [
            each.outgoing() if isinstance(each, ClearOrder) else each for each in self._outgoing
        ]

    def end(self) -> None:
        """Refuse sends from now on, in every view of this context, as the handler has ended."""
        self._session.process = None

    def share_session(self, other: "HandlerContext") -> None:
        """Use the session of *other*: both contexts end, and are kept or undone, together."""
        self._session = other._session

    def undo(self, *, with_all: bool) -> None:
        """Undo the effects on the transaction, and no others. Raises TransactionLost.

        *with_all* means that the owner undoes the whole transaction: then nothing is raised.
        """
        with suppress(*UNDOING_ALL) if with_all else nullcontext():
            self._session.undo()

    def _keep(self, timeout_id: str, saga_id: str | None) -> None:
        """Exempt *timeout_id* from this handler's earlier orders to clear *saga_id*."""
        for each in self._outgoing:
            if isinstance(each, ClearOrder) and each.saga_id == saga_id:
                each.kept.append(timeout_id)


def _repeatable_ids(endpoint: str, cause: Message) -> RepeatableIds | None:
    """Return repeatable ids for the sends of *endpoint* caused by *cause*; None means random ids.

    A sender may use an id again for another message, which then has another time of sending.
    Without that time, two messages with the same id cannot be distinguished.
    """
    sent = cause.headers.get(headers.TIME_SENT)
    return None if sent is None else RepeatableIds(endpoint, cause.id, sent)


def chosen_options(options: SendOptions | None, arguments: Mapping[str, Any]) -> SendOptions:
    """Return *options*, with fields replaced by the *arguments* that were given."""
    given = {name: arguments[name] for name in _FIELDS if arguments[name] is not NOT_GIVEN}
    if options is None:
        return SendOptions(**given)
    if not isinstance(options, SendOptions):
        raise not_options(options)
    return replace(options, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStep:
    """Step that handles the messages of the endpoint's own queue."""

    queue: str
    handlers: Mapping[str, Sequence[Handler]]
    composer: Composer
    clock: Clock
    telemetry: Telemetry
    require_queues: RequireQueues = lambda _queues: None
    policy: HandlingPolicy = PLAIN_HANDLING
    expiry: Expiry = field(default_factory=Expiry)
    alone: frozenset[str] = frozenset()
    """Message types whose messages each have their own transaction."""
    message_classes: Mapping[str, TypedMessageClass] = field(default_factory=dict)
    """Classes of the messages that handlers get as objects, by message type."""
    middleware: Sequence[HandlerMiddleware] = ()
    raise_critical: RaiseCriticalError | None = None
    during: During = field(init=False)
    """Returns the context for each call of handlers."""

    def __post_init__(self) -> None:
        """Ask the telemetry once what it observes."""
        object.__setattr__(self, "during", during_of(self.telemetry))

    def split(self, batch: Sequence[Received]) -> Iterator[Sequence[Received]]:
        """Yield *batch* in order, in parts that are settled together.

        Messages that are delivered for the second time are in small parts; later, each is its own
        part. Otherwise a message that kills the process whenever it is handled would each time
        prevent the commit of the same neighbours. A kill brings back up to a hundred messages, so a
        commit for each of them at once would cost a hundred times as much.
        """
        part: list[Received] = []
        most = 0
        for received in batch:
            before, most = most, self._most_together(received)
            if part and (most != before or len(part) == most):
                yield part
                part = []
            part.append(received)
        if part:
            yield part

    def _most_together(self, received: Received) -> int:
        """Return the maximum size of a part of a batch that contains *received*."""
        if received.delivery_count > 1 or self._is_alone(received.message):
            return 1
        return AGAIN if received.delivery_count else sys.maxsize

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Handle the messages of *batch* in order, then send all messages of their handlers.

        A message that fails is undone and recovered alone. If it cannot be undone alone, this
        raises, and the whole batch is undone.
        """
        alone = len(batch) == 1
        handled = self.handle_each(work.in_order(batch), work, alone=alone)
        self.finish(handled, work, alone=alone)

    def handle_each(
        self, turns: Iterable[Received], work: Work, *, alone: bool
    ) -> list["HandledMessage"]:
        """Return the handled messages of *turns*; their sends are still to be made."""
        handled: list[HandledMessage] = []
        for received in turns:
            try:
                done = self._handle(received, work, alone=alone)
            except Exception as error:
                if alone or (work.is_atomic and isinstance(error, UNDOING_ALL)):
                    raise
                work.fail(received, error)
                if isinstance(error, OUTAGES):
                    break  # the messages behind would fail in the same way
            else:
                if done is not None:
                    handled.append(done)
        return handled

    def finish(self, handled: Sequence["HandledMessage"], work: Work, *, alone: bool) -> None:
        """Send the messages of all handlers at once; fail a message if its sends are refused."""
        answers = iter(self._answers([each for each in handled if each.outgoing], work))
        count = 0
        for each in handled:
            try:
                if each.outgoing:
                    _require_accepted(each.outgoing, [next(answers) for _ in each.outgoing])
            except TimeoutManagerError as error:
                if alone or work.is_atomic:
                    raise
                work.fail(each.received, error)
            else:
                self.policy.handled(each.received.message, self.queue, work)
                count += 1
        if count:
            work.after_commit(lambda: self.telemetry.count("handled", count))

    def _answers(self, sending: Sequence["HandledMessage"], work: Work) -> Sequence[SendAnswer]:
        if not sending:
            return []
        try:
            answers: Sequence[SendAnswer] = self.policy.send(
                [one for each in sending for one in each.outgoing], work
            )
        except InvalidMessage as error:
            # Raised before any send; it does not say which message is to blame.
            if work.is_atomic:
                raise
            if len(sending) == 1:
                return [error for _ in sending[0].outgoing]
            return [answer for each in sending for answer in self._answers([each], work)]
        return answers

    def _handle(self, received: Received, work: Work, *, alone: bool) -> "HandledMessage | None":
        """Return the handled message; None if it was discarded. Its effects go if this raises."""
        prepared = self.prepare(received, work)
        if prepared is None:
            return None
        context = prepared.context
        try:
            try:
                with self.during(Operation.HANDLER, ((self.queue, received.message),)):
                    outgoing = self._call(prepared)
                reach("handler.kept")
            except BaseException as error:
                context.end()
                failure = as_a_failure_of_its_message(error, work, context)
                if failure is error:
                    raise
                raise failure from error
        except Exception as error:
            context.undo(with_all=alone or isinstance(error, UNDOING_ALL))
            raise
        return HandledMessage(received, outgoing)

    def _call(self, prepared: "PreparedMessage") -> Sequence[Outgoing]:
        """Call the handlers, keep their effects, and return the messages that they sent."""
        context = prepared.context
        if self.middleware:
            handle = partial(_call_each, prepared.handlers, prepared.body, context)
            run_through(self.middleware, context, handle)
        else:
            _call_each(prepared.handlers, prepared.body, context)
        return context.keep()

    def prepare(self, received: Received, work: WorkOfHandler) -> "PreparedMessage | None":
        """Return *received* with its handlers, body and context; None if it was discarded.

        Raises MessageRejected or another error of the message.
        """
        if self._expired(received.message):
            self._discard(received)
            return None
        refusal = self.policy.refusal(received.message, self.queue)
        if refusal is not None:
            raise refusal
        message_type, found = self._find(received.message)
        found_class = self.message_classes.get(message_type)
        try:
            body = (
                decode_body(received.message.body, received.message.content_type)
                if found_class is None
                else read_typed(received.message, found_class)
            )
        except (ValueError, RecursionError) as error:
            raise MessageRejected(f"the body is no {received.message.content_type}") from error
        context = HandlerContext(
            received,
            message_type,
            self.composer,
            self.queue,
            work,
            self.require_queues,
            self.policy,
            ends_transaction=self._is_alone(received.message),
            raise_critical=self.raise_critical,
        )
        return PreparedMessage(found, body, context)

    def _discard(self, received: Received) -> None:
        """Count and log an expired message; raise ReceivedTooLate if the policy keeps a trace."""
        if self.policy.traces_expired(received.message):
            raise ReceivedTooLate(
                f"message {received.message.id!r:.80} was received too late: its time to be "
                "received was over"
            )
        logger.warning(
            "endpoint discards message %.80r from queue %.80r: its time to be received is over",
            received.message.id,
            received.queue,
            extra={
                "event": "message_expired",
                "endpoint": self.composer.endpoint,
                "message_id": received.message.id[:200],
            },
        )
        self.telemetry.count("expired_on_receipt")

    def type_of(self, message: Message) -> str:
        """Return the registered type whose handlers get *message*."""
        return next((name for name in enclosed_types(message) if name in self.handlers), ANY)

    def _is_alone(self, message: Message) -> bool:
        """Return whether *message* has its own transaction; few endpoints have such types."""
        return bool(self.alone) and self.type_of(message) in self.alone

    def _find(self, message: Message) -> tuple[str, Sequence[Handler]]:
        names = enclosed_types(message)
        for name in names:
            if name in self.handlers:
                return name, self.handlers[name]
        if ANY in self.handlers:
            return names[0] if names else ANY, self.handlers[ANY]
        known = ", ".join(sorted(self.handlers)) or "none"
        raise MessageRejected(
            f"no handler for message type {names[0] if names else '(none given)'!r:.80}; "
            f"handlers here: {known}"
        )

    def _expired(self, message: Message) -> bool:
        # Only with both headers; the sender's clock is trusted, because the sender set the limit.
        sent, limit = (
            message.headers.get(headers.TIME_SENT),
            message.headers.get(headers.TIME_TO_BE_RECEIVED),
        )
        if sent is None or limit is None or not self.expiry.discard:
            return False
        try:
            ends = from_wire(sent) + duration_micros(from_timespan(limit))
            return ends + duration_micros(self.expiry.allowance) < self.clock.now()
        except ValueError:
            return False  # an unreadable limit must not discard a message


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    """A message that is ready for the call of its *handlers*."""

    handlers: Sequence[Handler]
    body: object
    context: HandlerContext


@dataclass(frozen=True, slots=True)
class HandledMessage:
    """A handled message, and the messages that its handlers sent."""

    received: Received
    outgoing: Sequence[Outgoing]


UNDOING_ALL: Final = (
    StorageUnavailable,
    TransportUnavailable,
    DeliveryUnknown,
    TransactionLost,
    SQLAlchemyError,
)
"""Errors after which the state of the transaction is unknown: its owner undoes all of it."""


def _require_accepted(outgoing: Sequence[Outgoing], answers: Sequence[SendAnswer]) -> None:
    """Raise for the first of *outgoing* that its queue did not accept."""
    for sent, answer in zip(outgoing, answers, strict=True):
        if isinstance(answer, InvalidMessage):
            raise answer
        require_confirmed([sent], [answer])


def _call_each(found: Sequence[Handler], body: object, context: HandlerContext) -> None:
    for handler in found:
        call_handler(handler, body, context)


def call_handler(handler: Callable[[Any, Any], object], body: object, context: object) -> None:
    """Call *handler*; raise HandlerFailed if it returned an object that still has to run."""
    with ChildEnds():
        left = unrun(handler(body, context))
    if left is not None:
        raise HandlerFailed(
            TypeError(
                f"it returned a {left}, which the endpoint does not run; have the handler run it "
                "to its end (asyncio.run) before it returns"
            )
        )


LOST_BY_ITSELF: Final = 5
"""Deliveries after which the message is the cause if its handler loses the connection again: an
outage does not strike one message each time. A server may end transactions that idle too long."""


def as_a_failure_of_its_message(
    error: BaseException, work: Work, context: HandlerContext
) -> BaseException:
    """Return *error* of a handler as a failed attempt at its message.

    The owner of a transaction takes errors of its database for an outage, and would repeat a wrong
    statement forever. ``sys.exit`` in a handler, or a cancelled event loop, would end the pump, and
    the next pump after the redelivery. The loss of a lease that the handler itself has is not the
    loss of its message's lease.
    """
    if isinstance(error, LeaseLost):
        return HandlerFailed(error)
    if isinstance(error, SQLAlchemyError):
        is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
        is_cause = is_lost and context.delivery_count >= LOST_BY_ITSELF
        is_own = work.is_atomic and (is_cause or fails_again(error))
        return HandlerFailed(error) if is_own else error
    return error if isinstance(error, Exception) else HandlerFailed(error)


def retry_later(
    message: Message,
    *,
    queue: str,
    settings: RecoverabilitySettings,
    delays: DelayRoute,
    clock: Clock,
    delay_clock: DelayClock = lambda: None,
) -> Outgoing:
    """Return the delayed retry of *message*: the same message, due in *queue* later.

    The wait counts from the time of *delay_clock*, or of *clock* if that is None.

    Incoming headers are copied, never changed. The time stamp distinguishes this retry from every
    other delay of the same message: the store would take a known id for a redelivery.

    Raises InvalidMessage if the retry would be due after the last instant of the calendar.
    """
    now = clock.now()
    wait: timedelta = retry_delay(settings, message)
    again = {
        **message.headers,
        headers.RETRIES: str(delayed_retries(message) + 1),
        headers.RETRIES_TIMESTAMP: to_wire(now),
    }
    again.pop(headers.DELIVER_AT, None)
    theirs = delay_clock()
    due = (now if theirs is None else theirs) + duration_micros(wait)
    if due > LATEST:
        raise InvalidMessage(
            f"the delayed retry of message {message.id!r:.80} would wait {wait}, past the year "
            "9999; lower recoverability.increase or recoverability.delayed"
        )
    return delays(Outgoing(queue, replace(message, headers=again)), due)
