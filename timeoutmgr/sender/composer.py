"""Composition of messages: from a call of ``send`` to a checked, routed message. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from string import whitespace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypedDict

from timeoutmgr.contracts import Clock, ConflictName, OnConflict, RepeatKind
from timeoutmgr.errors import DelayedDeliveryDisabled, InvalidMessage, Unsupported
from timeoutmgr.message import headers
from timeoutmgr.message.classes import NO_BODY, TypedMessage, type_and_body
from timeoutmgr.message.foreign import Foreign, outgoing_to
from timeoutmgr.message.headers import remembers_short
from timeoutmgr.message.ids import RepeatableIds
from timeoutmgr.message.instants import Micros, from_micros, to_timespan, to_wire
from timeoutmgr.message.labels import Labels, label_headers
from timeoutmgr.message.message import Message, Outgoing, with_headers
from timeoutmgr.message.routes import Clearing, ClearOrder, DelayRoute
from timeoutmgr.message.validation import (
    Limits,
    check_ahead,
    check_body,
    check_destination,
    check_headers,
    check_id,
    check_no_expiry,
    due_of,
    encode_body,
)
from timeoutmgr.transport.delivery_policy import PLAIN_SENDING, SendingPolicy
from timeoutmgr.transport.envelope import check_short

if TYPE_CHECKING:
    from timeoutmgr.contracts import DeliveryOptions

_BESIDE_NAMES: Final = f"{whitespace};"
"""Characters that end or surround the name of a message type."""

DelayClock: TypeAlias = Callable[[], Micros | None]
"""Returns a database's time; None if only the host's clock counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """Options of a send; an object can be used for many sends.

    *delay* (a timedelta or seconds) and *deliver_at* (an aware datetime) exclude each other.
    *saga_id* groups timeouts, so that they can be cancelled together. *message_id* is generated if
    not given; repeat it when a send's outcome is unknown. *delivery* requests journaling and
    acknowledgements, if dead-letter queues are enabled. *cancellable* means that the timeout may be
    cancelled or moved later, which only a store can do. *on_conflict* decides about a *message_id*
    that was used for another delayed message, see OnConflict; the default is ``keep``. *labels* are
    names and values for finding a stored timeout, as in ``endpoint.timeouts.list(labels=…)``; a
    message without delay drops them.
    """

    delay: timedelta | float | None = None
    deliver_at: datetime | None = None
    saga_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    message_id: str | None = None
    content_type: str | None = None
    time_to_be_received: timedelta | None = None
    delivery: "DeliveryOptions | None" = None
    cancellable: bool = False
    on_conflict: OnConflict | ConflictName | None = None
    labels: Labels = field(default_factory=dict)


class SendKeywords(TypedDict, total=False):
    """The keywords of a send, for type checkers: the fields of SendOptions."""

    delay: timedelta | float | None
    deliver_at: datetime | None
    saga_id: str | None
    headers: Mapping[str, str]
    message_id: str | None
    content_type: str | None
    time_to_be_received: timedelta | None
    delivery: "DeliveryOptions | None"
    cancellable: bool
    on_conflict: OnConflict | ConflictName | None
    labels: Labels


class TypedSendKeywords(SendKeywords, total=False):
    """The keywords of a send of an object that is both type and body."""

    options: SendOptions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Result of a send: an accepted message. *due* is None if it was not delayed.

    *id* is the id of the stored timeout; None if none is stored, so that nothing can be cancelled.
    *repeat* is given if the store was asked directly (``session=``, ``store_many``) and knew the
    message id: a CONFLICT was neither stored nor put into a queue.
    """

    message_id: str
    destination: str
    id: str | None = None
    due: datetime | None = None
    repeat: RepeatKind | None = None


@dataclass(frozen=True, slots=True)
class ToSend:
    """A message for a bulk send or for send middleware: the arguments of ``Endpoint.send``."""

    destination: str
    message_type: str
    body: object
    options: SendOptions = field(default_factory=SendOptions)

    @classmethod
    def of(
        cls, destination: str, message: TypedMessage, options: SendOptions | None = None
    ) -> "ToSend":
        """Return a ToSend for *message*, an object that gives both type and body."""
        message_type, body = type_and_body(message, NO_BODY)
        return cls(destination, message_type, body, options or SendOptions())


SendMiddleware: TypeAlias = Callable[[ToSend], ToSend]
"""Returns the message to send in place of the program's message."""


class Composed(NamedTuple):
    """A message that is ready to be sent, and the result for its sender.

    *destination* is its final queue. If a timeout is stored, *timeout_id_of* maps the message id to
    the timeout's id. *may_repeat* means that the message id was given, and may have been used
    before; *repeat* is the store's answer about that.
    """

    outgoing: Outgoing
    destination: str
    due: Micros | None = None
    timeout_id_of: Callable[[str], str] | None = None
    may_repeat: bool = False
    repeat: RepeatKind | None = None

    @property
    def sent(self) -> Sent:
        """The result, made on demand, because a bulk needs few of its results."""
        message_id, id_of = self.outgoing.message.id, self.timeout_id_of
        return Sent(
            message_id=message_id,
            destination=self.destination,
            id=None if id_of is None else id_of(message_id),
            due=None if self.due is None else from_micros(self.due),
            repeat=self.repeat,
        )

    @property
    def final_queue(self) -> str | None:
        """The queue of a delayed message, which must exist already although it is used later.

        None for a message that is not delayed, or goes by a route: the session that dispatches it
        declares its queues.
        """
        is_routed = headers.ROUTE in self.outgoing.message.headers
        return None if self.due is None or is_routed else self.destination

    def answered(self, repeat: RepeatKind | None) -> "Composed":
        """Return the message with the store's answer."""
        return self if repeat is None else self._replace(repeat=repeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """Makes outgoing messages for one endpoint."""

    endpoint: str
    clearing: Clearing
    reply_to: str | None
    limits: Limits
    clock: Clock
    new_id: Callable[[], str]
    timeout_id_of: Callable[[str], str]
    delays: DelayRoute | None
    cancellable_delays: DelayRoute | None = None
    remembering_delays: DelayRoute | None = None
    policy: SendingPolicy = PLAIN_SENDING
    goes_by_host: bool = False
    """Whether due times are compared with the host's clock although the queues have a clock."""
    middleware: Sequence[SendMiddleware] = ()

    def compose(
        self,
        destination: str,
        message_type: str,
        body: object,
        options: SendOptions,
        cause: Message | None = None,
        *,
        ids: RepeatableIds | None = None,
        stored: bool = False,
        delay_clock: DelayClock | None = None,
    ) -> Composed:
        """Return the checked and routed message; raise InvalidMessage if it is wrong.

        *cause* is the message being handled, to which the new message is related; *ids* are its
        repeatable ids, if the cause may be handled again. With *stored* a delayed message must go
        to a store that can bypass a queue; otherwise Unsupported is raised. A relative delay counts
        from the time of *delay_clock*, or else of the endpoint's clock.
        """
        if self.middleware:
            changed = self._changed(ToSend(destination, message_type, body, options))
            destination, message_type = changed.destination, changed.message_type
            body, options = changed.body, changed.options
        if not isinstance(options, SendOptions):
            raise not_options(options)
        now = self.clock.now()
        begin = now if options.deliver_at is not None else self._begin(options, now, delay_clock)
        due = due_of(options.delay, options.deliver_at, begin)
        on_conflict = _checked_on_conflict(options, due)
        delays = None if due is None else self._route(options, stored)
        if isinstance(destination, str):
            destination = self.policy.queue_of(destination)
        check_destination(destination, self.limits)
        message = self._message(destination, message_type, body, options, now, cause, ids)
        if more := self.policy.delivery_headers(options.delivery, message.headers, destination):
            message = replace(message, headers={**message.headers, **more})
        check_headers(message.headers, self.limits)
        check_body(message.body, self.limits)
        outgoing = outgoing_to(destination, message)
        if due is None or delays is None:
            return Composed(outgoing, destination)
        check_ahead(due, begin, self.limits)
        check_no_expiry(message.headers)
        routed = delays(outgoing, due)
        if routed.via is None and self.remembering_delays is not None:
            routed = _with_conflict_headers(
                routed, on_conflict, due_given=options.deliver_at is not None
            )
        id_of = None if routed.via is not None else self.timeout_id_of
        return Composed(routed, destination, due, id_of, may_repeat=options.message_id is not None)

    def _changed(self, message: ToSend) -> ToSend:
        """Return *message* as changed by the middleware, before any check."""
        for each in self.middleware:
            message = each(message)
            if not isinstance(message, ToSend):
                raise InvalidMessage(
                    f"send middleware {each!r:.80} returned {message!r:.80}; return the ToSend "
                    "that it got, or another"
                )
        return message

    def _begin(self, options: SendOptions, now: Micros, delay_clock: DelayClock | None) -> Micros:
        """Return the instant from which the relative delay of *options* counts."""
        if options.delay is None or delay_clock is None or self.goes_by_host:
            return now
        theirs = delay_clock()
        return now if theirs is None else theirs

    def clear(self, saga_id: str, *, ids: RepeatableIds | None = None) -> ClearOrder:
        """Return the order to cancel the timeouts of *saga_id*; raise if no manager accepts it."""
        content = str(saga_id).encode("utf-8", "surrogatepass")
        message_id = (
            self.new_id() if ids is None else ids.next(self.endpoint, "ClearTimeouts", content)
        )
        order = self.clearing.order(saga_id, self.clock.now(), message_id)
        checked_saga(saga_id)
        return order

    def _route(self, options: SendOptions, stored: bool) -> DelayRoute:
        if self.delays is None:
            raise DelayedDeliveryDisabled()
        if not (stored or options.cancellable):
            return self._remembering(self.delays, options)
        if self.cancellable_delays is None:
            what = "cancellable=True" if options.cancellable else "storing a delayed message"
            raise Unsupported(
                f"{what} with native delayed delivery",
                "the broker holds the message, and can neither list nor cancel it",
                "Say NativeDelayedDelivery(fallback_to_store=True) beside TimeoutManager, whose "
                "store takes such messages, or send it without",
            )
        return self._remembering(self.cancellable_delays, options)

    def _remembering(self, route: DelayRoute, options: SendOptions) -> DelayRoute:
        """Return *route*; raise Unsupported if it cannot remember ids or labels that are needed."""
        asked = "on_conflict" if options.on_conflict is not None else "labels"
        if route is self.remembering_delays or not (options.labels or asked == "on_conflict"):
            return route
        raise Unsupported(
            f"{asked} without the timeout manager's store",
            "neither delay levels nor a delayed message store remember used ids, or find labels",
            "Enable TimeoutManager; beside NativeDelayedDelivery(fallback_to_store=True), send "
            f"with cancellable=True too. Or leave {asked} out",
        )

    def _message(
        self,
        destination: str,
        message_type: str,
        body: object,
        options: SendOptions,
        now: Micros,
        cause: Message | None,
        ids: RepeatableIds | None,
    ) -> Message:
        if (
            not isinstance(message_type, str)
            # The first type that a receiver would read: the text may have more than a name.
            or not message_type.partition(",")[0].strip(_BESIDE_NAMES)
        ):
            raise InvalidMessage(f"a message type is a name, got {message_type!r:.80}")
        content, content_type = encode_body(body)
        saga = None if options.saga_id is None else checked_saga(options.saga_id)
        message_id = options.message_id
        if message_id is None:
            about = destination, message_type, content, saga or ""
            message_id = self.new_id() if ids is None else ids.next(*about)
        check_id(message_id)
        if options.content_type is not None:
            content_type = _checked_content_type(options.content_type)
        own = {
            headers.MESSAGE_ID: message_id,
            headers.CORRELATION_ID: message_id,
            headers.CONVERSATION_ID: message_id,
            headers.ENCLOSED_MESSAGE_TYPES: message_type,
            headers.CONTENT_TYPE: content_type,
            headers.MESSAGE_INTENT: "Send",
            headers.TIME_SENT: to_wire(now),
            headers.ORIGINATING_ENDPOINT: self.endpoint,
        }
        if self.reply_to is not None:
            own[headers.REPLY_TO] = self.reply_to
        if cause is not None:
            own |= _related(cause)
        if saga is not None:
            own[headers.SAGA_ID] = saga
        if options.time_to_be_received is not None:
            own[headers.TIME_TO_BE_RECEIVED] = _checked_expiry(options.time_to_be_received)
        if isinstance(body, Foreign):
            own |= _carried(body, destination)
        if options.labels and (options.delay is not None or options.deliver_at is not None):
            own |= label_headers(options.labels)
        _refuse_reserved(options.headers)
        return Message(
            id=message_id,
            headers={**own, **options.headers},
            body=content,
            content_type=content_type,
        )


RESERVED = frozenset(
    {headers.EXPIRE, headers.DESTINATION, headers.CLEAR_TIMEOUTS, headers.MESSAGE_ID, headers.WAKE}
    | {headers.PROBE}
    | {headers.TIMEOUT_ID, headers.CHUNK_VERSION, headers.DELIVER_AT, headers.SAGA_ID}
    | {headers.RETRIES, headers.RETRIES_TIMESTAMP, headers.DELAYED_DESTINATION}
    | {headers.ON_CONFLICT, headers.DELIVER_AT_GIVEN, headers.KEEPS_TIMEOUTS}
    | {headers.LABELS, headers.FOREIGN, headers.FOREIGN_CONTENT, headers.FOREIGN_DUE, headers.ROUTE}
)
"""Headers that a sender must not set."""


def _refuse_reserved(given: Mapping[str, str]) -> None:
    if not isinstance(given, Mapping):
        raise InvalidMessage(f"headers are a mapping of names to texts, got {given!r:.80}")
    _refuse_reserved_names(tuple(given))


@remembers_short(1024)
def _refuse_reserved_names(names: tuple[str, ...]) -> None:
    # A program uses a few sets of headers again and again.
    for name in names:
        _refuse_reserved_name(name)


def _refuse_reserved_name(name: str) -> None:
    if name in RESERVED or str(name).startswith(headers.PROPERTY_PREFIX):
        raise InvalidMessage(
            f"header {name!r} is set by the timeout manager itself; use delay, deliver_at, "
            "message_id or saga_id"
        )
    if isinstance(name, str) and name.lower() in headers.BROKER_HEADERS:
        raise InvalidMessage(
            f"header {name!r} steers the broker and would change where the message goes; "
            "choose another name"
        )


def _carried(foreign: Foreign, destination: str) -> dict[str, str]:
    if foreign.route.destination != destination:
        raise InvalidMessage(
            f"a foreign message is routed to {foreign.route.destination!r:.80}, and sent to "
            f"{destination!r:.80}; send it to the destination of its route"
        )
    return foreign.as_headers()


def _checked_on_conflict(options: SendOptions, due: Micros | None) -> OnConflict | None:
    """Return on_conflict; raise InvalidMessage if a message without delay has such options."""
    given = options.on_conflict
    if given is None and not options.cancellable:
        return None
    try:
        asked = None if given is None else OnConflict(given)
    except ValueError as error:
        known = ", ".join(OnConflict)
        raise InvalidMessage(f"on_conflict must be {known}, got {given!r}") from error
    if due is None:
        name, value = ("cancellable", True) if asked is None else ("on_conflict", asked.value)
        raise InvalidMessage(
            f"{name}={value!r} is given, and the message is not delayed; give a delay or "
            f"deliver_at, or leave {name} out"
        )
    return asked


def _with_conflict_headers(
    routed: Outgoing, on_conflict: OnConflict | None, *, due_given: bool
) -> Outgoing:
    """Return *routed* with the headers for on_conflict; the default needs no header."""
    added: dict[str, str] = {}
    if on_conflict not in (None, OnConflict.KEEP):
        added[headers.ON_CONFLICT] = str(on_conflict)
    if due_given:
        added[headers.DELIVER_AT_GIVEN] = "True"
    if not added:
        return routed
    message = routed.message
    return Outgoing(routed.destination, with_headers(message, {**message.headers, **added}))


def _related(cause: Message) -> dict[str, str]:
    return {
        headers.RELATED_TO: cause.id,
        headers.CONVERSATION_ID: cause.headers.get(headers.CONVERSATION_ID, cause.id),
        headers.CORRELATION_ID: cause.headers.get(headers.CORRELATION_ID, cause.id),
    }


def _checked_expiry(limit: timedelta) -> str:
    if not isinstance(limit, timedelta) or limit <= timedelta(0):
        raise InvalidMessage(f"time_to_be_received is a positive timedelta, got {limit!r}")
    return to_timespan(limit)


def not_options(given: object) -> InvalidMessage:
    """Return the error of a send with *given* instead of SendOptions."""
    return InvalidMessage(f"options of a send are a SendOptions, got {given!r:.80}")


def _checked_content_type(given: str) -> str:
    if not isinstance(given, str) or not given.strip() or not given.isprintable():
        raise InvalidMessage(
            f"a content type is printable text, got {given!r:.80}; name one such as text/plain"
        )
    check_short(given, "content type")
    return given


def checked_saga(saga_id: str) -> str:
    """Return *saga_id*; raise InvalidMessage if it is no saga id."""
    if not isinstance(saga_id, str) or not 0 < len(saga_id) <= 200 or not saga_id.isprintable():
        raise InvalidMessage(
            f"a saga id is printable text of 1 to 200 characters, got {saga_id!r:.80}"
        )
    return saga_id
