"""Several URLs of Redis: the transport finds the master, also after a promotion by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
import redis

from tests.services.private import PrivateServer
from tests.support.waiting import eventually
from tests.transport.traffic import ids, receive, send
from timeoutmgr.contracts import TransportSession
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.kombu_transport import KombuTransport

DOWN = "redis://127.0.0.1:1/0"


@pytest.fixture
def first(private_server: Callable[[str], PrivateServer]) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(private_server("redis").url) as client:
        yield client


@pytest.fixture
def second(
    first: redis.Redis, private_server: Callable[[str], PrivateServer]
) -> Iterator[redis.Redis]:
    """A replica of *first*."""
    with redis.Redis.from_url(private_server("redis").url) as client:
        follow(client, first)
        yield client


@pytest.fixture
def transport(first: redis.Redis, second: redis.Redis) -> Iterator[KombuTransport]:
    url = f"{DOWN};{url_of(first)};{url_of(second)}"
    with closing(KombuTransport(url, accept_loss=True)) as transport:
        yield transport


def url_of(client: redis.Redis) -> str:
    place = client.get_connection_kwargs()
    return f"redis://127.0.0.1:{place['port']}/{place['db']}"


def follow(replica: redis.Redis, master: redis.Redis) -> None:
    """Make *replica* a replica of *master*, with all that *master* has."""
    replica.replicaof("127.0.0.1", urlsplit(url_of(master)).port)
    eventually(
        lambda: replica.info("replication")["master_link_status"] == "up", "the replica follows"
    )


def test_sessions_and_receivers_move_on_to_a_promoted_replica(
    first: redis.Redis, second: redis.Redis, session: TransportSession, queue: str
) -> None:
    with closing(session.receiver(queue, prefetch=1)) as receiver:
        receiver.receive(1, 0.2)  # a BRPOP waits on the first
        assert second.replicaof("NO", "ONE")
        follow(first, second)

        with pytest.raises(TransportUnavailable, match="ReadOnly"):
            session.send([Outgoing(queue, Message(id="refused"))])
        send(session, queue, "to the promoted server")
        with pytest.raises(TransportUnavailable):
            receiver.receive(1, 30)

        assert ids(receive(receiver, 1)) == ["to the promoted server"]
        assert second.hlen("unacked") == 1


def test_without_any_master_the_error_says_so(
    first: redis.Redis, second: redis.Redis, transport: KombuTransport
) -> None:
    first.replicaof("127.0.0.1", 1)
    with (
        closing(transport.session()) as session,
        pytest.raises(TransportUnavailable, match="is a replica; one of the URLs must name"),
    ):
        session.ping()
