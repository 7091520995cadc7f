"""Queues on RabbitMQ: nothing in a message stops its consumer, nothing in hand is lost."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from struct import pack
from typing import Any
from urllib.parse import urlsplit

import amqp
import pytest

from tests.transport.proxy import Proxy
from tests.transport.traffic import ids, receive, send
from timeoutmgr import headers as names
from timeoutmgr.contracts import Receiver, TransactionMode, TransportSession
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    LeaseLost,
    QueueMissing,
    TransportUnavailable,
)
from timeoutmgr.message import Message, Outgoing, Received
from timeoutmgr.transport.connection import AmqpConnection
from timeoutmgr.transport.frames import message_frames, publish_method
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.rabbitmq import RabbitMQSession
from timeoutmgr.transport.rabbitmq_receiver import RabbitMQReceiver
from timeoutmgr.transport.settings import KombuSettings


@pytest.fixture
def transport(rabbitmq_url: str) -> Iterator[KombuTransport]:
    with closing(KombuTransport(rabbitmq_url, queue_type="classic")) as transport:
        yield transport


# --- queues -----------------------------------------------------------------------------------


def test_a_created_queue_exists_and_creating_it_again_changes_nothing(
    session: TransportSession, unique: str
) -> None:
    assert session.missing_queues([unique]) == [unique]

    session.create_queues([unique])
    send(session, unique, "kept")
    session.create_queues([unique], dead_letter_to=f"{unique}.error")

    assert session.missing_queues([unique]) == []
    assert session.count(unique) == 1
    session.delete_queues([unique, f"{unique}.never"])
    assert session.missing_queues([unique]) == [unique]


def test_names_that_differ_in_case_are_two_queues(session: TransportSession, queue: str) -> None:
    assert session.missing_queues([queue.upper()]) == [queue.upper()]


def test_many_may_create_the_same_queues_at_once(transport: KombuTransport, unique: str) -> None:
    wanted = [f"{unique}.{n}" for n in range(5)]
    failures: list[Exception] = []
    together = threading.Barrier(4)

    def create() -> None:
        try:
            with closing(transport.session()) as one:
                together.wait(10)
                one.create_queues(wanted)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    with closing(transport.session()) as session:
        assert not failures
        assert session.missing_queues(wanted) == []
        session.delete_queues(wanted)


def test_by_default_a_queue_is_a_quorum_queue_that_dead_letters(
    rabbitmq_url: str, raw_channel: amqp.Channel, unique: str
) -> None:
    error = f"{unique}.error"
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([error])
        session.create_queues([unique], dead_letter_to=error)
        send(session, unique, "given-up")

        stranger = raw_channel.basic_get(unique)
        raw_channel.basic_reject(stranger.delivery_tag, requeue=False)

        with closing(session.receiver(error, prefetch=1)) as receiver:
            assert ids(receive(receiver, 1)) == ["given-up"]
        session.delete_queues([unique, error])


@pytest.mark.parametrize("name", ["", "amq.mine", "q" * 256, "é" * 128])
def test_a_name_that_no_queue_can_have_is_refused(session: TransportSession, name: str) -> None:
    with pytest.raises(ConfigurationError):
        session.create_queues([name])


def test_a_missing_queue_has_no_count_and_no_receiver(
    session: TransportSession, unique: str
) -> None:
    with pytest.raises(QueueMissing):
        session.count(unique)
    with pytest.raises(QueueMissing):
        session.receiver(unique, prefetch=1)

    session.ping()


# --- what is in a message ---------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    message = Message(
        id="ä" * 127,
        headers={"Grüße": "Ω", "empty": "", names.CORRELATION_ID: "c" * 300},
        body=b"\x00\xff\x1f\x8b",
        content_type="application/x-thing",
        content_encoding="binary",
    )

    session.send([Outgoing(queue, message)])

    (received,) = receiver.receive(1, 5)
    assert received == Received(message=message, queue=queue, tag=None)


def test_properties_tell_strangers_what_our_headers_say(
    session: TransportSession, queue: str, raw_channel: amqp.Channel
) -> None:
    told = {
        names.CORRELATION_ID: "correlation",
        names.REPLY_TO: "replies",
        names.ENCLOSED_MESSAGE_TYPES: "Sales.OrderPlaced",
    }

    session.send([Outgoing(queue, Message(id="1", headers=told))])

    properties = raw_channel.basic_get(queue, no_ack=True).properties
    assert properties == {
        "message_id": "1",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "correlation_id": "correlation",
        "reply_to": "replies",
        "type": "Sales.OrderPlaced",
        "application_headers": told,
    }


def test_headers_that_steer_a_broker_are_dropped_on_the_way_out(
    session: TransportSession, queue: str, receiver: Receiver, unique: str
) -> None:
    elsewhere = f"{unique}.elsewhere"
    session.create_queues([elsewhere])
    steering = {"CC": elsewhere, "bcc": elsewhere, "X-Death": "1", "Compression": "zlib"}

    session.send([Outgoing(queue, Message(id="1", headers={**steering, "kept": "yes"}))])

    (received,) = receiver.receive(1, 5)
    assert received.message.headers == {"kept": "yes"}
    assert session.count(elsewhere) == 0
    session.delete_queues([elsewhere])


def test_headers_that_steer_a_broker_are_dropped_on_the_way_in(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver
) -> None:
    steering = {"CC": [f"{queue}.other"], "x-death": [{"count": 3}], "x-delay": 5}

    raw_channel.basic_publish(
        amqp.Message("", application_headers={**steering, "kept": "yes"}), routing_key=queue
    )

    (received,) = receiver.receive(1, 5)
    assert received.message.headers == {"kept": "yes"}
    assert received.defect is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "True"), (42, "42"), (-(2**40), "-1099511627776"), (1.5, "1.5"), (b"bytes", "bytes")],
)
def test_a_plain_header_value_becomes_text(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver, value: object, text: str
) -> None:
    raw_channel.basic_publish(
        amqp.Message("", application_headers={"value": value}), routing_key=queue
    )

    (received,) = receiver.receive(1, 5)
    assert received.message.headers == {"value": text}
    assert received.defect is None


@pytest.mark.parametrize(
    "properties",
    [
        {"application_headers": {"value": b"\xff\xfe"}},
        {"application_headers": {b"\xff": "value"}},
        {"application_headers": {"value": {"nested": "table"}}},
        {"application_headers": {"value": ["a", "list"]}},
        {"application_headers": {"value": None}},
        {"message_id": b"\xff"},
        {"content_encoding": b"\xff"},
        {"reply_to": b"\xff", "application_headers": {"value": "readable"}},
    ],
)
def test_an_unreadable_envelope_is_a_defect_and_the_body_is_whole(
    raw_channel: amqp.Channel,
    session: TransportSession,
    queue: str,
    receiver: Receiver,
    properties: dict[str, Any],
) -> None:
    raw_channel.basic_publish(amqp.Message(b"\x00body", **properties), routing_key=queue)
    raw_channel.basic_publish(amqp.Message("next", message_id="next"), routing_key=queue)

    defective, behind = receive(receiver, 2)
    assert defective.defect
    assert defective.message.body == b"\x00body"
    assert behind.message.id == "next"


def test_a_table_nested_beyond_reason_is_a_defect(
    rabbitmq_url: str, queue: str, receiver: Receiver
) -> None:
    table = b""
    for _ in range(3000):
        table = b"\x01nF" + pack(">I", len(table)) + table
    header = pack(">HHQH", 60, 0, 4, 0x2000) + pack(">I", len(table)) + table
    stranger = AmqpConnection(rabbitmq_url, KombuSettings())
    channel = stranger.channel()

    stranger.write(
        message_frames(channel.channel_id, publish_method(queue), header, b"body", 131_072)
    )

    (received,) = receiver.receive(1, 10)
    assert received.defect
    assert received.message.body == b"body"
    stranger.close()


def test_a_routing_key_that_is_no_text_stops_nobody(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver
) -> None:
    raw_channel.queue_bind(queue, "amq.fanout")

    raw_channel.basic_publish(
        amqp.Message("", message_id="1"), exchange="amq.fanout", routing_key=b"\xff\xfe"
    )

    (received,) = receiver.receive(1, 5)
    assert received.message.id == "1"


def test_a_compressed_or_encoded_body_is_not_touched(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver
) -> None:
    body = gzip.compress(bytes(1000))

    raw_channel.basic_publish(
        amqp.Message(
            body,
            content_type="application/x-python-serialize",
            content_encoding="latin-1",
            application_headers={"compression": "application/x-gzip"},
        ),
        routing_key=queue,
    )

    (received,) = receiver.receive(1, 5)
    assert received.message.body == body
    assert received.message.content_type == "application/x-python-serialize"
    assert received.message.headers == {}


def test_the_id_in_the_header_comes_before_the_property(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver
) -> None:
    raw_channel.basic_publish(
        amqp.Message("", message_id="property", application_headers={names.MESSAGE_ID: "header"}),
        routing_key=queue,
    )

    assert ids(receiver.receive(1, 5)) == ["header"]


def test_our_own_id_is_the_one_that_arrives(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    copy = Message(id="mine", headers={names.MESSAGE_ID: "original"})

    session.send([Outgoing(queue, copy)])

    assert ids(receiver.receive(1, 5)) == ["mine"]


def test_a_message_without_an_id_has_the_same_one_when_it_is_redelivered(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver
) -> None:
    for n in (1, 2):
        raw_channel.basic_publish(
            amqp.Message("same", application_headers={"n": n}), routing_key=queue
        )

    first = receive(receiver, 2)
    receiver.release(first)
    second = receive(receiver, 2)

    assert ids(first) == ids(second)
    assert len(set(ids(first))) == 2


# --- in whose hands it is ---------------------------------------------------------------------


def test_what_is_acknowledged_is_gone_and_what_is_not_comes_back(
    session: TransportSession, queue: str
) -> None:
    send(session, queue, *"abcdef")

    with closing(session.receiver(queue, prefetch=10)) as receiver:
        received = receive(receiver, 6)
        receiver.ack([received[0], received[1], received[4]])
        receiver.ack([received[0]])

    with closing(session.receiver(queue, prefetch=10)) as receiver:
        back = receive(receiver, 3)
        assert ids(back) == ["c", "d", "f"]
        assert [one.delivery_count for one in back] == [1, 1, 1]
        receiver.ack(back)
    assert session.count(queue) == 0


def test_what_is_released_comes_back_at_once_and_in_order(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    send(session, queue, *"abc")
    received = receive(receiver, 3)

    receiver.release(received[1:])

    assert ids(receive(receiver, 2)) == ["b", "c"]


def test_an_acknowledgement_of_what_was_received_leaves_what_is_only_buffered(
    session: TransportSession, queue: str
) -> None:
    send(session, queue, *(str(n) for n in range(20)))

    with closing(session.receiver(queue, prefetch=20)) as receiver:
        receiver.ack(receive(receiver, 5))

    with closing(session.receiver(queue, prefetch=20)) as receiver:
        assert ids(receive(receiver, 15)) == [str(n) for n in range(5, 20)]


def test_a_quorum_queue_counts_deliveries(rabbitmq_url: str, unique: str) -> None:
    with (
        closing(KombuTransport(rabbitmq_url, queue_type="quorum")) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        send(session, unique, "1")
        with closing(session.receiver(unique, prefetch=1)) as receiver:
            counts = []
            for _ in range(3):
                (received,) = receive(receiver, 1)
                counts.append(received.delivery_count)
                receiver.release([received])
        session.delete_queues([unique])

    assert counts == [0, 1, 2]


def test_no_more_than_the_limit_is_returned_and_the_rest_stays_buffered(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    send(session, queue, *"abcd")

    assert ids(receive(receiver, 3)) == ["a", "b", "c"]
    assert ids(receive(receiver, 1)) == ["d"]
    assert receiver.receive(1, 0) == []


def test_the_prefetch_bounds_what_is_in_hand(session: TransportSession, queue: str) -> None:
    send(session, queue, *"abcd")

    with closing(session.receiver(queue, prefetch=2)) as receiver:
        received = receive(receiver, 2)
        assert receiver.receive(10, 0.1) == []
        assert session.count(queue) == 2

        receiver.ack(received)
        assert ids(receive(receiver, 2)) == ["c", "d"]


def test_an_interrupt_ends_a_wait(receiver: Receiver) -> None:
    began = threading.Event()

    def interrupt() -> None:
        began.wait(10)
        receiver.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    start = time.monotonic()
    began.set()

    assert receiver.receive(1, 30) == []
    assert time.monotonic() - start < 5
    thread.join()
    assert receiver.receive(1, 0.01) == []


def test_an_interrupt_loses_no_message(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    send(session, queue, "a")

    receiver.interrupt()

    assert ids(receive(receiver, 1)) == ["a"]


# --- when the way is lost ---------------------------------------------------------------------


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[Proxy]:
    parts = urlsplit(rabbitmq_url)
    with Proxy((parts.hostname or "127.0.0.1", parts.port or 5672)) as proxy:
        yield proxy


@pytest.fixture
def far_url(rabbitmq_url: str, proxy: Proxy) -> str:
    parts = urlsplit(rabbitmq_url)
    netloc = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
    return parts._replace(netloc=netloc).geturl()


@pytest.fixture
def far_session(far_url: str) -> Iterator[TransportSession]:
    with (
        closing(KombuTransport(far_url, confirm_timeout=timedelta(seconds=2))) as transport,
        closing(transport.session()) as session,
    ):
        yield session


def test_a_receiver_connects_again_and_what_was_in_hand_comes_back(
    far_session: TransportSession, proxy: Proxy, session: TransportSession, queue: str
) -> None:
    send(session, queue, "a", "b")
    with closing(far_session.receiver(queue, prefetch=10)) as receiver:
        before = receive(receiver, 2)
        proxy.cut()

        with pytest.raises(TransportUnavailable):
            receiver.receive(1, 5)
        after = receive(receiver, 2)
        with pytest.raises(LeaseLost):
            receiver.ack(before)
        receiver.release(before)
        receiver.ack(after)

    assert ids(after) == ["a", "b"]
    assert session.count(queue) == 0


def test_an_acknowledgement_on_a_lost_connection_is_not_taken_for_done(
    far_session: TransportSession, proxy: Proxy, session: TransportSession, queue: str
) -> None:
    send(session, queue, "a")
    with closing(far_session.receiver(queue, prefetch=10)) as receiver:
        received = receive(receiver, 1)
        proxy.cut()
        with pytest.raises(TransportUnavailable):
            receiver.receive(1, 5)

        with pytest.raises(LeaseLost):
            receiver.ack(received)
        receiver.release(received)


def test_a_deleted_queue_ends_its_receiver(session: TransportSession, unique: str) -> None:
    session.create_queues([unique])
    with closing(session.receiver(unique, prefetch=1)) as receiver:
        session.delete_queues([unique])

        with pytest.raises(TransportUnavailable):
            receiver.receive(1, 10)
        with pytest.raises(QueueMissing):
            receiver.receive(1, 10)


def test_a_receiver_that_is_closed_says_so(session: TransportSession, queue: str) -> None:
    receiver = session.receiver(queue, prefetch=1)
    receiver.close()
    receiver.close()

    receiver.interrupt()
    with pytest.raises(TransportUnavailable):
        receiver.receive(1, 0)


def test_heartbeats_keep_a_receiver_whose_thread_is_busy(
    far_url: str, proxy: Proxy, session: TransportSession, queue: str
) -> None:
    settings = KombuSettings(heartbeat=timedelta(seconds=1))
    send(session, queue, "slow")
    with (
        closing(KombuTransport(far_url, settings=settings)) as transport,
        closing(transport.session()) as ours,
        closing(ours.receiver(queue, prefetch=1)) as receiver,
    ):
        received = receive(receiver, 1)

        proxy.wait_for_writes(7)  # a slow handler: the broker's patience is two heartbeats

        receiver.ack(received)
        assert receiver.receive(1, 0.1) == []
    assert proxy.connections == 1
    assert session.count(queue) == 0


def test_a_sender_notices_that_the_broker_gave_it_up_while_idle(
    far_url: str, proxy: Proxy, queue: str
) -> None:
    settings = KombuSettings(heartbeat=timedelta(seconds=1))
    # Without the transport there is nobody who looks after its heartbeats.
    with closing(RabbitMQSession(lambda: AmqpConnection(far_url, settings), settings)) as session:
        send(session, queue, "before")
        proxy.wait_for_server_to_leave()

        send(session, queue, "after")

        assert session.count(queue) == 2
    assert proxy.connections == 2


def test_a_receiver_without_help_beats_while_it_waits(rabbitmq_url: str, queue: str) -> None:
    settings = KombuSettings(heartbeat=timedelta(seconds=1))
    with closing(
        RabbitMQReceiver(lambda: AmqpConnection(rabbitmq_url, settings), queue, 1)
    ) as receiver:
        assert receiver.receive(1, 4) == []
        assert receiver.receive(1, 0) == []


# --- the transport ----------------------------------------------------------------------------


def test_the_transport_says_what_it_can_and_hides_its_password(
    transport: KombuTransport, rabbitmq_url: str
) -> None:
    assert transport.capabilities.durable
    assert transport.capabilities.modes == {TransactionMode.NONE, TransactionMode.RECEIVE_ONLY}
    assert transport.database is None
    assert transport.ddl() == ""
    assert f":{urlsplit(rabbitmq_url).password}@" not in transport.describe()
    transport.install()
    transport.check()


def test_there_is_no_transaction_with_a_database(session: TransportSession) -> None:
    with pytest.raises(CombinationRefused):
        session.transaction()


def test_check_says_when_there_is_no_broker() -> None:
    with (
        closing(KombuTransport("amqp://guest:sesame@127.0.0.1:1//")) as transport,
        pytest.raises(TransportUnavailable),
    ):
        transport.check()


def test_of_several_brokers_the_first_that_answers_is_taken(rabbitmq_url: str) -> None:
    with closing(KombuTransport(f"amqp://guest:guest@127.0.0.1:1//;{rabbitmq_url}")) as transport:
        transport.check()
