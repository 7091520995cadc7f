"""Unacknowledged messages on Redis: noted, kept from other consumers, and never lost unseen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import kombu as kombu_package
import pytest
import redis

from tests.services.private import PrivateServer
from tests.support.waiting import eventually
from tests.transport.traffic import ids, receive, send
from timeoutmgr.contracts import TransportSession
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.virtual import redis_channel

kombu: Any = kombu_package  # its annotations are too few to check against
USER = "shop"

_EXPIRE = """
local tags = redis.call('ZRANGE', KEYS[1], 0, -1)
for _, tag in ipairs(tags) do
    redis.call('ZREM', KEYS[1], tag)
    redis.call('ZADD', KEYS[1], 0, tag)
end
return tags
"""
"""Removes before it adds: a full Redis refuses the other order."""


@pytest.fixture
def client(private_server: Callable[[str], PrivateServer]) -> Iterator[redis.Redis]:
    """A Redis of its own, which a test may fill, with a user whose rights a test may withdraw."""
    with redis.Redis.from_url(private_server("redis").url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        grant(client, "on", ">word", "+@all", "~*", "&*")
        yield client
        client.config_set("maxmemory", "0")


def grant(client: redis.Redis, *rules: str) -> None:
    client.execute_command("ACL", "SETUSER", USER, *rules)  # type: ignore[no-untyped-call]  # redis-py


@pytest.fixture(params=["", "tenant."])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def transport(client: redis.Redis, prefix: str) -> Iterator[KombuTransport]:
    """The transport of that user, which renews unacknowledged messages four times a second."""
    port = client.get_connection_kwargs()["port"]
    options: Any = {
        "channel_options": {"global_keyprefix": prefix},
        "visibility_timeout": timedelta(seconds=1),
    }
    url = f"redis://{USER}:word@127.0.0.1:{port}/0"
    with closing(KombuTransport(url, accept_loss=True, **options)) as transport:
        yield transport


def expire(client: redis.Redis, index: str) -> list[Any]:
    """Date all notes in *index* back to the beginning of time, and return their tags."""
    found: Any = client.eval(_EXPIRE, 1, index)
    return list(found)


@pytest.mark.parametrize("memory", ["0", "1"], ids=["with room", "full"])
def test_unacknowledged_messages_stay_with_a_consumer_that_is_busy(
    client: redis.Redis, session: TransportSession, queue: str, prefix: str, memory: str
) -> None:
    index = f"{prefix}unacked_index"
    send(session, queue, "handled", "waiting")
    with closing(session.receiver(queue, prefetch=2)) as receiver:
        received = receive(receiver, 2)
        client.config_set("maxmemory", memory)
        notes = expire(client, index)

        eventually(lambda: client.zcount(index, 1, "+inf") == 2, "both notes are renewed")

        client.config_set("maxmemory", "0")
        receiver.ack(received)
        assert len(notes) == 2
        assert client.zcard(index) == 0


def test_unacknowledged_messages_are_renewed_for_a_program_of_less_patience(
    client: redis.Redis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_channel, "_PATIENCE_OF_OTHERS", 1.0)  # an hour is our own
    url = f"redis://127.0.0.1:{client.get_connection_kwargs()['port']}/0"
    with (
        closing(KombuTransport(url, accept_loss=True)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([queue])
        send(session, queue, "handled")
        with closing(session.receiver(queue, prefetch=1)) as receiver:
            receive(receiver, 1)
            assert len(expire(client, "unacked_index")) == 1

            eventually(lambda: client.zcount("unacked_index", 1, "+inf") == 1, "it is renewed")


def test_a_note_that_was_removed_is_not_renewed(
    client: redis.Redis, session: TransportSession, queue: str, prefix: str
) -> None:
    index = f"{prefix}unacked_index"
    send(session, queue, "put back", "kept")
    with closing(session.receiver(queue, prefetch=2)) as receiver:
        receive(receiver, 2)
        removed, kept = expire(client, index)
        client.zrem(index, removed)

        eventually(lambda: client.zcount(index, 1, "+inf") == 1, "the other note is renewed")

        assert client.zrange(index, 0, -1) == [kept]


@pytest.mark.parametrize("list_name", ["{queue}", "{queue}\x06\x163"], ids=["usual", "priority"])
def test_a_message_whose_note_is_refused_goes_back_where_it_is_read_next(
    client: redis.Redis, session: TransportSession, queue: str, prefix: str, list_name: str
) -> None:
    place = prefix + list_name.format(queue=queue)
    with closing(session.receiver(queue, prefetch=1)) as receiver:
        send(session, queue, "behind")
        [behind] = receive(receiver, 1)
        receiver.release([behind])
        [item] = client.lrange(prefix + queue, 0, -1)
        client.delete(prefix + queue)
        receiver.receive(1, 0.2)  # a BRPOP waits from now on
        grant(client, "-zadd")
        client.lpush(place, item)

        with pytest.raises(TransportUnavailable, match="no permissions to run the 'zadd' command"):
            receiver.receive(1, 30)

        assert client.lrange(place, 0, -1) == [item]
    grant(client, "+zadd")
    with closing(session.receiver(queue, prefetch=1)) as receiver:
        assert ids(receive(receiver, 1)) == ["behind"]


def test_a_message_that_redis_neither_notes_nor_accepts_back_is_logged(
    client: redis.Redis, session: TransportSession, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(session.receiver(queue, prefetch=1)) as receiver:
        receiver.receive(1, 0.2)  # a BRPOP waits from now on
        grant(client, "-zadd", "-rpush")
        session.send([Outgoing(queue, Message(id="lost", body=b"secret"))])

        with pytest.raises(TransportUnavailable), caplog.at_level(logging.ERROR):
            receiver.receive(1, 30)

    [line] = [one for one in caplog.records if vars(one).get("event") == "message_lost"]
    assert line.levelno == logging.ERROR
    assert f"message 'lost' of list '{queue}'" in line.getMessage()
    assert "no permissions to run the 'rpush' command" in line.getMessage()
    assert "secret" not in line.getMessage()


def test_only_its_own_program_puts_back_a_message_of_an_exchange_that_it_declared(
    client: redis.Redis, session: TransportSession, queue: str, prefix: str
) -> None:
    options = {"global_keyprefix": prefix}
    url = f"redis://127.0.0.1:{client.get_connection_kwargs()['port']}/0"
    with kombu.Connection(url, transport_options=options) as other:
        topic = kombu.Exchange(f"{queue}.topic", "topic")
        theirs = kombu.Queue(f"{queue}.theirs", topic, routing_key="#.task")(other.channel())
        theirs.declare()
        kombu.Producer(other, topic).publish({}, routing_key="a.task")
        assert theirs.get() is not None
        send(session, queue, "of a dead consumer")
        _note(client, prefix, queue, client.lpop(prefix + queue))
        expire(client, f"{prefix}unacked_index")

        with closing(session.receiver(queue, prefetch=1)) as receiver:
            assert ids(receive(receiver, 1)) == ["of a dead consumer"]

            assert client.hlen(f"{prefix}unacked") == 2
            assert client.zcount(f"{prefix}unacked_index", 0, 0) == 1


def _note(client: redis.Redis, prefix: str, queue: str, item: Any) -> None:
    """Note *item* of *queue*, as a consumer does, under a tag of its own."""
    client.hset(f"{prefix}unacked", "dead", b'[%b, "", "%b"]' % (item, queue.encode()))
    client.zadd(f"{prefix}unacked_index", {"dead": 1})
