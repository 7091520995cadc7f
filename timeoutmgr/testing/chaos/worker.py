"""The worker, as ``timeoutmgr --app timeoutmgr.testing.chaos.worker:worker run`` finds it.

It is what its settings file says, but that it signs what it sends. In a mixed fleet it also
receives what endpoints of the other kind send it, and sends that on to the consumer, delayed again.
"""

import os
from collections.abc import Mapping
from typing import Any

from timeoutmgr import EndpointConfiguration, HandlerContext
from timeoutmgr.instants import from_micros
from timeoutmgr.testing.chaos.deliveries import Deliveries
from timeoutmgr.testing.chaos.receiving import delivery_of
from timeoutmgr.testing.chaos.scene import PROCESS, Scene
from timeoutmgr.testing.chaos.signatures import signed


def worker() -> EndpointConfiguration:
    """Return the endpoint of a worker."""
    scene = Scene.load()
    config = sender(scene)
    if scene.mixed:
        config.add_handler("*", _SendOn(scene, os.environ[PROCESS]))
    return config


def sender(scene: Scene) -> EndpointConfiguration:
    """Return the endpoint of this process, which signs what it sends to other endpoints."""
    name = os.environ[PROCESS]
    config = scene.worker(name.partition("#")[0])
    settings = config.settings()
    transport = signed(settings.transport, (scene.consumer, *scene.endpoints), name)
    config.use_transport(transport, delayed_delivery=settings.delayed_delivery)
    return config


class _SendOn:
    """Writes down what came, and sends on what its producer has promised to follow."""

    def __init__(self, scene: Scene, life: str) -> None:
        self._scene = scene
        self._life = life
        self._deliveries = Deliveries(scene)

    def __call__(self, body: Mapping[str, Any], context: HandlerContext) -> None:
        # First: what is sent on twice was then written down twice.
        self._deliveries.write(delivery_of(body["name"], context, self._life), None)
        then = body["then"]
        context.send(
            self._scene.consumer,
            "Ping",
            {"name": then["name"]},
            deliver_at=from_micros(then["due"]),
            message_id=then["name"],
        )
