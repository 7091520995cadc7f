"""Redis and memory: the same behaviour as far as possible, and only with consent."""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kombu as kombu_package
import pytest
import redis

from tests.services.private import PrivateServer
from tests.services.redis import PrivateRedis
from tests.transport.proxy import Proxy
from tests.transport.traffic import ids, receive, send
from timeoutmgr.contracts import Receiver, SendResult, TransactionMode, TransportSession
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    InvalidMessage,
    LeaseLost,
    QueueMissing,
    TransportUnavailable,
    UnknownPart,
)
from timeoutmgr.message import headers as names
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.testing.conformance.transports.suite import with_properties
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.virtual import redis_channel
from timeoutmgr.transport.virtual.raw_message import RawMessage
from timeoutmgr.transport.virtual.session import RedisSession

kombu: Any = kombu_package  # its annotations are too few to check against


@pytest.fixture(params=["memory", "redis"])
def transport(request: pytest.FixtureRequest) -> Iterator[KombuTransport]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")
    with closing(KombuTransport(url, accept_loss=True)) as transport:
        yield transport


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


redis_alone = pytest.mark.parametrize("transport", ["redis"], indirect=True)


# --- consent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheme",
    [
        "filesystem",
        "sqla+sqlite",
        "sqlalchemy+postgresql",
        "azurestoragequeues",
        "mongodb",
        "zookeeper",
        "etcd",
        "consul",
        "pyro",
        "confluentkafka",
        "SLMQ",
    ],
)
def test_a_transport_that_loses_unacknowledged_messages_is_refused_with_a_remedy(
    scheme: str,
) -> None:
    with pytest.raises(CombinationRefused) as caught:
        KombuTransport(f"{scheme}://host/x", accept_loss=True)

    assert "sqlite:///" in caught.value.remedy


@pytest.mark.parametrize("scheme", ["redis", "rediss", "sentinel", "memory", "SQS", "pgmq"])
def test_a_transport_that_may_lose_is_refused_without_consent(scheme: str) -> None:
    with pytest.raises(CombinationRefused, match="accept_loss"):
        KombuTransport(f"{scheme}://")


@pytest.mark.parametrize(
    ("url", "options", "sentence"),
    [
        ("amqp://localhost", {"global_keyprefix": "a"}, "global_keyprefix"),
        ("redis://localhost", {"visibility_timeout": 9}, "the setting visibility_timeout"),
        ("redis://localhost", ["sep"], "is a table"),
        ("sentinel://localhost", {}, "master_name"),
        ("sentinel://localhost", {"sentinel_kwargs": "ssl"}, "sentinel_kwargs is a table"),
    ],
)
def test_options_of_a_channel_are_checked_at_the_door(
    url: str, options: Any, sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        KombuTransport(url, accept_loss=True, channel_options=options)


@pytest.mark.parametrize(
    "name", ["connect_timeout", "confirm_timeout", "heartbeat", "visibility_timeout"]
)
@pytest.mark.parametrize("url", ["amqp://localhost", "redis://localhost"])
def test_a_time_of_a_broker_that_is_no_timedelta_is_refused(url: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} takes a timedelta, .* got 5"):
        KombuTransport(url, accept_loss=True, **{name: 5})  # type: ignore[arg-type]  # a number is the point


@pytest.mark.parametrize(
    ("name", "value"),
    [("accept_loss", "no"), ("confirm_window", "500"), ("max_message_size", "1"), ("ssl", True)],
)
def test_a_setting_of_a_broker_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} (takes|is)"):
        KombuTransport("amqp://localhost", **{name: value})


def test_options_of_a_channel_say_where_messages_and_markers_are(
    redis_url: str, redis_client: redis.Redis, unique: str
) -> None:
    options = {"global_keyprefix": f"{unique}:", "sep": "|", "priority_steps": [0, 5]}
    with (
        closing(KombuTransport(redis_url, accept_loss=True, channel_options=options)) as transport,
        closing(transport.session()) as session,
    ):
        assert isinstance(session, RedisSession)
        session.create_queues([unique])
        before = set(redis_client.scan_iter())
        send(session, unique, "1")
        session.bear_marker(unique, "word", "store")
        added = set(redis_client.scan_iter()) - before

        assert added == {
            f"{unique}:{unique}".encode(),
            f"{unique}:timeoutmgr.marker.{unique}".encode(),
        }
        assert session.borne_marker(unique, None) == "word"
        with closing(session.receiver(unique, prefetch=1)) as receiver:
            received = receive(receiver, 1)
            receiver.ack(received)
        assert ids(received) == ["1"]
        session.drop_marker(unique, None)
        assert session.borne_marker(unique, None) is None
        session.delete_queues([unique])


def test_an_unknown_scheme_names_the_nearest_that_is_known() -> None:
    with pytest.raises(UnknownPart) as caught:
        KombuTransport("amqb://localhost")

    assert caught.value.suggestion == "amqp"


@pytest.mark.parametrize("scheme", ["amqp+ssl", "amqps+x", "redis+tls", "memory+x"])
def test_a_scheme_that_kombu_would_read_as_another_address_is_unknown(scheme: str) -> None:
    with pytest.raises(UnknownPart, match=re.escape(f"'{scheme}'")):
        KombuTransport(f"{scheme}://broker.example/0", accept_loss=True, allow_plaintext=True)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://localhost/9/", "redis://localhost/name", "rediss://h/-1", "sentinel://h/x"),
        *("redis+socket:///tmp/socket?virtual_host=x", "redis+socket:///s?virtual_host=-1"),
    ],
)
def test_a_database_of_redis_that_is_no_number_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Redis has numbers for names, such as"):
        KombuTransport(url, accept_loss=True)


@pytest.mark.parametrize("path", ["", "/", "/9", "//9", "/%39"])
def test_a_database_of_redis_is_a_number(path: str) -> None:
    KombuTransport(f"redis://localhost{path}", accept_loss=True)
    KombuTransport(f"redis+socket:///tmp/socket?virtual_host={path[1:]}", accept_loss=True)


def test_capabilities_promise_no_durability(transport: KombuTransport) -> None:
    assert not transport.capabilities.durable
    assert transport.capabilities.modes == {TransactionMode.NONE, TransactionMode.RECEIVE_ONLY}
    assert "accept_loss" in transport.capabilities.note
    transport.check()


# --- queues and messages ----------------------------------------------------------------------


def test_a_created_queue_exists_until_it_is_deleted(
    session: TransportSession, transport: KombuTransport, unique: str
) -> None:
    with closing(transport.session()) as other:
        assert session.missing_queues([unique]) == [unique]

        session.create_queues([unique])
        other.create_queues([unique])
        assert other.missing_queues([unique]) == []

        other.delete_queues([unique])
        assert session.missing_queues([unique]) == [unique]

        session.create_queues([unique])
        assert other.missing_queues([unique]) == []
        other.delete_queues([unique])


def test_deleting_a_queue_deletes_its_messages(session: TransportSession, queue: str) -> None:
    send(session, queue, "a")

    session.delete_queues([queue])
    session.create_queues([queue])

    assert session.count(queue) == 0


def test_count_and_receiver_of_a_missing_queue_raise_queue_missing(
    session: TransportSession, unique: str
) -> None:
    with pytest.raises(QueueMissing):
        session.count(unique)
    with pytest.raises(QueueMissing):
        session.receiver(unique, prefetch=1)


def test_only_the_message_to_the_missing_queue_is_unroutable(
    session: TransportSession, queue: str
) -> None:
    results = session.send(
        [
            Outgoing(queue, Message(id="1")),
            Outgoing(f"{queue}.missing", Message(id="2")),
            Outgoing(queue, Message(id="3")),
        ]
    )

    assert results == [SendResult.CONFIRMED, SendResult.UNROUTABLE, SendResult.CONFIRMED]
    assert session.count(queue) == 2


def test_a_queue_that_another_session_creates_is_reached_at_once(
    session: TransportSession, transport: KombuTransport, queue: str
) -> None:
    late = f"{queue}.late"
    send(session, queue, "1")
    with closing(transport.session()) as other:
        other.create_queues([late])

    send(session, late, "2")
    session.delete_queues([late])


def test_a_message_arrives_as_it_was_sent(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    message = Message(
        id="1",
        headers={"Grüße": "Ω", "redelivered": "True"},
        body=b"\x00\xff\x1f\x8b",
        content_type="application/x-thing",
        content_encoding="binary",
    )

    session.send([Outgoing(queue, message)])

    (received,) = receive(receiver, 1)
    assert received == Received(message=with_properties(message), queue=queue, tag=None)


def test_an_empty_body_stays_empty(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    send(session, queue, "1")

    assert receive(receiver, 1)[0].message.body == b""


def test_headers_that_steer_a_broker_are_dropped(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    steering = {"CC": "x", "compression": "application/x-gzip"}

    session.send([Outgoing(queue, Message(id="1", headers={**steering, "kept": "yes"}))])

    kept = with_properties(Message(id="1", headers={"kept": "yes"}))
    assert receive(receiver, 1)[0].message == kept


def test_properties_fill_the_headers_of_a_plain_sender(
    transport: KombuTransport, queue: str, receiver: Receiver
) -> None:
    with kombu.Connection(transport.describe()) as connection:
        connection.Producer().publish(
            b"{}",
            routing_key=queue,
            message_id="m-1",
            correlation_id="c-1",
            reply_to="answers",
            type="Sales.OrderPlaced",
            content_type="application/json",
            content_encoding="utf-8",
        )

    filled = {
        names.MESSAGE_ID: "m-1",
        names.CORRELATION_ID: "c-1",
        names.REPLY_TO: "answers",
        names.ENCLOSED_MESSAGE_TYPES: "Sales.OrderPlaced",
        names.CONTENT_TYPE: "application/json",
    }
    assert receive(receiver, 1)[0].message == Message(id="m-1", headers=filled, body=b"{}")


def test_an_unwritable_message_is_refused_before_any_write(
    session: TransportSession, queue: str
) -> None:
    outgoing = [Outgoing(queue, Message(id="1")), Outgoing(queue, Message(id="i" * 256))]

    with pytest.raises(InvalidMessage):
        session.send(outgoing)

    assert session.count(queue) == 0


# --- receiving and settling -------------------------------------------------------------------


def test_two_thousand_messages_arrive_in_order(session: TransportSession, queue: str) -> None:
    sent = [str(n) for n in range(2000)]
    send(session, queue, *sent)

    with closing(session.receiver(queue, prefetch=100)) as receiver:
        found: list[str] = []
        while len(found) < len(sent) and (received := receiver.receive(100, 10.0)):
            found += ids(received)
            receiver.ack(received)

    assert found == sent
    assert session.count(queue) == 0


def test_acknowledged_messages_are_deleted_and_the_rest_come_back(
    session: TransportSession, queue: str
) -> None:
    send(session, queue, *"abcdef")
    with closing(session.receiver(queue, prefetch=10)) as receiver:
        received = receive(receiver, 6)
        receiver.ack([received[0], received[1], received[4]])
        receiver.ack([received[0]])

    with closing(session.receiver(queue, prefetch=10)) as receiver:
        back = receive(receiver, 3)
        receiver.ack(back)

    assert ids(back) == ["c", "d", "f"]
    assert [one.delivery_count for one in back] == [1, 1, 1]
    assert session.count(queue) == 0


def test_released_messages_come_back_at_once_and_in_order(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    send(session, queue, *"abc")
    received = receive(receiver, 3)

    receiver.release(received[1:])

    assert ids(receive(receiver, 2)) == ["b", "c"]


def test_the_prefetch_bounds_the_unacknowledged_messages(
    session: TransportSession, queue: str
) -> None:
    send(session, queue, *"abcd")

    with closing(session.receiver(queue, prefetch=2)) as receiver:
        received = receive(receiver, 2)
        assert receiver.receive(10, 0.1) == []

        receiver.ack(received)
        assert ids(receive(receiver, 2)) == ["c", "d"]


def test_an_interrupt_ends_a_wait(receiver: Receiver) -> None:
    thread = threading.Thread(target=receiver.interrupt)
    start = time.monotonic()
    thread.start()

    assert receiver.receive(1, 30) == []
    assert time.monotonic() - start < 5
    thread.join()


def test_a_receiver_that_is_closed_says_so(session: TransportSession, queue: str) -> None:
    receiver = session.receiver(queue, prefetch=1)
    receiver.close()
    receiver.close()

    receiver.interrupt()
    with pytest.raises(TransportUnavailable):
        receiver.receive(1, 0)


def test_there_is_no_transaction_with_a_database(session: TransportSession) -> None:
    with pytest.raises(CombinationRefused):
        session.transaction()


# --- Redis alone ------------------------------------------------------------------------------


def envelope(**changes: Any) -> str:
    whole = {
        "body": base64.b64encode(b"body").decode(),
        "headers": {},
        "properties": {"message_id": "1", "body_encoding": "base64", "delivery_info": {}},
        "content-type": "application/json",
        "content-encoding": "utf-8",
    }
    return json.dumps({**whole, **changes})


@redis_alone
@pytest.mark.parametrize(
    "item",
    [
        "no json",
        "[",
        "5",
        "[]",
        "null",
        "{}",
        envelope(headers=[1]),
        envelope(headers={"value": {"nested": 1}}),
        envelope(properties=None),
        envelope(properties={"body_encoding": "base64"}, body="%%%"),
        envelope(body={"no": "text"}),
        "\udc80".encode("utf-8", "surrogateescape"),
    ],
)
def test_any_entry_of_the_list_is_received_and_stops_no_receiver(
    redis_client: redis.Redis,
    session: TransportSession,
    queue: str,
    receiver: Receiver,
    item: str | bytes,
) -> None:
    redis_client.lpush(queue, item)
    send(session, queue, "behind")

    first, second = receive(receiver, 2)
    receiver.release([first])
    (again,) = receive(receiver, 1)

    assert first.defect or item in ("{}", envelope(properties=None))
    assert second.message.id == "behind"
    assert again.message.body == first.message.body
    assert again.message.id == first.message.id
    assert bool(again.defect) == bool(first.defect)


@redis_alone
def test_copies_with_one_delivery_tag_are_two_messages(
    redis_client: redis.Redis, queue: str, receiver: Receiver
) -> None:
    copied = envelope(
        properties={
            "body_encoding": "base64",
            "delivery_tag": "copied",
            "delivery_info": {"exchange": "", "routing_key": "elsewhere"},
        }
    )
    redis_client.lpush(queue, copied, copied)

    received = receive(receiver, 2)
    receiver.release(received)

    assert len(receive(receiver, 2)) == 2


@redis_alone
def test_a_compressed_body_is_not_touched(
    redis_client: redis.Redis, queue: str, receiver: Receiver
) -> None:
    redis_client.lpush(queue, envelope(headers={"compression": "application/x-gzip"}))

    (received,) = receive(receiver, 1)

    assert received.message.body == b"body"
    assert "compression" not in received.message.headers


def test_the_next_url_of_redis_is_read_by_our_channel_too(
    redis_url: str, redis_client: redis.Redis, unique: str
) -> None:
    url = f"redis://127.0.0.1:1/0;{redis_url}"
    with (
        closing(KombuTransport(url, accept_loss=True)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        redis_client.lpush(unique, "no json")
        for _ in range(2):
            with closing(session.receiver(unique, prefetch=1)) as receiver:
                (received,) = receive(receiver, 1)
                assert received.message.body == b"no json"
        session.delete_queues([unique])


class OnUnixSocket(PrivateRedis):
    """A Redis server that a Unix socket reaches too."""

    @property
    def socket_url(self) -> str:
        return f"redis+socket://{self.folder}/socket"

    def _command(self) -> list[str]:
        return [*super()._command(), "--unixsocket", f"{self.folder}/socket"]


@pytest.fixture
def redis_on_socket(tmp_path: Path) -> Iterator[OnUnixSocket]:
    if OnUnixSocket.missing_programs():
        pytest.skip("no redis-server to reach by a Unix socket")
    server = OnUnixSocket(tmp_path / "redis")
    server.start()
    yield server
    server.remove()


def test_a_redis_behind_a_unix_socket_is_read_by_our_channel_too(
    redis_on_socket: OnUnixSocket, unique: str
) -> None:
    with (
        redis.Redis.from_url(redis_on_socket.url) as client,
        closing(KombuTransport(redis_on_socket.socket_url, accept_loss=True)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        client.lpush(unique, "no json")
        with closing(session.receiver(unique, prefetch=1)) as receiver:
            (received,) = receive(receiver, 1)

    assert received.message.body == b"no json"


def test_a_redis_connection_that_is_cut_is_made_again(redis_url: str, unique: str) -> None:
    parts = urlsplit(redis_url)
    with Proxy((parts.hostname or "127.0.0.1", parts.port or 6379)) as proxy:
        url = parts._replace(netloc=f"127.0.0.1:{proxy.port}").geturl()
        settings = KombuSettings(accept_loss=True, confirm_timeout=timedelta(seconds=5))
        with (
            closing(KombuTransport(url, settings=settings)) as transport,
            closing(transport.session()) as session,
        ):
            session.create_queues([unique])
            send(session, unique, "a")
            with closing(session.receiver(unique, prefetch=10)) as receiver:
                received = receive(receiver, 1)
                proxy.cut()
                with pytest.raises(TransportUnavailable):
                    receiver.receive(1, 10)

                with pytest.raises(LeaseLost):
                    receiver.ack(received)
                receiver.release(received)
                assert ids(receive(receiver, 1)) == ["a"]
            session.delete_queues([unique])


@pytest.fixture
def full_redis(private_server: Callable[[str], PrivateServer]) -> Iterator[redis.Redis]:
    """A Redis of its own, which a test may fill."""
    with redis.Redis.from_url(private_server("redis").url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        yield client
        client.config_set("maxmemory", "0")


def url_of(client: redis.Redis) -> str:
    place = client.get_connection_kwargs()
    return f"redis://{place['host']}:{place['port']}/{place['db']}"


@pytest.mark.parametrize("prefix", ["", "tenant."])
def test_messages_of_a_full_redis_are_noted_and_none_is_lost(
    full_redis: redis.Redis, unique: str, prefix: str
) -> None:
    options: Any = {"channel_options": {"global_keyprefix": prefix}}
    with (
        closing(KombuTransport(url_of(full_redis), accept_loss=True, **options)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        send(session, unique, "released", "acknowledged")
        full_redis.config_set("maxmemory", "1")
        with closing(session.receiver(unique, prefetch=2)) as receiver:
            received = receive(receiver, 2)

            assert full_redis.hlen(f"{prefix}unacked") == 2
            assert full_redis.zcard(f"{prefix}unacked_index") == 2
            receiver.ack(received[1:])
            assert receiver.receive(1, 0.2) == []
            with pytest.raises(TransportUnavailable, match="OutOfMemory"):
                session.send([Outgoing(unique, Message(id="refused"))])
            full_redis.config_set("maxmemory", "0")
            receiver.release(received[:1])
            assert ids(receive(receiver, 1)) == ["released"]


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        pytest.param("~queue* ~_kombu* ~timeoutmgr*", "unacked_index", id="keys"),
        pytest.param("~* -@scripting", "'eval'", id="scripts"),
        pytest.param("~* -hset", "'hset'", id="notes"),
    ],
)
def test_without_a_right_to_note_messages_a_receiver_is_refused(
    full_redis: redis.Redis, unique: str, rules: str, missing: str
) -> None:
    rules = rules.replace("queue", unique)
    words = ("ACL", "SETUSER", "shop", "reset", "on", ">word", "+@all", *rules.split())
    full_redis.execute_command(*words)  # type: ignore[no-untyped-call]  # has no types
    url = url_of(full_redis).replace("//", "//shop:word@")
    with (
        closing(KombuTransport(url, accept_loss=True)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        send(session, unique, "kept")

        with pytest.raises(TransportUnavailable, match="grant the user the keys") as caught:
            session.receiver(unique, prefetch=1)

        assert missing in str(caught.value)
        assert session.count(unique) == 1


def test_a_redis_that_lacks_a_command_of_notes_is_refused_by_its_receivers(
    private_server: Callable[[str], PrivateServer], unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = PrivateRedis._command
    lacks = ("--rename-command", "EVAL", "")
    monkeypatch.setattr(PrivateRedis, "_command", lambda server: [*command(server), *lacks])
    with (
        closing(KombuTransport(private_server("redis").url, accept_loss=True)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])

        with pytest.raises(TransportUnavailable, match=r"unknown command.* and eval for a Redis"):
            session.receiver(unique, prefetch=1)


def test_a_proof_of_the_right_to_note_messages_leaves_no_note(
    full_redis: redis.Redis, unique: str
) -> None:
    with (
        closing(KombuTransport(url_of(full_redis), accept_loss=True)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        with closing(session.receiver(unique, prefetch=1)):
            assert not full_redis.exists("unacked", "unacked_index")


def test_a_missing_redis_raises_transport_unavailable() -> None:
    with (
        closing(KombuTransport("redis://:sesame@127.0.0.1:1/0", accept_loss=True)) as transport,
        closing(transport.session()) as session,
        pytest.raises(TransportUnavailable) as caught,
    ):
        session.ping()

    assert "sesame" not in str(caught.value)
    assert "***" in transport.describe()


@pytest.mark.parametrize(
    ("url", "package"), [("azureservicebus://x:y@z", "azure"), ("gcpubsub://projects/x", "google")]
)
def test_a_package_of_a_broker_that_is_not_installed_is_refused_with_its_extra(
    url: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with (
        closing(KombuTransport(url, accept_loss=True)) as transport,
        closing(transport.session()) as session,
        pytest.raises(ConfigurationError, match=rf"pip install 'kombu\[{url.partition(':')[0]}\]'"),
    ):
        session.ping()


def test_a_channel_of_kombu_would_put_a_message_back_with_its_body() -> None:
    message = RawMessage("q", json.loads(envelope()))

    assert message.serializable()["body"] == base64.b64encode(b"body").decode()


def test_what_a_channel_of_kombu_acknowledges_a_message_by_is_kept_and_not_put_back() -> None:
    written = {"pgmq_msg_id": 7, "exchange": "theirs"}
    properties = {"body_encoding": "base64", "delivery_info": written}

    message = RawMessage("q", json.loads(envelope(properties=properties)))

    ours = {"exchange": "", "routing_key": "q"}
    assert message.delivery_info == {"pgmq_msg_id": 7, **ours}
    assert message.serializable()["properties"]["delivery_info"] == ours


def test_redis_can_put_back_the_item_as_it_was_read() -> None:
    item = (
        b'{"body": "aGk=", "headers": {"a": "b"}, "content-type": "text/plain", '
        b'"properties": {"body_encoding": "base64", "delivery_info": {"exchange": "theirs"}}}'
    )
    message = RawMessage("q", redis_channel._payload(item))

    entry = redis_channel._unacked(message)
    again = json.loads(redis_channel._unacked(message))

    assert entry == b"[" + item + b', "", "q"]'
    assert message.body == b"hi"
    assert again[0]["body"] == "aGk="
    assert again[1:] == ["", "q"]


@pytest.mark.parametrize("properties", ["{}", '{"delivery_info": []}', "[]"])
def test_an_item_that_kombu_could_not_put_back_is_written_anew(properties: str) -> None:
    item = f'{{"body": "hi", "headers": {{}}, "properties": {properties}}}'.encode()
    message = RawMessage("q", redis_channel._payload(item))

    payload, *where = json.loads(redis_channel._unacked(message))

    assert payload["body"] == "hi"
    assert payload["properties"]["delivery_info"] == {"exchange": "", "routing_key": "q"}
    assert where == ["", "q"]
