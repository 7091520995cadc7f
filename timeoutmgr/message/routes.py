"""Routes of outgoing messages: directly, or to a timeout manager; and orders to clear.

Pure functions.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from timeoutmgr.errors import ConfigurationError, InvalidMessage, Unsupported
from timeoutmgr.message import headers
from timeoutmgr.message.ids import uuid_text
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message, Outgoing, Received, with_headers
from timeoutmgr.message.redaction import on_one_line

# --- channels: the origins of orders to cancel, as the history names them ---------------------
# A message in a queue may be forged. The name of its channel includes the queue and the message, so
# that an operator can find the sender, and can distinguish the order from an operator's own.

API: Final = "api"
CLI: Final = "cli"
EARLY_CANCEL: Final = "early cancel"
"""Channel of a message that was cancelled before it arrived, as only API and command line can."""

_LONGEST: Final = 400
"""Maximum characters of a channel."""


def of_message(received: Received) -> str:
    """Return the channel of the order in *received*: its queue, its id and its sender.

    Text of the message may be forged, and is cut.
    """
    channel = f"queue {received.queue!r:.80}, message {received.message.id!r:.80}"
    given = received.message.headers
    named = (
        ("endpoint", given.get(headers.ORIGINATING_ENDPOINT)),
        ("host", given.get(headers.ORIGINATING_MACHINE)),
    )
    return bounded(
        channel + "".join(f", says {what} {value!r:.60}" for what, value in named if value)
    )


def bounded(channel: str) -> str:
    """Return *channel* as text for a history: a short line of printable text."""
    return on_one_line(channel[:_LONGEST])[:_LONGEST]


NAMESPACE: Final = uuid.UUID("6b0a3d3c-55d8-5d4f-9a0e-2f6f3f1b9f1c")
"""Of the ids of timeouts: each is a UUID of version 5."""
_NAMESPACE: Final = NAMESPACE.bytes
_VERSION: Final = 5
_TIMEOUT_ID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)
DelayRoute: TypeAlias = Callable[[Outgoing, Micros], Outgoing]
"""Routes a message that is due at an instant to the place that delays it."""

TIMEOUTS: Final = ".Timeouts"
DISPATCHER: Final = ".TimeoutsDispatcher"
DELAYED: Final = ".timeouts"
"""The queue of a delayed message store; names compare by bytes, so it differs from TIMEOUTS."""


def timeout_id(endpoint: str, message_id: str) -> str:
    """Return the id of the timeout that holds *message_id* at *endpoint*'s manager.

    The same message gives the same id, so that a repeated store has no effect.
    """
    name = f"{len(endpoint)}:{endpoint}{message_id}"
    digest = hashlib.sha1(_NAMESPACE + name.encode(), usedforsecurity=False).digest()
    return uuid_text(digest[:16], _VERSION)


def is_timeout_id(text: str) -> bool:
    """Return whether *text* has the form of a timeout's id, a UUID of version 5."""
    return _TIMEOUT_ID.fullmatch(text) is not None


def ids_of(endpoint: str, given: str) -> tuple[str, str]:
    """Return the ids that the timeout named *given* may have, the likelier id first."""
    derived = timeout_id(endpoint, given)
    return (given, derived) if is_timeout_id(given) else (derived, given)


def id_of_timeout(endpoint: str, message: Message) -> str:
    """Return the id under which *endpoint*'s manager stores *message*.

    A delayed retry is the same message, but a new timeout: without its time stamp the store would
    take it for a timeout that was already dispatched, and drop it.
    """
    retry = message.headers.get(headers.RETRIES_TIMESTAMP)
    return timeout_id(endpoint, message.id if retry is None else f"{message.id}|{retry}")


def is_delayed_retry(given: Mapping[str, str]) -> bool:
    """Return whether a message with the headers *given* is a delayed retry.

    A retry is not a timeout of a saga, even if the first message was: it has already reached its
    queue. So it is stored without its saga, and a clear of the saga does not reach it. A handler
    that is tried again finds the saga in the message's own header.
    """
    return headers.RETRIES_TIMESTAMP in given


def manager_endpoint(address: str) -> str:
    """Return the endpoint whose timeout manager, or delayed message store, is at *address*."""
    return address.removesuffix(TIMEOUTS).removesuffix(DELAYED)


def to_timeout_manager(outgoing: Outgoing, due: Micros, address: str) -> Outgoing:
    """Return *outgoing* addressed to the manager at *address*, its destination in a header.

    DeliverAt stays on the delivered message; the two routing headers are removed.
    """
    at = to_wire(due)
    routed = {
        **outgoing.message.headers,
        headers.EXPIRE: at,
        headers.DESTINATION: outgoing.destination,
        headers.DELIVER_AT: at,
    }
    return Outgoing(address, with_headers(outgoing.message, routed))


def to_delayed_store(outgoing: Outgoing, due: Micros, address: str) -> Outgoing:
    """Return *outgoing* addressed to the delayed message store whose queue is *address*."""
    routed = {
        **outgoing.message.headers,
        headers.EXPIRE: to_wire(due),
        headers.DELAYED_DESTINATION: outgoing.destination,
        headers.DELIVER_AT: to_wire(due),
    }
    return Outgoing(address, with_headers(outgoing.message, routed))


def final_destination(outgoing: Outgoing) -> str:
    """Return the final queue of *outgoing*, also if the message is delayed first."""
    given = outgoing.message.headers
    if headers.EXPIRE not in given:
        return outgoing.destination
    named = given.get(headers.DESTINATION) or given.get(headers.DELAYED_DESTINATION)
    return named or outgoing.destination


def clear_timeouts(
    saga_id: str, address: str, message_id: str, now: Micros, kept: Sequence[str] = ()
) -> Outgoing:
    """Return the control message that asks the manager at *address* to clear a saga.

    *now*, by the sender's clock, separates timeouts to cancel from timeouts that the saga sends
    later. The body has the ids of timeouts that are *kept* whenever they were sent.
    """
    control = {
        headers.CLEAR_TIMEOUTS: "True",
        headers.SAGA_ID: saga_id,
        headers.TIME_SENT: to_wire(now),
        headers.CONTROL_MESSAGE: "True",
        headers.MESSAGE_INTENT: "Send",
        headers.MESSAGE_ID: message_id,
    }
    if kept:
        control[headers.KEEPS_TIMEOUTS] = "True"
    body = json.dumps(list(kept)).encode() if kept else b""
    return Outgoing(address, Message(id=message_id, headers=control, body=body))


def wake_manager(address: str, due: Micros, message_id: str) -> Outgoing:
    """Return the control message that tells the manager at *address* of a row stored past it."""
    control = {
        headers.WAKE: to_wire(due),
        headers.CONTROL_MESSAGE: "True",
        headers.MESSAGE_INTENT: "Send",
        headers.MESSAGE_ID: message_id,
    }
    return Outgoing(address, Message(id=message_id, headers=control))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """The receiver of an endpoint's orders to clear: its timeout manager, if there is one."""

    endpoint: str
    address: str | None = None
    is_native: bool = False
    """Whether a broker delays the endpoint's messages."""
    is_listed: bool = True
    """Whether the manager can find the timeouts of a saga; a delayed message store cannot."""

    def order(self, saga_id: str, sent: Micros, message_id: str) -> "ClearOrder":
        """Return an order to clear *saga_id*; raise if no manager accepts it."""
        if self.address is None and self.is_native:
            raise Unsupported(
                "clearing a saga's timeouts with native delayed delivery",
                "the broker holds the messages, and cannot find the messages of a saga",
                "Have the saga ignore late messages; or enable TimeoutManager too and send "
                "with cancellable=True and fallback_to_store",
            )
        if self.address is None or not self.is_listed:
            raise ConfigurationError(
                f"endpoint {self.endpoint!r} has no timeout manager, so there is nothing to clear"
            )
        if not saga_id:
            raise InvalidMessage(
                "Invalid saga id specified, clear timeouts is only supported for saga instances"
            )
        return ClearOrder(self.address, saga_id, sent, message_id)


@dataclass(slots=True)
class ClearOrder:
    """An order to clear the timeouts of *saga_id* that were sent until *sent*.

    *kept* are ids of timeouts that the handler which gives the order sends after it. A repeat of
    the handler gives a later order, and sends these timeouts again under the same ids: the store
    would take them for redeliveries of timeouts that the later order cleared, and drop them.
    """

    address: str
    saga_id: str
    sent: Micros
    message_id: str
    kept: list[str] = field(default_factory=list)

    def outgoing(self) -> Outgoing:
        """Return the control message."""
        return clear_timeouts(self.saga_id, self.address, self.message_id, self.sent, self.kept)
