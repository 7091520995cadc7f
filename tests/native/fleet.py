"""Endpoints on one broker: with native delayed delivery, a timeout manager, or both."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from typing import Any, Final

from timeoutmgr import Endpoint, EndpointConfiguration, RecoverabilitySettings
from timeoutmgr.features.feature import Feature
from timeoutmgr.message.message import Message
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.native.levels import LEVELS
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox, RecordingTelemetry
from timeoutmgr.transport.amqp.session import RabbitMQSession
from timeoutmgr.transport.kombu_transport import KombuTransport

SAY: Final = RecoverabilitySettings(immediate=1, delayed=0)


class Fleet:
    """Endpoints whose names begin with *stem*, stopped in the end; none finds another test's."""

    def __init__(self, url: str, store: str, stem: str, stack: ExitStack) -> None:
        self.url: Final = url
        self.store: Final = store
        self.stem: Final = stem
        self._stack: Final = stack
        self._queues: list[str] = []
        self.transport: Final = stack.enter_context(closing(KombuTransport(url)))
        session = stack.enter_context(closing(self.transport.session()))
        assert isinstance(session, RabbitMQSession)
        self.session: Final = session
        stack.callback(lambda: session.delete_queues(self._queues))

    def configure(self, name: str, *features: Feature) -> EndpointConfiguration:
        """Return the configuration of the endpoint *name*."""
        config = EndpointConfiguration(name)
        config.error_queue = f"{self.stem}.error"
        config.recoverability = SAY
        config.concurrency = 1
        config.use_transport(self.url)
        if any(isinstance(feature, TimeoutManager) for feature in features):
            config.use_persistence(self.store)
        for feature in features:
            config.enable_feature(feature)
        self.note(config)
        return config

    def native(
        self, name: str, *others: Feature, check_destinations: bool = True, **settings: Any
    ) -> EndpointConfiguration:
        """Return the configuration of an endpoint with its delays in the broker."""
        config = self.configure(name, NativeDelayedDelivery(**settings), *others)
        config.check_destinations = check_destinations
        return config

    def start(self, config: EndpointConfiguration) -> Endpoint:
        """Return the endpoint, which runs until the test ends."""
        return self._stack.enter_context(Endpoint(config))

    def with_inbox(self, config: EndpointConfiguration) -> tuple[Endpoint, Inbox]:
        """Return the running endpoint, and where all that it receives is kept."""
        inbox = Inbox()
        config.telemetry = RecordingTelemetry()
        config.add_handler("*", inbox)
        return self.start(config), inbox

    def note(self, config: EndpointConfiguration) -> None:
        """Have the queues of *config* deleted in the end."""
        name = config.name
        own = [name, f"{name}.Timeouts", f"{name}.TimeoutsDispatcher", f"{name}.Acknowledgements"]
        self._queues += [*own, config.error_queue]

    def queue(self, name: str) -> str:
        """Create a queue that no endpoint consumes; return its name."""
        self.session.create_queues([name])
        self._queues.append(name)
        return name

    def errors(self) -> list[Message]:
        """Receive all messages in the error queue."""
        with closing(self.session.receiver(f"{self.stem}.error", prefetch=1000)) as receiver:
            found = receiver.receive(1000, 0.5)
            receiver.ack(found)
        return [one.message for one in found]


def held_by(seconds: int) -> list[int]:
    """Return the levels whose queues a message of this delay waits in, the longest first."""
    return [level for level in range(LEVELS - 1, -1, -1) if seconds >> level & 1]


def names(stem: str, kinds: Iterable[str]) -> list[str]:
    """Return names of endpoints that only *stem* parts from another test's."""
    return [kind.replace("sales", f"{stem}sales") for kind in kinds]
