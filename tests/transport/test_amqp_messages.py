"""A message on RabbitMQ arrives as it was sent, and no content stops its consumer."""

from __future__ import annotations

import gzip
from struct import pack
from typing import Any

import amqp
import pytest

from tests.transport.traffic import ids, receive
from timeoutmgr.contracts import Receiver, TransportSession
from timeoutmgr.message import headers as names
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.testing.conformance.transports.suite import with_properties
from timeoutmgr.transport.amqp.connection import AmqpConnection
from timeoutmgr.transport.amqp.frames import message_frames, publish_method
from timeoutmgr.transport.settings import KombuSettings


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
    assert received == Received(message=with_properties(message), queue=queue, tag=None)


def test_amqp_properties_repeat_our_headers_for_strangers(
    session: TransportSession, queue: str, raw_channel: amqp.Channel
) -> None:
    given = {
        names.CORRELATION_ID: "correlation",
        names.REPLY_TO: "replies",
        names.ENCLOSED_MESSAGE_TYPES: "Sales.OrderPlaced",
    }

    session.send([Outgoing(queue, Message(id="1", headers=given))])

    properties = raw_channel.basic_get(queue, no_ack=True).properties
    assert properties == {
        "message_id": "1",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "correlation_id": "correlation",
        "reply_to": "replies",
        "type": "Sales.OrderPlaced",
        "application_headers": given,
    }


PLAIN = {
    "type": "Sales.OrderPlaced",
    "reply_to": "answers",
    "correlation_id": "c-1",
    "message_id": "m-1",
    "content_type": "application/json",
}
"""What a sender gives that knows AMQP alone."""
FILLED = {
    names.ENCLOSED_MESSAGE_TYPES: "Sales.OrderPlaced",
    names.REPLY_TO: "answers",
    names.CORRELATION_ID: "c-1",
    names.MESSAGE_ID: "m-1",
    names.CONTENT_TYPE: "application/json",
}


@pytest.mark.behaviour(17)
def test_properties_fill_the_headers_of_a_plain_sender(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver
) -> None:
    raw_channel.basic_publish(amqp.Message("{}", **PLAIN), routing_key=queue)

    (received,) = receiver.receive(1, 5)
    assert received.message == Message(id="m-1", headers=FILLED, body=b"{}")


@pytest.mark.parametrize("name", FILLED)
def test_a_header_outranks_its_property(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver, name: str
) -> None:
    raw_channel.basic_publish(
        amqp.Message("{}", application_headers={name: "of the header"}, **PLAIN), routing_key=queue
    )

    (received,) = receiver.receive(1, 5)
    assert received.message.headers == {**FILLED, name: "of the header"}


def test_a_message_without_properties_has_no_header_more(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver
) -> None:
    raw_channel.basic_publish(amqp.Message("{}", type="", reply_to=""), routing_key=queue)

    (received,) = receiver.receive(1, 5)
    assert received.message.headers == {}


@pytest.mark.parametrize(
    ("enclosed", "of_property"),
    [
        ("Sales.OrderPlaced", "Sales.OrderPlaced"),
        ("Sales.OrderPlaced, Sales, Version=1.0.0.0;Sales.Event, Sales", "Sales.OrderPlaced"),
        (" Sales.OrderPlaced ; Sales.Event", "Sales.OrderPlaced"),
        (f"Sales.OrderPlaced;{'x' * 300}", "Sales.OrderPlaced"),
        ("x" * 256, None),
        ("", None),
    ],
)
def test_the_type_of_a_message_is_the_first_that_it_encloses(
    session: TransportSession,
    queue: str,
    raw_channel: amqp.Channel,
    enclosed: str,
    of_property: str | None,
) -> None:
    given = {names.ENCLOSED_MESSAGE_TYPES: enclosed}

    session.send([Outgoing(queue, Message(id="1", headers=given))])

    found = raw_channel.basic_get(queue, no_ack=True)
    assert found.properties.get("type") == of_property
    assert found.headers == given


@pytest.mark.behaviour(114)
def test_what_nservicebus_notes_about_a_delay_stays_behind(
    raw_channel: amqp.Channel, session: TransportSession, queue: str, receiver: Receiver
) -> None:
    noted: dict[str, Any] = {names.DELAY_IN_SECONDS: 5, names.CONFIRMATION_ID: "17", "kept": "yes"}
    raw_channel.basic_publish(amqp.Message("", application_headers=noted), routing_key=queue)

    (received,) = receiver.receive(1, 5)
    assert received.message.headers == {"kept": "yes"}
    session.send([Outgoing(queue, Message(id="1", headers={**noted, names.DELAY_IN_SECONDS: "5"}))])
    receiver.close()
    sent = [raw_channel.basic_get(queue, no_ack=True).headers for _ in range(2)]
    assert {"kept": "yes"} in sent


def test_headers_that_steer_a_broker_are_dropped_on_the_way_out(
    session: TransportSession, queue: str, receiver: Receiver, unique: str
) -> None:
    elsewhere = f"{unique}.elsewhere"
    session.create_queues([elsewhere])
    steering = {"CC": elsewhere, "bcc": elsewhere, "X-Death": "1", "Compression": "zlib"}

    session.send([Outgoing(queue, Message(id="1", headers={**steering, "kept": "yes"}))])

    (received,) = receiver.receive(1, 5)
    assert received.message == with_properties(Message(id="1", headers={"kept": "yes"}))
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


def test_a_routing_key_that_is_not_text_stops_no_receiver(
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
    assert received.message.headers == {names.CONTENT_TYPE: "application/x-python-serialize"}


def test_the_id_in_the_header_comes_before_the_property(
    raw_channel: amqp.Channel, queue: str, receiver: Receiver
) -> None:
    raw_channel.basic_publish(
        amqp.Message("", message_id="property", application_headers={names.MESSAGE_ID: "header"}),
        routing_key=queue,
    )

    assert ids(receiver.receive(1, 5)) == ["header"]


def test_the_message_id_survives_a_header_with_another_id(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    copy = Message(id="mine", headers={names.MESSAGE_ID: "original"})

    session.send([Outgoing(queue, copy)])

    assert ids(receiver.receive(1, 5)) == ["mine"]


def test_a_message_without_an_id_keeps_its_made_up_id_on_redelivery(
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
