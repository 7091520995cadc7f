"""The consumer, as ``timeoutmgr run --app app:board`` finds it."""

import os
import time
from collections.abc import Mapping
from typing import Any

from scene import Scene

from chaos.consumer_ledger import ConsumerLedger, Delivery
from timeoutmgr import EndpointConfiguration, HandlerContext
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire


def board() -> EndpointConfiguration:
    """Return the endpoint that receives the notices: it writes each into the ledger.

    FLIGHTS_SCENE names the file with the names, URLs and files of the run.
    """
    scene = Scene.load(os.environ["FLIGHTS_SCENE"])
    config = scene.endpoint(scene.board)
    ledger = ConsumerLedger(scene)
    beside = scene.one_database

    @config.handler()
    def write_down(notice: Mapping[str, Any], context: HandlerContext) -> None:
        received_at = time.time_ns() // 1_000
        delivery = Delivery(
            message_id=context.message_id,
            name=notice["notice"],
            dispatched_at=from_wire(context.headers[headers.DISPATCHED_AT]),
            received_at=received_at,
            redelivered=context.delivery_count,
        )
        # In a database that queue and ledger share, the row and the message's end are one
        # transaction: a message that was undone leaves no row.
        ledger.write(delivery, context.session if beside else None)

    return config
