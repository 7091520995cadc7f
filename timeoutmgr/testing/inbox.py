"""A handler that keeps its messages, so that a test can wait for them and read them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock, Persistence, Transport
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.handlers import ANY, Handler, HandlerContext
from timeoutmgr.features.feature import Feature
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, from_wire
from timeoutmgr.message.message import Message
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.testing.signals import PATIENCE, Signal


def configure(
    name: str,
    *,
    transport: str | Transport = "memory://",
    persistence: str | Persistence | None = "memory",
    features: Iterable[Feature] = (),
    telemetry: Telemetry | None = None,
    handler: Handler | None = None,
) -> EndpointConfiguration:
    """Return a configuration that may lose messages: by default, all parts are in memory.

    *handler* gets all messages without a handler of their own. Failed messages go to
    ``<name>.error``, so that tests do not find each other's messages.
    """
    config = EndpointConfiguration(name)
    config.error_queue = f"{name}.error"
    config.use_transport(transport, accept_loss=True)
    if persistence is not None:
        config.use_persistence(persistence, accept_loss=True)
    for feature in features:
        config.enable_feature(feature)
    if telemetry is not None:
        config.telemetry = telemetry
    if handler is not None:
        config.add_handler(ANY, handler)
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A handled message, and the instant at which it was handled."""

    body: Any
    message: Message
    message_type: str
    at: Micros

    @property
    def id(self) -> str:
        """The message id."""
        return self.message.id

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self.message.headers

    @property
    def lateness(self) -> float:
        """Seconds from the due time that was stamped on the message to its handling."""
        return (self.at - from_wire(self.message.headers[headers.DELIVER_AT])) / 1_000_000


class Inbox:
    """A handler that keeps messages: ``config.add_handler("OrderPlaced", inbox)``."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._signal = Signal()
        self._arrived: list[Arrival] = []

    def __call__(self, body: Any, context: HandlerContext) -> None:
        """Keep one message."""
        arrival = Arrival(
            body=body,
            message=context.message,
            message_type=context.message_type,
            at=self._clock.now(),
        )
        with self._signal.change():
            self._arrived.append(arrival)

    @property
    def arrived(self) -> list[Arrival]:
        """The arrivals so far, in order."""
        return list(self._arrived)

    def wait_for(self, count: int, timeout: float = PATIENCE) -> list[Arrival]:
        """Wait for *count* messages; return all arrivals, or raise AssertionError."""
        return self._wait(lambda _arrival: True, count, f"{count} messages", timeout)

    def wait_for_id(self, message_id: str, count: int = 1, timeout: float = PATIENCE) -> Arrival:
        """Wait until *message_id* has arrived *count* times; return the last arrival."""
        what = f"message {message_id}"
        return self._wait(lambda arrival: arrival.id == message_id, count, what, timeout)[-1]

    def of(self, *message_ids: str) -> list[Arrival]:
        """Return the arrivals so far of the messages with these ids."""
        return [arrival for arrival in self.arrived if arrival.id in message_ids]

    def _wait(
        self, wanted: Callable[[Arrival], bool], count: int, what: str, timeout: float
    ) -> list[Arrival]:
        def matching() -> list[Arrival]:
            return [arrival for arrival in self.arrived if wanted(arrival)]

        self._signal.wait_until(
            lambda: len(matching()) >= count,
            lambda: f"{what}; {len(matching())} of {len(self._arrived)} arrived match",
            timeout,
        )
        return matching()
