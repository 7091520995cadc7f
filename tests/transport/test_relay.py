"""The number of bytes that a relay holds at once, on a real RabbitMQ."""

from __future__ import annotations

from contextlib import closing

import amqp
import pytest

from tests.support.waiting import eventually
from timeoutmgr.contracts import SendResult
from timeoutmgr.message.message import Message, Received
from timeoutmgr.transport.amqp import relay as relays
from timeoutmgr.transport.amqp.frames import RawContent
from timeoutmgr.transport.amqp.relay import Relayed
from timeoutmgr.transport.kombu_transport import KombuTransport

BODY = 100_000
MESSAGES = 25


def test_large_bodies_come_in_bounded_batches_and_all_arrive(
    raw_channel: amqp.Channel, rabbitmq_url: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "MOST_BYTES", 10 * BODY)
    raw_channel.queue_declare(unique, auto_delete=False)
    for number in range(MESSAGES):
        body = number.to_bytes(2) + bytes(BODY)
        raw_channel.basic_publish(amqp.Message(body, message_id=f"{number}"), "", unique)
    transport = KombuTransport(rabbitmq_url)

    with closing(transport), closing(transport.relay(unique, prefetch=1_000)) as relay:
        batches: list[list[Relayed]] = []
        while sum(map(len, batches)) < MESSAGES:
            batch = relay.receive(1_000, 20)
            assert batch, "the messages wait, and there is no other receiver"
            batches.append(batch)
            relay.ack(batch)
        with closing(transport.session()) as session:
            eventually(lambda: session.count(unique) == 0, "all are settled", 20)

    sizes = [sum(len(one.received.message.body) for one in batch) for batch in batches]
    assert max(sizes) <= 13 * BODY  # the relay accepts all messages of a single read
    numbers = [int.from_bytes(one.received.message.body[:2]) for part in batches for one in part]
    assert numbers == list(range(MESSAGES))


def test_a_relay_waits_for_the_end_of_an_alarm_on_one_connection(
    raw_channel: amqp.Channel, rabbitmq_url: str, unique: str
) -> None:
    raw_channel.queue_declare(unique, auto_delete=False)
    received = Received(message=Message(id="m1"), queue=unique, tag=1)
    publishing = Relayed(received, {}, RawContent(message_id="m1")).publishing("", unique, {})
    transport = KombuTransport(rabbitmq_url)
    with closing(transport), closing(transport.relay(unique, prefetch=1)) as relay:
        assert relay.publish([publishing]) == [SendResult.CONFIRMED]
        assert relay._sending is not None
        connection, window = relay._sending
        connection.blocked = True  # as the broker says at an alarm
        window._give_up("no confirm came")

        during = [relay.publish([publishing]) for _ in range(2)]
        assert (relay._sending, connection.broken) == ((connection, window), None)
        connection.blocked = False

        assert during == [[SendResult.REFUSED]] * 2
        assert relay.publish([publishing]) == [SendResult.CONFIRMED]
        assert connection.broken == "its confirms are not to be trusted"


def test_a_message_with_the_user_of_its_producer_is_published_by_another_user() -> None:
    content = RawContent(message_id="m1", user_id="producer", expiration="60000", priority=3)
    received = Received(message=Message(id="m1"), queue="q", tag=1, delivery_count=0, defect=None)
    relayed = Relayed(received, {}, content)

    published = relayed.publishing("", "q", {})

    read = amqp.basic_message.Message()
    read._load_properties(amqp.spec.Basic.CLASS_ID, published.header, 12)
    assert (read.properties["message_id"], read.properties["priority"]) == ("m1", 3)
    assert not {"user_id", "expiration"} & read.properties.keys()
