"""Where an outgoing message goes: straight on, or to a timeout manager. Pure functions."""

import uuid
from dataclasses import replace
from typing import Final

from timeoutmgr import headers
from timeoutmgr.instants import Micros, to_wire
from timeoutmgr.message import Message, Outgoing

_NAMESPACE: Final = uuid.UUID("6b0a3d3c-55d8-5d4f-9a0e-2f6f3f1b9f1c")
TIMEOUTS: Final = ".Timeouts"
DISPATCHER: Final = ".TimeoutsDispatcher"


def timeout_id(endpoint: str, message_id: str) -> str:
    """Return the id of the timeout that holds *message_id* at *endpoint*'s manager.

    The same message gives the same id, so storing twice is storing once.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{len(endpoint)}:{endpoint}{message_id}"))


def manager_endpoint(address: str) -> str:
    """Return the endpoint whose timeout manager listens at *address*."""
    return address.removesuffix(TIMEOUTS)


def to_timeout_manager(outgoing: Outgoing, due: Micros, address: str) -> Outgoing:
    """Return *outgoing* addressed to the manager at *address*, its destination in a header.

    DeliverAt stays on the delivered message; the two routing headers are taken off again.
    """
    routed = {
        **outgoing.message.headers,
        headers.EXPIRE: to_wire(due),
        headers.DESTINATION: outgoing.destination,
        headers.DELIVER_AT: to_wire(due),
    }
    return Outgoing(address, replace(outgoing.message, headers=routed))


def clear_timeouts(saga_id: str, address: str, message_id: str, now: Micros) -> Outgoing:
    """Return the control message that asks the manager at *address* to forget a saga.

    *now*, the sender's, parts what is to be forgotten from what the saga sends later.
    """
    control = {
        headers.CLEAR_TIMEOUTS: "True",
        headers.SAGA_ID: saga_id,
        headers.TIME_SENT: to_wire(now),
        headers.CONTROL_MESSAGE: "True",
        headers.MESSAGE_INTENT: "Send",
        headers.MESSAGE_ID: message_id,
    }
    return Outgoing(address, Message(id=message_id, headers=control))


def wake_manager(address: str, due: Micros, message_id: str) -> Outgoing:
    """Return the control message that tells the manager at *address* of a row stored past it."""
    control = {
        headers.WAKE: to_wire(due),
        headers.CONTROL_MESSAGE: "True",
        headers.MESSAGE_INTENT: "Send",
        headers.MESSAGE_ID: message_id,
    }
    return Outgoing(address, Message(id=message_id, headers=control))
