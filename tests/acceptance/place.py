"""A pair of transport and store with its addresses, and the endpoints that a test runs on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from tests.acceptance.error_queue import ErrorQueue
from tests.acceptance.matrix import Pair
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration, TimeoutState
from timeoutmgr.contracts import Persistence, SendResult, Transport, TransportSession
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url
from timeoutmgr.endpoint.handlers import Handler
from timeoutmgr.features.feature import Feature
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import DISPATCHER, TIMEOUTS
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox, RecordingTelemetry, configure


class Place:
    """A pair whose endpoint is called *name*; it closes every part that it opens."""

    def __init__(self, pair: Pair, urls: Mapping[str, str], name: str) -> None:
        self.pair: Final = pair
        self.urls: Final = urls
        self.name: Final = name
        self.closing: Final = contextlib.ExitStack()
        self._memory: Persistence | None = None
        self._session: TransportSession | None = None
        self._queues: set[str] = set()

    @property
    def transport_url(self) -> str:
        """The transport's URL."""
        return self.urls[self.pair.transport]

    @property
    def store_url(self) -> str:
        """The store's URL, or its name."""
        return self.urls[self.pair.store] if self.pair.store != "memory" else "memory"

    def transport(self) -> Transport:
        """Return a transport of its own, as another process would have it."""
        return transport_from_url(self.transport_url, accept_loss=True)

    def persistence(self) -> Persistence:
        """Return the store; the whole place shares a store in memory."""
        if self.pair.store != "memory":
            return persistence_from_url(self.store_url)
        if self._memory is None:
            self._memory = persistence_from_url("memory", accept_loss=True)
        return self._memory

    def configuration(
        self,
        name: str | None = None,
        *,
        manager: Feature | None = None,
        features: Iterable[Feature] = (),
        handler: Handler | None = None,
        telemetry: RecordingTelemetry | None = None,
        persistence: Persistence | None = None,
    ) -> EndpointConfiguration:
        """Return the configuration of an endpoint that has a timeout manager."""
        config = configure(
            name or self.name,
            transport=self.transport(),
            persistence=persistence or self.persistence(),
            features=[manager or TimeoutManager(), *features],
            telemetry=telemetry,
            handler=handler,
        )
        config.transaction_mode = self.pair.mode
        self._note(config)
        return config

    def plain(self, name: str, handler: Handler | None = None) -> EndpointConfiguration:
        """Return the configuration of an endpoint without a timeout manager."""
        config = configure(name, transport=self.transport(), persistence=None, handler=handler)
        self._note(config)
        return config

    def run(self, config: EndpointConfiguration) -> Endpoint:
        """Return an endpoint that runs until the test ends."""
        return self.closing.enter_context(Endpoint(config))

    def made(self, config: EndpointConfiguration) -> Endpoint:
        """Return an endpoint that is not started; it can send."""
        return self.closing.enter_context(contextlib.closing(Endpoint(config)))

    def queue(self, name: str) -> str:
        """Create a queue that no endpoint consumes; return its name."""
        self.session.create_queues([name])
        self._queues.add(name)
        return name

    def delete_queues(self) -> None:
        """Delete every queue of this place: thousands of queues make a broker slow."""
        if self.pair.transport in ("rabbitmq", "redis", "memory") and self._queues:
            with (
                contextlib.closing(self.transport()) as transport,
                contextlib.closing(transport.session()) as session,
            ):
                session.delete_queues(sorted(self._queues))

    def _note(self, config: EndpointConfiguration) -> None:
        satellites = {config.name + TIMEOUTS, config.name + DISPATCHER}
        self._queues |= {config.name, config.error_queue, *satellites}

    @property
    def session(self) -> TransportSession:
        """A session of the test's own, to act as a stranger."""
        if self._session is None:
            transport = self.transport()
            self.closing.callback(transport.close)
            transport.install()
            self._session = self.closing.enter_context(contextlib.closing(transport.session()))
        return self._session

    def put(self, queue: str, message: Message) -> Message:
        """Put a message into a queue as it is, and return it."""
        assert self.session.send([Outgoing(queue, message)]) == [SendResult.CONFIRMED]
        return message

    def received(self, queue: str) -> ErrorQueue:
        """Return a reader of *queue*."""
        return self.closing.enter_context(ErrorQueue(self.transport(), queue))


class Party:
    """An endpoint that runs, with its arrivals and its counters."""

    def __init__(
        self,
        place: Place,
        *,
        manager: Feature | None = None,
        persistence: Persistence | None = None,
        **settings: Any,
    ) -> None:
        self.place: Final = place
        self.inbox: Final = Inbox()
        self.telemetry: Final = RecordingTelemetry()
        self.config: Final = place.configuration(
            handler=self.inbox,
            telemetry=self.telemetry,
            manager=manager,
            persistence=persistence,
        )
        for name, value in settings.items():
            assert hasattr(self.config, name), name
            setattr(self.config, name, value)
        self._endpoint: Endpoint | None = None
        self._errors: ErrorQueue | None = None

    def start(self) -> Party:
        """Start the endpoint; it runs until the test ends."""
        self._endpoint = self.place.run(self.config)
        return self

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint; created, not started, at the first use if ``start`` was not called."""
        if self._endpoint is None:
            self._endpoint = self.place.made(self.config)
        return self._endpoint

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self.config.name

    @property
    def errors(self) -> ErrorQueue:
        """A reader of the error queue."""
        if self._errors is None:
            self._errors = self.place.received(self.config.error_queue)
        return self._errors

    def wait_until_stored(self, *timeout_ids: str | None) -> None:
        """Return once all are pending in the store."""
        for timeout_id in timeout_ids:
            assert timeout_id is not None, "it was not delayed"
            self._wait_for_state(timeout_id, TimeoutState.PENDING)

    def wait_until_dispatched(self, *timeout_ids: str | None) -> None:
        """Return once the dispatch of all is committed."""
        for timeout_id in timeout_ids:
            assert timeout_id is not None, "it was not delayed"
            self._wait_for_state(timeout_id, TimeoutState.DISPATCHED)

    def _wait_for_state(self, timeout_id: str, state: TimeoutState) -> None:
        def holds() -> bool:
            found = self.endpoint.timeouts.show(timeout_id)
            return found is not None and found[0] is state

        eventually(holds, f"{timeout_id} is {state.value}")


@contextlib.contextmanager
def stopping(place: Place) -> Iterator[Place]:
    """Close every part that *place* opened, also after a failure half-way."""
    try:
        with place.closing:
            yield place
    finally:
        place.delete_queues()


SOON: Final = timedelta(milliseconds=120)
LATER: Final = timedelta(hours=1)
PROMPT: Final = 20.0
"""Seconds: less than the minute of a slow poll by far, more than a busy machine ever stalls.

How late messages are is for `benchmarks/lateness.py` to measure.
"""
