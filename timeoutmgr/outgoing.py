"""From a call of ``send`` to a message with its headers, checked and routed. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from timeoutmgr import headers
from timeoutmgr.contracts import Clock
from timeoutmgr.errors import DelayedDeliveryDisabled, InvalidMessage
from timeoutmgr.instants import Micros, from_micros, to_timespan, to_wire
from timeoutmgr.message import Message, Outgoing
from timeoutmgr.validation import (
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

DelayRoute: TypeAlias = Callable[[Outgoing, Micros], Outgoing]
"""Takes a message and its due instant to where delays are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """How to send; may be used for many sends.

    *delay* (a timedelta or seconds) and *deliver_at* (an aware datetime) exclude each other.
    *saga_id* names what several timeouts belong to, so that they can be cancelled together.
    *message_id* is made if not given; give it again when a send's outcome is unknown.
    """

    delay: timedelta | float | None = None
    deliver_at: datetime | None = None
    saga_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    message_id: str | None = None
    content_type: str | None = None
    time_to_be_received: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that was accepted. *id* and *due* are None where it was not delayed."""

    message_id: str
    destination: str
    id: str | None = None
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Composed:
    """A message ready to be sent, and what its sender is told once it is."""

    outgoing: Outgoing
    sent: Sent
    due: Micros | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """Makes outgoing messages for one endpoint."""

    endpoint: str
    reply_to: str | None
    limits: Limits
    clock: Clock
    new_id: Callable[[], str]
    timeout_id_of: Callable[[str], str]
    delays: DelayRoute | None

    def compose(
        self,
        destination: str,
        message_type: str,
        body: object,
        options: SendOptions,
        cause: Message | None = None,
    ) -> Composed:
        """Return the checked and routed message; raise InvalidMessage for what is wrong with it.

        *cause* is the message being handled, which the new one is related to.
        """
        now = self.clock.now()
        due = due_of(options.delay, options.deliver_at, now)
        if due is not None and self.delays is None:
            raise DelayedDeliveryDisabled()
        check_destination(destination, self.limits)
        message = self._message(message_type, body, options, now, cause)
        check_headers(message.headers, self.limits)
        check_body(message.body, self.limits)
        outgoing = Outgoing(destination, message)
        if due is None or self.delays is None:
            return Composed(outgoing, Sent(message_id=message.id, destination=destination), None)
        check_ahead(due, now, self.limits)
        check_no_expiry(message.headers)
        sent = Sent(
            message_id=message.id,
            destination=destination,
            id=self.timeout_id_of(message.id),
            due=from_micros(due),
        )
        return Composed(self.delays(outgoing, due), sent, due)

    def _message(
        self,
        message_type: str,
        body: object,
        options: SendOptions,
        now: Micros,
        cause: Message | None,
    ) -> Message:
        if not isinstance(message_type, str) or not message_type:
            raise InvalidMessage(f"a message type is a name, got {message_type!r}")
        message_id = options.message_id if options.message_id is not None else self.new_id()
        check_id(message_id)
        content, content_type = encode_body(body)
        content_type = options.content_type or content_type
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
        if options.saga_id is not None:
            own[headers.SAGA_ID] = _checked_saga(options.saga_id)
        if options.time_to_be_received is not None:
            own[headers.TIME_TO_BE_RECEIVED] = _checked_expiry(options.time_to_be_received)
        _refuse_reserved(options.headers)
        return Message(
            id=message_id,
            headers={**own, **options.headers},
            body=content,
            content_type=content_type,
        )


_RESERVED = frozenset(
    {headers.EXPIRE, headers.DESTINATION, headers.CLEAR_TIMEOUTS, headers.MESSAGE_ID, headers.WAKE}
    | {headers.TIMEOUT_ID, headers.CHUNK_VERSION, headers.DELIVER_AT, headers.SAGA_ID}
    | {headers.RETRIES, headers.RETRIES_TIMESTAMP}
)


def _refuse_reserved(given: Mapping[str, str]) -> None:
    for name in given:
        if name in _RESERVED:
            raise InvalidMessage(
                f"header {name!r} is set by the timeout manager itself; use delay, deliver_at, "
                "message_id or saga_id"
            )
        if isinstance(name, str) and name.lower() in headers.BROKER_HEADERS:
            raise InvalidMessage(
                f"header {name!r} steers the broker and would change where the message goes; "
                "choose another name"
            )


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


def _checked_saga(saga_id: str) -> str:
    if not isinstance(saga_id, str) or not 0 < len(saga_id) <= 200 or not saga_id.isprintable():
        raise InvalidMessage(f"a saga id is printable text of 1 to 200 characters, got {saga_id!r}")
    return saga_id
