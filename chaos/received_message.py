"""A received message as a row of the consumer's ledger."""

import time

from chaos.consumer_ledger import Delivery
from chaos.foreign_messages import is_foreign
from chaos.trace_headers import SENT_AT, SENT_BY
from timeoutmgr import HandlerContext
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire


def delivery_of(name: str, context: HandlerContext, received_by: str = "") -> Delivery:
    """Return the delivery of the message *name* that is being handled."""
    received_at = time.time_ns() // 1_000
    dispatched = context.headers.get(headers.DISPATCHED_AT)
    sent_at = context.headers.get(SENT_AT)
    # No store dispatched it, and its sender traced it: it came through the delay levels.
    through_levels = dispatched is None and sent_at is not None
    if dispatched is not None:
        dispatched_at = from_wire(dispatched)
    else:
        dispatched_at = received_at if sent_at is None else int(sent_at)
    return Delivery(
        message_id=context.message_id,
        name=name,
        dispatched_at=dispatched_at,
        sent_by=context.headers.get(SENT_BY, ""),
        received_at=received_at,
        redelivered=context.delivery_count,
        through_levels=through_levels,
        received_by=received_by,
        foreign=is_foreign(context.headers),
    )
