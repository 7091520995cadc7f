"""Redis behind sentinels: the promises of a single Redis hold, on a real sentinel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis

from tests.services.private import PrivateServer
from tests.services.redis import PrivateSentinel
from tests.transport.traffic import ids, receive
from timeoutmgr.contracts import Receiver, SendResult, TransportSession
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.fixture
def master(private_server: Callable[[str], PrivateServer]) -> PrivateServer:
    return private_server("redis")


@pytest.fixture
def client(master: PrivateServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(master.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        yield client
        client.config_set("maxmemory", "0")


@pytest.fixture
def transport(master: PrivateServer) -> Iterator[KombuTransport]:
    """The transport behind a sentinel; another sentinel, the first of the URL, is down."""
    sentinel = PrivateSentinel(master.folder / "sentinel", master.port)
    sentinel.start()
    url = f"sentinel://127.0.0.1:1;{sentinel.url}"
    options = {"master_name": PrivateSentinel.NAME}
    with closing(KombuTransport(url, accept_loss=True, channel_options=options)) as transport:
        yield transport
    sentinel.remove()


def send_bodies(session: TransportSession, queue: str, *ids: str) -> None:
    """Send messages whose body is their id."""
    sent = [Outgoing(queue, Message(id=one, body=one.encode())) for one in ids]
    assert session.send(sent) == [SendResult.CONFIRMED] * len(ids)


def test_released_messages_behind_sentinels_come_back_in_order_with_their_bodies(
    session: TransportSession, queue: str
) -> None:
    send_bodies(session, queue, *"abc")
    with closing(session.receiver(queue, prefetch=2)) as receiver:
        assert ids(receive(receiver, 2)) == ["a", "b"]

    with closing(session.receiver(queue, prefetch=3)) as receiver:
        back = receive(receiver, 3)
        receiver.ack(back)

    assert [one.message.body for one in back] == [b"a", b"b", b"c"]


def test_an_item_that_is_no_message_stops_no_receiver_behind_sentinels(
    client: redis.Redis, session: TransportSession, queue: str, receiver: Receiver
) -> None:
    client.lpush(queue, "no json")
    send_bodies(session, queue, "behind")

    strange, behind = receive(receiver, 2)

    assert strange.defect
    assert strange.message.body == b"no json"
    assert behind.message.id == "behind"


def test_messages_of_a_full_redis_behind_sentinels_are_noted(
    client: redis.Redis, session: TransportSession, queue: str
) -> None:
    send_bodies(session, queue, *"ab")
    client.config_set("maxmemory", "1")
    with closing(session.receiver(queue, prefetch=2)) as receiver:
        receive(receiver, 2)

        assert client.hlen("unacked") == 2
        client.config_set("maxmemory", "0")


def test_an_answer_of_a_redis_behind_sentinels_is_noted(
    transport: KombuTransport, session: TransportSession
) -> None:
    before = transport.unanswered.signs
    session.ping()

    assert transport.unanswered.signs > before
