"""A Redis that hangs: a waiting call is recorded, cut off, and never repeated at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from multiprocessing import util
from typing import Any

import pytest
from kombu.transport import redis as kombu_redis

from tests.services.private import PrivateServer
from tests.support.waiting import eventually
from tests.transport.traffic import receive, send
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.testing.faultproxy import FaultProxy
from timeoutmgr.transport.kombu_transport import KombuTransport

HOUR = timedelta(hours=1)


@pytest.fixture
def url(private_server: Callable[[str], PrivateServer]) -> str:
    """A private Redis: unacknowledged messages stay behind in it."""
    return private_server("redis").url


@pytest.fixture
def proxy(url: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(url) as proxy:
        yield proxy


@pytest.fixture
def transport(proxy: FaultProxy, url: str) -> Iterator[KombuTransport]:
    """Redis behind *proxy*; no call fails by itself."""
    url = proxy.url(url)
    with closing(KombuTransport(url, accept_loss=True, confirm_timeout=HOUR)) as transport:
        yield transport


def test_a_call_that_waits_is_seen_and_fails_once_redis_is_given_up(
    proxy: FaultProxy, transport: KombuTransport
) -> None:
    failures: list[TransportUnavailable] = []
    with closing(transport.session()) as session:
        session.ping()
        proxy.blackhole()

        def ask() -> None:
            try:
                session.ping()
            except TransportUnavailable as error:
                failures.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        eventually(lambda: transport.unanswered.silence() > 0, "the call waits")
        transport.unanswered.give_up()
        asking.join(60)

        assert len(failures) == 1
        with pytest.raises(TransportUnavailable, match="silent while this process ended"):
            session.ping()
        proxy.heal()
        transport.unanswered.resume()
        session.ping()


def test_an_error_answer_of_redis_counts_as_an_answer(transport: KombuTransport) -> None:
    session: Any
    with closing(transport.session()) as session, session._used("test") as link:
        before = transport.unanswered.signs
        with pytest.raises(Exception, match="unknown command"):
            link.channel.client.execute_command("NOSUCH")

    assert transport.unanswered.signs > before


def test_kombu_puts_nothing_back_at_the_end_of_the_process_after_a_close(
    proxy: FaultProxy, transport: KombuTransport, unique: str
) -> None:
    before = _put_back_at_the_end()
    with closing(transport.session()) as session:
        session.create_queues([unique])
        send(session, unique, "m")
        receiver = session.receiver(unique, prefetch=2)
        receive(receiver, 1)
        assert receiver.receive(1, 0.2) == []  # a BRPOP waits now
        proxy.blackhole()
        transport.unanswered.give_up()

        receiver.close()

    assert _put_back_at_the_end() == before


def _put_back_at_the_end() -> int:
    """Return how many channels kombu would still ask Redis for at the end of the process."""
    registered = [final._callback for final in vars(util)["_finalizer_registry"].values()]
    return sum(
        isinstance(getattr(callback, "__self__", None), kombu_redis.QoS) for callback in registered
    )
