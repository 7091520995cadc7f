"""The worker, as ``timeoutmgr --app chaos.worker:worker run`` finds it.

The worker is the endpoint of its settings file, with trace headers. In a mixed fleet it also
receives messages of the other endpoint, and sends them on to the consumer, delayed again.
"""

import os
from collections.abc import Mapping
from typing import Any

from chaos.consumer_ledger import ConsumerLedger
from chaos.environment import PROCESS, Environment
from chaos.received_message import delivery_of
from chaos.trace_headers import signed
from timeoutmgr import EndpointConfiguration, HandlerContext
from timeoutmgr.message.instants import from_micros


def worker() -> EndpointConfiguration:
    """Return the endpoint of a worker."""
    environment = Environment.load()
    config = sender(environment)
    if environment.mixed:
        config.add_handler("*", _SendOn(environment, os.environ[PROCESS]))
    return config


def sender(environment: Environment) -> EndpointConfiguration:
    """Return the endpoint of this process, with trace headers on its messages."""
    name = os.environ[PROCESS]
    config = environment.worker(name.partition("#")[0])
    settings = config.settings()
    transport = signed(settings.transport, (environment.consumer, *environment.endpoints), name)
    config.use_transport(transport, delayed_delivery=settings.delayed_delivery)
    return config


class _SendOn:
    """Records the delivery, and sends on the follower that the producer has announced."""

    def __init__(self, environment: Environment, incarnation: str) -> None:
        self._environment = environment
        self._incarnation = incarnation
        self._deliveries = ConsumerLedger(environment)

    def __call__(self, body: Mapping[str, Any], context: HandlerContext) -> None:
        # Record first: a message that is sent on twice then has two records.
        self._deliveries.write(delivery_of(body["name"], context, self._incarnation), None)
        then = body["then"]
        context.send(
            self._environment.consumer,
            self._environment.handling.message_type(then["name"]),
            {"name": then["name"]},
            deliver_at=from_micros(then["due"]),
            message_id=then["name"],
        )
