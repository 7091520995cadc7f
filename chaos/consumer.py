"""The consumer, as ``timeoutmgr --app timeoutmgr.testing.chaos.consumer:consumer run`` finds it."""

from collections.abc import Mapping
from typing import Any

from timeoutmgr import EndpointConfiguration, HandlerContext
from timeoutmgr.testing.chaos.deliveries import Deliveries
from timeoutmgr.testing.chaos.receiving import delivery_of
from timeoutmgr.testing.chaos.scene import Scene


def consumer() -> EndpointConfiguration:
    """Return the endpoint that the messages are for: it writes down each delivery."""
    scene = Scene.load()
    config = scene.receiving()
    deliveries = Deliveries(scene)
    beside = scene.one_database

    @config.handler()
    def write_down(body: Mapping[str, Any], context: HandlerContext) -> None:
        # In a database that queue and ledger share, the row and the message's end are one
        # transaction: a message that was undone leaves no row.
        session = context.session if beside else None
        deliveries.write(delivery_of(body["name"], context), session)

    return config
