"""One queue, on each database in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlQueueSettings, SqlTransport


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database, of each kind in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def prefix(unique: str) -> str:
    """A table prefix of this test alone."""
    return f"{unique}_"


class Maker:
    """Makes transports on the same tables, as other processes would have them."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self._made: list[SqlTransport] = []

    def __call__(
        self, *, clock: Clock | None = None, settings: SqlQueueSettings | None = None
    ) -> SqlTransport:
        """Return one more transport."""
        transport = SqlTransport(
            self.url, prefix=self.prefix, clock=clock or SystemClock(), settings=settings
        )
        self._made.append(transport)
        return transport

    def close(self) -> None:
        """Close all transports of this maker."""
        for transport in self._made:
            transport.close()


@pytest.fixture
def make_transport(url: str, prefix: str) -> Iterator[Maker]:
    """A maker of transports on one set of tables."""
    maker = Maker(url, prefix)
    yield maker
    maker.close()


@pytest.fixture
def transport(make_transport: Maker) -> SqlTransport:
    """An installed transport with the queues ``q`` and ``other``."""
    transport = make_transport()
    transport.install()
    transport.session().create_queues(["q", "other"])
    return transport


@pytest.fixture
def messages() -> Callable[..., list[Outgoing]]:
    """A maker of messages, whose ids count from 0."""

    def make(count: int, queue: str = "q") -> list[Outgoing]:
        return [
            Outgoing(queue, Message(id=str(number), body=b"body %d" % number))
            for number in range(count)
        ]

    return make
