"""Messages that RabbitMQ drops become dead letters with the broker's reason as class."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import amqp
import pytest
from kombu.utils.url import parse_url

from tests.deadletter.making import queues
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.deadletter import DeadLetterQueues, DeadLetterStore, JournalLevel, MessageClass
from timeoutmgr.deadletter.acknowledgements import ACKNOWLEDGEMENTS
from timeoutmgr.deadletter.delivery_headers import CLASS, TARGET_QUEUE, DeliveryHeaders
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.native import class_of_death
from timeoutmgr.errors import FeatureRefused
from timeoutmgr.message.message import Death
from timeoutmgr.testing.signals import eventually


@pytest.mark.behaviour(104)
@pytest.mark.parametrize(
    ("queue", "reason", "ended"),
    [
        ("billing", "rejected", MessageClass.NACK_RECEIVE_REJECTED),
        ("billing", "delivery_limit", MessageClass.NACK_RECEIVE_REJECTED),
        ("billing", "expired", MessageClass.NACK_RECEIVE_TIMEOUT),
        ("nsb.v2.delay-level-03", "expired", MessageClass.NACK_REACH_QUEUE_TIMEOUT),
        ("billing", "maxlen", MessageClass.NACK_Q_EXCEED_QUOTA),
        ("billing", "something new", MessageClass.NACK_RECEIVE_REJECTED),
    ],
)
def test_the_brokers_reasons_are_classes(queue: str, reason: str, ended: MessageClass) -> None:
    assert class_of_death(Death(queue, reason)) is ended


@pytest.fixture
def channel(rabbitmq_url: str) -> Iterator[Any]:
    parts = parse_url(rabbitmq_url)
    connection = amqp.Connection(
        f"{parts['hostname']}:{parts['port']}",
        userid=parts["userid"],
        password=parts["password"],
        virtual_host=parts["virtual_host"],
    )
    connection.connect()
    with closing(connection):
        yield connection.channel()


@pytest.fixture
def collecting(rabbitmq_url: str, sqlite_url: str, unique: str) -> Iterator[QueueManager]:
    """An endpoint that collects from ``<unique>.deadletter``; what it placed is looked at."""
    config = EndpointConfiguration(unique)
    config.use_transport(rabbitmq_url, queue_type="classic")
    config.error_queue = f"{unique}.error"
    store = DeadLetterStore(sqlite_url)
    config.enable_feature(
        DeadLetterQueues(node="n1", store=store, collect_from=f"{unique}.deadletter")
    )
    endpoint = Endpoint(config)
    with closing(endpoint):
        endpoint.start()
        yield QueueManager(store=store, node="n1")
    with closing(config.settings().transport.session()) as session:
        names = ("", ".error", ".deadletter", ".Acknowledgements", ".doomed")
        session.delete_queues([f"{unique}{name}" for name in names])


def test_a_message_dropped_by_the_broker_is_collected_with_its_reason(
    collecting: QueueManager, channel: Any, unique: str
) -> None:
    doomed = f"{unique}.doomed"
    channel.queue_declare(
        doomed,
        durable=True,
        auto_delete=False,
        arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{unique}.deadletter",
            "x-max-length": 1,
            "x-overflow": "drop-head",
        },
    )
    for name, more in (("full", {}), ("late", {"expiration": "1"})):
        body = amqp.Message(name.encode(), message_id=name, content_type="text/plain", **more)
        channel.basic_publish(body, routing_key=doomed)

    dead = queues(collecting)[0]
    eventually(lambda: dead.count() == 2, "both are collected", 15)
    found = {copy.message.id: copy for copy in dead.peek()}
    assert found["full"].message_class == MessageClass.NACK_Q_EXCEED_QUOTA
    assert found["late"].message_class == MessageClass.NACK_RECEIVE_TIMEOUT
    assert {copy.destination for copy in found.values()} == {doomed}
    assert found["late"].message.body == b"late"


def test_a_message_sent_directly_to_the_collecting_queue_is_not_a_dead_letter(
    collecting: QueueManager, channel: Any, unique: str
) -> None:
    channel.basic_publish(amqp.Message(b"x", message_id="m1"), routing_key=f"{unique}.deadletter")

    def moved() -> bool:
        return int(channel.queue_declare(f"{unique}.error", passive=True).message_count) == 1

    eventually(moved, "it is in the error queue", 15)
    assert queues(collecting)[0].count() == 0


def test_a_rejected_delivery_is_of_the_receive_stage(
    collecting: QueueManager, channel: Any, unique: str
) -> None:
    doomed = f"{unique}.doomed"
    channel.queue_declare(
        doomed,
        durable=True,
        auto_delete=False,
        arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{unique}.deadletter",
        },
    )
    channel.basic_publish(amqp.Message(b"x", message_id="m1"), routing_key=doomed)
    got = threading.Event()

    def rejected() -> bool:
        message = channel.basic_get(doomed)
        if message is not None:
            channel.basic_reject(message.delivery_tag, requeue=False)
            got.set()
        return got.is_set()

    eventually(rejected, "it is rejected", 15)

    dead = queues(collecting)[0]
    eventually(lambda: dead.count() == 1, "it is collected", 15)
    assert dead.peek()[0].message_class == MessageClass.NACK_RECEIVE_REJECTED


def test_collecting_is_for_rabbitmq(sqlite_url: str) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.enable_feature(DeadLetterQueues(node="n1", collect_from="n1.deadletter"))

    with pytest.raises(FeatureRefused, match="collect_from is for RabbitMQ"):
        Endpoint(config)


def test_a_transactional_message_of_another_node_dies_where_its_source_is(
    collecting: QueueManager, channel: Any, unique: str
) -> None:
    doomed, acknowledgement_queue = f"{unique}.doomed", f"{unique}.src{ACKNOWLEDGEMENTS}"
    to_collect = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{unique}.deadletter",
    }
    channel.queue_declare(doomed, durable=True, auto_delete=False, arguments=to_collect)
    channel.queue_declare(acknowledgement_queue, durable=True, auto_delete=False)
    marks = DeliveryHeaders(
        journal=JournalLevel.DEADLETTER,
        transactional=True,
        source_node="n2",
        source_queue=f"{unique}.src",
    )
    late = amqp.Message(
        b"x", message_id="m1", expiration="1", application_headers=marks.as_headers()
    )

    channel.basic_publish(late, routing_key=doomed)

    def acknowledged() -> bool:
        return int(channel.queue_declare(acknowledgement_queue, passive=True).message_count) == 1

    eventually(acknowledged, "its source is notified", 15)
    acknowledgement = channel.basic_get(acknowledgement_queue, no_ack=True)
    channel.queue_delete(acknowledgement_queue)
    assert acknowledgement.headers[CLASS] == str(int(MessageClass.NACK_RECEIVE_TIMEOUT))
    assert acknowledgement.headers[TARGET_QUEUE] == doomed
    assert [queue.count() for queue in queues(collecting)] == [0, 0, 0]
