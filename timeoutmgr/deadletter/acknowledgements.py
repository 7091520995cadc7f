"""Acknowledgements: control messages about the end of a delivery, and the step for them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.contracts.dead_letters import is_well_formed
from timeoutmgr.crashpoints import reach
from timeoutmgr.deadletter import delivery_headers as names
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.stored_copy import DeliveryEnd, Placement
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message import headers, routes
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.resilience.channel_log import ChannelLog
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.work import Work

ACKNOWLEDGEMENTS: Final = ".Acknowledgements"
"""Suffix of an endpoint's name: the queue for final acknowledgements of its messages."""
_REASON: Final = "TimeoutManager.Reason"
_NAMESPACE: Final = uuid.UUID("c1f6a3e8-2f0b-5c8e-9a47-6f1d3b5a7e90")


def acknowledgement(end: DeliveryEnd, to: str) -> Outgoing:
    """Return the control message for *to* on the *end* of a delivery.

    Its id is a hash of its content, so a receiver that compares ids recognises a repeat.
    """
    about, code = end.message.id, str(int(end.message_class))
    message_id = uuid.uuid5(_NAMESPACE, f"{len(about)}:{about}{code}:{to}:{end.queue}")
    given = {
        headers.MESSAGE_ID: str(message_id),
        headers.CORRELATION_ID: about,
        headers.CONTROL_MESSAGE: "True",
        headers.MESSAGE_INTENT: "Send",
        headers.TIME_SENT: to_wire(end.at),
        names.CLASS: code,
        names.TARGET_QUEUE: end.queue,
    }
    if end.reason:
        given[_REASON] = end.reason[:500].encode("utf-8", "backslashreplace").decode()
    return Outgoing(to, Message(id=str(message_id), headers=given))


def final_acknowledgement(end: DeliveryEnd, limits: Limits) -> Outgoing:
    """Return the message by which the source, which keeps a copy, learns the *end*.

    Raises InvalidMessage if *limits* forbid that source: the message itself names its source.
    """
    source = end.delivery.source_queue or ""
    check_destination(source, limits)
    return acknowledgement(end, f"{source}{ACKNOWLEDGEMENTS}")


def requested_acks(end: DeliveryEnd) -> list[Outgoing]:
    """Return the acknowledgements that the message requests for its admin queue at this *end*."""
    admin_queue, level = end.delivery.admin_queue, end.delivery.acknowledge
    if admin_queue is None or not level.asks_for(end.message_class):
        return []
    return [acknowledgement(end, admin_queue)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleStoredCopies:
    """The step on ``<endpoint>.Acknowledgements``: each message settles a copy of the source."""

    manager: QueueManager
    telemetry: Telemetry
    joins: bool
    """Whether the queue's transaction can span the store."""
    log: ChannelLog = field(default_factory=lambda: ChannelLog("acknowledgements without a copy"))

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Settle the copies that *batch* names; raise MessageRejected for any other message."""
        for received in batch:
            key, message_class, reason = _read(received.message)
            transaction = work.transaction if self.joins else None
            settled = self.manager.acknowledge(
                key,
                message_class,
                reason=reason,
                channel=routes.of_message(received),
                transaction=transaction,
            )
            reach("deadletters.acknowledged")
            self.telemetry.count("final_acknowledgements" if settled else "acknowledged_unknown")
            if settled is not Placement.PLACED:  # no row is left for the channel
                self.log.note(received, self.manager.store.clock.monotonic())


def _read(message: Message) -> tuple[tuple[str, str], int, str]:
    given = message.headers
    code = given.get(names.CLASS, "")
    about, queue = given.get(headers.CORRELATION_ID), given.get(names.TARGET_QUEUE)
    if not (code.isascii() and code.isdigit() and len(code) < 9 and is_well_formed(int(code))):
        raise MessageRejected(
            f"message {message.id!r:.80} is not an acknowledgement: header {names.CLASS!r} is "
            f"{code[:20]!r}, expected the number of a message class"
        )
    if not about or not queue:
        raise MessageRejected(
            f"acknowledgement {message.id!r:.80} lacks its message or queue; expected headers "
            f"{headers.CORRELATION_ID!r} and {names.TARGET_QUEUE!r}"
        )
    return (about, queue), int(code), given.get(_REASON, "")
