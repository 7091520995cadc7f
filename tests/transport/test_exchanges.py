"""Messages that go through an exchange: on RabbitMQ, and refused everywhere else.

Queues that have an exchange of their own name, as NServiceBus' conventional topology has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from struct import pack
from typing import cast
from urllib.parse import urlsplit

import amqp
import pytest

from tests.services.private import PrivateServer
from tests.services.rabbitmq import PrivateRabbitMQ
from tests.support.clock import FakeClock
from tests.support.makers import a_message
from timeoutmgr.contracts import SendResult, TransportSession
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message.message import NO_NUMBERS, Message, Outgoing
from timeoutmgr.transport.amqp.frames import delivered_key, publish_method
from timeoutmgr.transport.amqp.session import RabbitMQSession
from timeoutmgr.transport.amqp.topology import ExchangeAddresses, has_exchange
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.settings import KombuSettings


class Through:
    """A way through an exchange."""

    def address(self) -> tuple[str, str]:
        return "some.exchange", "some.key"

    def numbers(self, _message: Message) -> Mapping[str, int]:
        return NO_NUMBERS


@pytest.fixture(params=["sqlite", "memory"])
def elsewhere(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[TransportSession]:
    """A session of a transport without exchanges, on which the queue ``billing`` exists."""
    url = sqlite_url if request.param == "sqlite" else "memory://"
    with closing(transport_from_url(url, accept_loss=True)) as transport:
        transport.install()
        with closing(transport.session()) as session:
            session.create_queues(["billing"])
            yield session
            session.delete_queues(["billing"])


def test_a_message_that_a_broker_delays_is_never_put_straight_into_a_queue(
    elsewhere: TransportSession,
) -> None:
    delayed = Outgoing("billing", a_message(), Through())

    with pytest.raises(InvalidMessage, match="only RabbitMQ has them"):
        elsewhere.send([Outgoing("billing", a_message("m2")), delayed])

    assert elsewhere.count("billing") == 0


@pytest.mark.parametrize(
    ("tag", "exchange", "key", "read"),
    [
        (b"ctag1", b"", b"billing", "billing"),
        (b"", b"timeoutmgr.v1.delay-delivery", b"0.1.eu.sales", "0.1.eu.sales"),
        (b"c" * 255, b"e" * 255, "Zürich".encode(), "Zürich"),
        (b"ctag1", b"", b"", ""),
        (b"ctag1", b"\xff", b"bad \xff", "bad \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_the_routing_key_of_a_delivery_is_read_for_any_bytes(
    tag: bytes, exchange: bytes, key: bytes, read: str
) -> None:
    short = [bytes((len(text),)) + text for text in (tag, exchange, key)]

    assert (
        delivered_key(pack(">HH", 60, 60) + short[0] + pack(">QB", 7, 1) + short[1] + short[2])
        == read
    )


def test_a_publish_names_its_exchange() -> None:
    assert publish_method("key") == pack(">HHHB", 60, 40, 0, 0) + b"\x03key\x01"
    assert publish_method("key", "ex") == pack(">HHH", 60, 40, 0) + b"\x02ex\x03key\x01"


# --- queues with exchanges of their names -----------------------------------------------------


@pytest.fixture
def conventional(rabbitmq_url: str) -> Iterator[RabbitMQSession]:
    """A session with RabbitMQ in the conventional topology."""
    with (
        closing(KombuTransport(rabbitmq_url, routing_topology="conventional")) as transport,
        closing(transport.session()) as session,
    ):
        assert isinstance(session, RabbitMQSession)
        yield session


@pytest.fixture
def peer(raw_channel: amqp.Channel, unique: str) -> Iterator[str]:
    """A queue of another program, whose exchange has a second queue, ``<name>.tap``."""
    raw_channel.exchange_declare(unique, "fanout", durable=True, auto_delete=False)
    for queue in (unique, f"{unique}.tap"):
        raw_channel.queue_declare(queue, durable=True, auto_delete=False)
        raw_channel.queue_bind(queue, unique, "")
    yield unique
    raw_channel.exchange_delete(unique)
    for queue in (unique, f"{unique}.tap"):
        raw_channel.queue_delete(queue)


def drained(channel: amqp.Channel, queue: str) -> list[str]:
    """Remove all messages of *queue*; return their ids."""
    found = []
    while (message := channel.basic_get(queue, no_ack=True)) is not None:
        found.append(message.properties["message_id"])
    return found


def put(session: RabbitMQSession, queue: str, *ids: str) -> list[SendResult]:
    return session.send([Outgoing(queue, Message(id=each)) for each in ids])


def test_the_exchange_of_a_queue_gets_its_messages(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, peer: str
) -> None:
    assert put(conventional, peer, "a", "b") == [SendResult.CONFIRMED] * 2

    assert drained(raw_channel, f"{peer}.tap") == ["a", "b"]
    assert drained(raw_channel, peer) == ["a", "b"]


def test_in_the_direct_topology_the_queue_alone_gets_a_message(
    session: RabbitMQSession, raw_channel: amqp.Channel, peer: str
) -> None:
    assert put(session, peer, "a") == [SendResult.CONFIRMED]

    assert drained(raw_channel, peer) == ["a"]
    assert drained(raw_channel, f"{peer}.tap") == []


@pytest.mark.behaviour(110)
def test_a_message_whose_exchange_knows_no_queue_reaches_the_queue(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, peer: str
) -> None:
    for queue in (peer, f"{peer}.tap"):
        raw_channel.queue_unbind(queue, peer, "")

    assert put(conventional, peer, "a", "b") == [SendResult.CONFIRMED] * 2
    assert put(conventional, peer, "c") == [SendResult.CONFIRMED]

    assert drained(raw_channel, peer) == ["a", "b", "c"]


def test_an_exchange_without_any_queue_is_unroutable_and_its_neighbours_arrive(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, peer: str, unique: str
) -> None:
    lonely = f"{unique}.lonely"
    raw_channel.exchange_declare(lonely, "fanout", durable=True, auto_delete=False)
    outgoing = [Outgoing(queue, Message(id=queue)) for queue in (lonely, peer, lonely)]

    assert conventional.send(outgoing) == [
        SendResult.UNROUTABLE,
        SendResult.CONFIRMED,
        SendResult.UNROUTABLE,
    ]

    assert drained(raw_channel, peer) == [peer]
    raw_channel.exchange_delete(lonely)


@pytest.mark.behaviour(111)
@pytest.mark.parametrize("kind", ["topic", "direct", "headers"])
def test_an_exchange_of_another_kind_is_not_published_to(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, queue: str, kind: str
) -> None:
    tap = f"{queue}.tap"
    raw_channel.exchange_declare(queue, kind, durable=True, auto_delete=False)
    raw_channel.queue_declare(tap, durable=True, auto_delete=False)
    for key in ("#", queue):
        raw_channel.queue_bind(tap, queue, key)

    assert put(conventional, queue, "a") == [SendResult.CONFIRMED]

    assert drained(raw_channel, queue) == ["a"]
    assert drained(raw_channel, tap) == []
    raw_channel.exchange_delete(queue)
    raw_channel.queue_delete(tap)


def test_an_exchange_that_goes_meanwhile_leaves_no_message_behind(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, peer: str
) -> None:
    put(conventional, peer, "a")
    raw_channel.exchange_delete(peer)

    # Its channel is closed by the broker: whether a message arrived is not known.
    assert put(conventional, peer, "b") == [SendResult.UNKNOWN]
    assert put(conventional, peer, "b") == [SendResult.CONFIRMED]

    assert drained(raw_channel, peer) == ["a", "b"]


def test_a_created_queue_has_an_exchange_which_goes_with_it(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, unique: str
) -> None:
    conventional.create_queues([unique])
    conventional.create_queues([unique])
    raw_channel.confirm_select()
    raw_channel.basic_publish_confirm(amqp.Message("", message_id="a"), exchange=unique)
    assert drained(raw_channel, unique) == ["a"]

    conventional.delete_queues([unique])

    assert not has_exchange(raw_channel, unique)


def test_an_exchange_that_something_else_is_bound_to_stays(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, peer: str
) -> None:
    conventional.delete_queues([peer])

    raw_channel.basic_publish(amqp.Message("", message_id="a"), exchange=peer)
    assert drained(raw_channel, f"{peer}.tap") == ["a"]


def test_a_queue_that_was_there_before_gets_its_exchange(
    session: RabbitMQSession, conventional: RabbitMQSession, raw_channel: amqp.Channel, queue: str
) -> None:
    assert session.missing_exchanges([queue]) is None
    assert conventional.missing_exchanges([queue]) == [queue]

    conventional.create_queues([queue])

    assert conventional.missing_exchanges([queue]) == []
    raw_channel.exchange_delete(queue)


def test_an_exchange_of_another_kind_with_the_name_of_a_queue_is_refused_with_the_remedy(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, unique: str
) -> None:
    raw_channel.exchange_declare(unique, "topic", durable=True, auto_delete=False)

    with pytest.raises(ConfigurationError, match="routing_topology = 'direct'"):
        conventional.create_queues([unique])

    raw_channel.exchange_delete(unique)
    conventional.delete_queues([unique])


def test_a_bound_exchange_and_a_bound_queue_get_a_message_once(
    conventional: RabbitMQSession, raw_channel: amqp.Channel, peer: str, unique: str
) -> None:
    source = f"{unique}.source"
    raw_channel.exchange_declare(source, "topic", durable=True, auto_delete=False)

    missing = conventional.bind_queues([peer, f"{unique}.no"], source, lambda queue: queue)
    raw_channel.exchange_bind(peer, source, "#")
    raw_channel.basic_publish(amqp.Message("", message_id="a"), source, peer)

    assert missing == [f"{unique}.no"]
    assert drained(raw_channel, peer) == ["a"]
    assert drained(raw_channel, f"{peer}.tap") == ["a"]
    raw_channel.exchange_delete(source)


def test_a_routing_topology_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'direct' or 'conventional'"):
        KombuSettings(routing_topology="fanout")  # type: ignore[arg-type]  # hence refused


# --- what is known about exchanges ------------------------------------------------------------


def test_an_answer_is_asked_for_again_after_a_minute() -> None:
    clock = FakeClock()
    known = ExchangeAddresses("conventional", clock.monotonic)

    assert known.unknown(["a", "b", "a"]) == ["a", "b"]
    known.note("a", has_exchange=True)
    known.note("b", has_exchange=False)

    assert [known.exchange_of(name) for name in ("a", "b", "c")] == ["a", "", ""]
    assert known.unknown(["a", "b"]) == []
    clock.advance(60)
    assert known.unknown(["a", "b"]) == ["a", "b"]
    known.forget("NotFound")
    assert known.exchange_of("a") == ""


@pytest.mark.parametrize(
    "reason",
    [
        "message size 2000009 is larger than configured max size 1000000",
        "message size 2000009 larger than configured max size 1000000",
    ],
)
def test_the_brokers_limit_of_a_body_is_known_for_a_minute(reason: str) -> None:
    clock = FakeClock()
    known = ExchangeAddresses(None, clock.monotonic)

    assert known.largest_body(5_000_000) == 5_000_000
    known.forget(f"PreconditionFailed: Basic.publish: (406) PRECONDITION_FAILED - {reason}")
    assert known.largest_body(5_000_000) == 1_000_000
    assert known.largest_body(10) == 10
    clock.advance(60)
    assert known.largest_body(5_000_000) == 5_000_000


def test_an_exchange_that_may_not_be_written_to_is_passed_by_from_then_on(
    private_server: Callable[[str], PrivateServer], unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = cast(PrivateRabbitMQ, private_server("rabbitmq"))
    with (
        closing(KombuTransport(server.url, routing_topology="conventional")) as owner,
        closing(owner.session()) as session,
    ):
        session.create_queues([unique])
    others = f"{unique}.of-others"
    with closing(KombuTransport(server.url)) as owner, closing(owner.session()) as session:
        session.create_queues([others])
    server.control("add_user", "worker", "secret")
    server.control("set_permissions", "-p", "/", "worker", f"^{unique}$", r"amq\.default", ".*")
    limited = urlsplit(server.url)._replace(netloc=f"worker:secret@127.0.0.1:{server.port}")

    with (
        closing(KombuTransport(limited.geturl(), routing_topology="conventional")) as transport,
        closing(transport.session()) as session,
    ):
        outgoing = [Outgoing(unique, Message(id="a"))]
        assert session.send(outgoing) == [SendResult.UNKNOWN]
        assert [session.send(outgoing) for _ in range(2)] == [[SendResult.CONFIRMED]] * 2
        assert session.count(unique) == 2
        session.create_queues([others])

    found = [one for one in caplog.records if getattr(one, "event", "") == "exchange_refused"]
    assert ["write permission" in one.getMessage() for one in found] == [True, False]
    assert "may not declare" in found[1].getMessage()


def test_many_destinations_are_not_all_remembered() -> None:
    known = ExchangeAddresses("conventional")

    for number in range(10_002):
        known.note(str(number), has_exchange=True)

    assert known.unknown(["0", "10001"]) == ["0"]


@pytest.mark.parametrize(
    ("chosen", "is_on"), [(None, True), ("direct", False), ("conventional", True)]
)
def test_the_names_of_levels_decide_where_the_settings_do_not(chosen: str, is_on: bool) -> None:
    known = ExchangeAddresses(KombuSettings(routing_topology=chosen).routing_topology)  # type: ignore[arg-type]  # given

    known.follow()

    assert known.is_on is is_on
