"""Where an outgoing message goes: straight on, or to a timeout manager. Pure functions."""

import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Final

from timeoutmgr import headers
from timeoutmgr.ids import uuid_text
from timeoutmgr.instants import Micros, to_wire
from timeoutmgr.message import Message, Outgoing, with_headers

NAMESPACE: Final = uuid.UUID("6b0a3d3c-55d8-5d4f-9a0e-2f6f3f1b9f1c")
"""Of the ids of timeouts: each is a UUID of version 5."""
_NAMESPACE: Final = NAMESPACE.bytes
_VERSION: Final = 5
TIMEOUTS: Final = ".Timeouts"
DISPATCHER: Final = ".TimeoutsDispatcher"
DELAYED: Final = ".timeouts"
"""The queue of a delayed message store; names compare by bytes, so it is not the first one."""


def timeout_id(endpoint: str, message_id: str) -> str:
    """Return the id of the timeout that holds *message_id* at *endpoint*'s manager.

    The same message gives the same id, so storing twice is storing once.
    """
    name = f"{len(endpoint)}:{endpoint}{message_id}"
    digest = hashlib.sha1(_NAMESPACE + name.encode(), usedforsecurity=False).digest()
    return uuid_text(int.from_bytes(digest[:16], "big"), _VERSION)


def id_of_timeout(endpoint: str, message: Message) -> str:
    """Return the id under which *endpoint*'s manager stores *message*.

    A delayed retry is the same message once more, not the same timeout once more: without its
    time stamp the store would take it for one that was dispatched already, and drop it.
    """
    retry = message.headers.get(headers.RETRIES_TIMESTAMP)
    return timeout_id(endpoint, message.id if retry is None else f"{message.id}|{retry}")


def manager_endpoint(address: str) -> str:
    """Return the endpoint whose timeout manager, or delayed message store, is at *address*."""
    return address.removesuffix(TIMEOUTS).removesuffix(DELAYED)


def to_timeout_manager(outgoing: Outgoing, due: Micros, address: str) -> Outgoing:
    """Return *outgoing* addressed to the manager at *address*, its destination in a header.

    DeliverAt stays on the delivered message; the two routing headers are taken off again.
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
    """Return the queue that *outgoing* is finally for, also where it is to be delayed first."""
    given = outgoing.message.headers
    if headers.EXPIRE not in given:
        return outgoing.destination
    named = given.get(headers.DESTINATION) or given.get(headers.DELAYED_DESTINATION)
    return named or outgoing.destination


def clear_timeouts(
    saga_id: str, address: str, message_id: str, now: Micros, kept: Sequence[str] = ()
) -> Outgoing:
    """Return the control message that asks the manager at *address* to forget a saga.

    *now*, the sender's, parts what is to be forgotten from what the saga sends later. The body
    names the ids of timeouts that are *kept* whenever they were sent.
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
