"""The testing kit: time and messages of one endpoint, in the thread of the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypedDict, Unpack

from sqlalchemy import Engine

from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import LATEST, MICROSECOND, Micros, duration_micros, to_micros
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.routes import DELAYED, DISPATCHER, TIMEOUTS
from timeoutmgr.testing.kit.clock import KitClock, Moved
from timeoutmgr.testing.kit.configuration import KitConfiguration
from timeoutmgr.testing.kit.database import KitDatabase, KitStorage
from timeoutmgr.testing.kit.endpoint import KitEndpoint
from timeoutmgr.testing.kit.expectation import Expectation, instant_of
from timeoutmgr.testing.kit.messages import (
    ObservedFailure,
    ObservedMessage,
    observed,
    observed_timeout,
)
from timeoutmgr.testing.kit.transport import KitTransport

_PAGE: Final = 1_000_000
_SECOND: Final = timedelta(seconds=1)


class TimeSpan(TypedDict, total=False):
    """The parts of a time span: the arguments of a timedelta."""

    weeks: float
    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float
    microseconds: float


class TimeoutKit:
    """An endpoint of *config* in memory, for tests; *config* stays unchanged.

    The handlers, limits, retries and transaction mode are those of *config*. The kit connects to
    no server, opens no file and starts no thread.

    If a handler fails, the call that handles the message raises the error, and the message is in
    the error queue. With *raises* False the kit retries as configured; ``errors`` lists messages
    that failed for good. With *inline*, a send without a delay returns after its message was
    handled. *database* is the database of ``context.session``: an engine, a connection, or the
    metadata of tables to create in memory. The clock begins at *start*, or at the host's time.
    """

    def __init__(
        self,
        config: EndpointConfiguration,
        *,
        raises: bool = True,
        inline: bool = False,
        database: KitStorage = None,
        start: datetime | None = None,
    ) -> None:
        if not isinstance(config, EndpointConfiguration):
            raise ConfigurationError(
                f"a testing kit is made of an EndpointConfiguration, got {config!r:.80}; give the "
                "configuration of which the program makes its endpoint"
            )
        self._clock = KitClock(start)
        self._database = KitDatabase(database)
        self._transport = KitTransport(self._clock, self._database)
        own = KitConfiguration(config, self._transport, self._clock, raises=raises)
        self.endpoint: Final = KitEndpoint(own, self._transport, self._clock)
        """The endpoint: give it to the code under test."""
        self.endpoint.sent_now = self._handle_inline
        self.send: Final = self.endpoint.send
        """``endpoint.send``."""
        self.send_local: Final = self.endpoint.send_local
        """``endpoint.send_local``."""
        self._worker = self.endpoint.worker
        self._raises = raises
        self._is_inline = inline
        name, error_queue = own.name, own.error_queue
        self._inner = {name, error_queue, name + TIMEOUTS, name + DISPATCHER, name + DELAYED}

    @property
    def now(self) -> datetime:
        """The instant at which the kit's clock stands, in UTC."""
        return self._clock.instant

    @property
    def engine(self) -> Engine:
        """The engine of the database behind ``context.session``."""
        return self._database.engine

    @property
    def errors(self) -> list[ObservedFailure]:
        """The messages in the error queue in order, each with its exception."""
        return self._worker.failures

    def advance(self, span: timedelta = timedelta(0), **parts: Unpack[TimeSpan]) -> None:
        """Move the clock by a time span, such as ``days=14``, and handle all that becomes due.

        Messages are handled in the order of their due times, messages of one instant in the order
        of sending. While a message is handled, the clock stands at its due time. Messages that
        handlers send are handled too, if they are due within the span.
        """
        self._advance(self._clock.now() + duration_micros(span) + timedelta(**parts) // MICROSECOND)

    def advance_to(self, instant: datetime) -> None:
        """Move the clock to *instant*, otherwise like ``advance``."""
        self._advance(to_micros(instant))

    def drain(self) -> None:
        """Handle all messages that wait or are due now, and those that handlers send meanwhile."""
        self._worker.work(self._on_failure)

    def on_move(self, call: Moved) -> None:
        """Call *call* with each new instant, to move a clock that the handlers read.

        With freezegun: ``kit.on_move(frozen.move_to)``.
        """
        self._clock.on_move(call)

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Within the block, handle each message without a delay before its send returns."""
        before, self._is_inline = self._is_inline, True
        try:
            yield
        finally:
            self._is_inline = before

    def scheduled(self) -> list[ObservedMessage]:
        """Return the pending timeouts by due time."""
        self._worker.store()
        store = self._worker.timeouts
        if store is None:
            return []
        found = store.list(TimeoutFilter(), limit=_PAGE)
        found = sorted(found, key=lambda timeout: (timeout.due, timeout.created))
        return [observed_timeout(timeout) for timeout in found]

    def sent(self, *, destination: str | None = None) -> list[ObservedMessage]:
        """Return the messages that reached other endpoints, or *destination*, in order.

        A delayed message is included from its due time on.
        """
        self._worker.store()
        return [
            observed(one.message, one.destination)
            for one in self._transport.accepted
            if self._is_asked_for(one, destination)
        ]

    def assert_scheduled(
        self,
        type: str | type[Any] | None = None,
        *,
        saga: str | None = None,
        due: datetime | timedelta | None = None,
        tolerance: timedelta = _SECOND,
    ) -> ObservedMessage:
        """Return the earliest timeout with these properties; AssertionError if there is none.

        *type* is a name or a class; *due* is an instant, or a time span from now; a due time up to
        *tolerance* away fits.
        """
        expected = Expectation.of(type, saga, instant_of(due, self.now), tolerance)
        scheduled = self.scheduled()
        for one in scheduled:
            if expected.matches(one):
                return one
        raise AssertionError(expected.missing(scheduled))

    def assert_not_scheduled(
        self,
        type: str | type[Any] | None = None,
        *,
        saga: str | None = None,
        due: datetime | timedelta | None = None,
        tolerance: timedelta = _SECOND,
    ) -> None:
        """Raise AssertionError if a timeout with these properties is pending."""
        expected = Expectation.of(type, saga, instant_of(due, self.now), tolerance)
        scheduled = self.scheduled()
        for one in scheduled:
            if expected.matches(one):
                raise AssertionError(expected.unexpected(one, scheduled))

    def close(self) -> None:
        """Close the database in memory, if there is one; idempotent."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _advance(self, target: Micros) -> None:
        if not self._clock.now() <= target <= LATEST:
            raise ConfigurationError(
                f"the clock of a testing kit stands at {self.now}, and moves only forward, until "
                f"the year 9999; got a move by {MICROSECOND * (target - self._clock.now())}"
            )
        self.drain()
        while (due := self._worker.next_due()) is not None and due <= target:
            self._clock.move_to(due)
            self.drain()
        self._clock.move_to(target)

    def _handle_inline(self) -> None:
        if self._is_inline and not self._worker.is_busy:
            self.drain()

    def _on_failure(self, failure: ObservedFailure) -> None:
        if self._raises:
            raise failure.exception

    def _is_asked_for(self, one: Outgoing, destination: str | None) -> bool:
        if destination is None:
            return one.destination not in self._inner
        return one.destination == destination
