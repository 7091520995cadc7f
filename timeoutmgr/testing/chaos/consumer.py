"""The consumer, as ``timeoutmgr --app timeoutmgr.testing.chaos.consumer:consumer run`` finds it."""

import time
from collections.abc import Mapping
from typing import Any

from timeoutmgr import EndpointConfiguration, HandlerContext, headers
from timeoutmgr.instants import from_wire
from timeoutmgr.testing.chaos.deliveries import Deliveries, Delivery
from timeoutmgr.testing.chaos.scene import Scene
from timeoutmgr.testing.chaos.worker import SENT_BY


def consumer() -> EndpointConfiguration:
    """Return the endpoint that the messages are for: it writes down each delivery."""
    scene = Scene.load()
    config = scene.receiving()
    deliveries = Deliveries(scene)
    beside = scene.one_database

    @config.handler()
    def write_down(body: Mapping[str, Any], context: HandlerContext) -> None:
        received_at = time.time_ns() // 1_000
        dispatched = context.headers.get(headers.DISPATCHED_AT)
        delivery = Delivery(
            message_id=context.message_id,
            name=body["name"],
            dispatched_at=received_at if dispatched is None else from_wire(dispatched),
            sent_by=context.headers.get(SENT_BY, ""),
            received_at=received_at,
            redelivered=context.delivery_count,
        )
        # In a database that queue and ledger share, the row and the message's end are one
        # transaction: a message that was undone leaves no row.
        deliveries.write(delivery, context.session if beside else None)

    return config
