"""The worker, as ``timeoutmgr --app timeoutmgr.testing.chaos.worker:worker run`` finds it.

It is what its settings file says, but for one header: which process sent a message on. Without it
nobody could say whether the process that sent a message first was the one that crashed.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from timeoutmgr import EndpointConfiguration
from timeoutmgr.contracts import SendResult, Transport, TransportSession
from timeoutmgr.message import Outgoing
from timeoutmgr.testing.chaos.scene import PROCESS, Scene

SENT_BY: Final = "Chaos.SentBy"


def worker() -> EndpointConfiguration:
    """Return the endpoint of a worker."""
    name = os.environ[PROCESS]
    scene = Scene.load()
    config = scene.worker(name.partition("#")[0])
    settings = config.settings()
    marked: Any = _Marked(settings.transport, scene.consumer, name)
    config.use_transport(marked, delayed_delivery=settings.delayed_delivery)
    return config


class _Marked:
    """A transport that writes *sender* on what goes to *queue*; else it is the real one."""

    def __init__(self, inner: Transport, queue: str, sender: str) -> None:
        self._inner = inner
        self._queue = queue
        self._sender = sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def session(self) -> Any:
        return _MarkedSession(self._inner.session(), self._queue, self._sender)


class _MarkedSession:
    def __init__(self, inner: TransportSession, queue: str, sender: str) -> None:
        self._inner = inner
        self._queue = queue
        self._sender = sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, outgoing: Sequence[Outgoing], **how: Any) -> list[SendResult]:
        return self._inner.send([self._mark(one) for one in outgoing], **how)

    def _mark(self, one: Outgoing) -> Outgoing:
        if one.destination != self._queue:
            return one
        marked = {**one.message.headers, SENT_BY: self._sender}
        return replace(one, message=replace(one.message, headers=marked))
