"""The consumer, as ``timeoutmgr --app chaos.consumer:consumer run`` finds it."""

from collections.abc import Mapping
from typing import Any

from chaos.consumer_ledger import ConsumerLedger
from chaos.environment import Environment
from chaos.received_message import delivery_of
from timeoutmgr import EndpointConfiguration, HandlerContext


def consumer() -> EndpointConfiguration:
    """Return the endpoint of the consumer: it records each delivery."""
    environment = Environment.load()
    config = environment.receiving()
    deliveries = ConsumerLedger(environment)
    beside = environment.one_database

    @config.handler()
    def write_down(body: Mapping[str, Any], context: HandlerContext) -> None:
        # In a database that queue and ledger share, the row and the acknowledgement are one
        # transaction: a rolled back message leaves no row.
        session = context.session if beside else None
        deliveries.write(delivery_of(body["name"], context), session)

    return config
