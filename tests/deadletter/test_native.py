"""Messages that RabbitMQ drops become dead letters with the broker's reason as class."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import amqp
import pytest
from kombu.utils.url import parse_url

from tests.deadletter.making import queues
from tests.services.private import PrivateServer
from tests.services.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.contracts.transports import TellsDeadMessages
from timeoutmgr.deadletter import (
    DeadLetterQueues,
    DeadLetterStore,
    DeliveryOptions,
    JournalLevel,
    MessageClass,
)
from timeoutmgr.deadletter.acknowledgements import ACKNOWLEDGEMENTS
from timeoutmgr.deadletter.delivery_headers import CLASS, TARGET_QUEUE, DeliveryHeaders
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.native import ExpiringQueues, class_of_death
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.errors import FeatureRefused
from timeoutmgr.message.message import Death


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


@dataclass(frozen=True, slots=True)
class Collector:
    """An endpoint that collects from ``<unique>.deadletter``, and the node of its dead letters."""

    endpoint: Endpoint
    manager: QueueManager


@pytest.fixture
def collecting(collector: Collector) -> QueueManager:
    return collector.manager


@pytest.fixture
def collector(rabbitmq_url: str, sqlite_url: str, unique: str) -> Iterator[Collector]:
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
        yield Collector(endpoint, QueueManager(store=store, node="n1"))
    with closing(config.settings().transport.session()) as session:
        names = ("", ".error", ".deadletter", ".Acknowledgements", ".doomed", ".plain")
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


@pytest.mark.behaviour(103, 104)
def test_a_message_that_asks_for_a_dead_letter_expires_where_the_broker_passes_it_on(
    collector: Collector, channel: Any, unique: str
) -> None:
    doomed, plain = f"{unique}.doomed", f"{unique}.plain"
    to_collect = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{unique}.deadletter",
    }
    channel.queue_declare(doomed, durable=True, auto_delete=False, arguments=to_collect)
    channel.queue_declare(plain, durable=True, auto_delete=False)
    asked = DeliveryOptions(journal=JournalLevel.DEADLETTER)
    limit = timedelta(milliseconds=1)
    send = partial(collector.endpoint.send, message_type="Hello", time_to_be_received=limit)

    kept = [send(plain, body=1, delivery=asked), send(doomed, body=2)]
    ended = send(doomed, body=3, delivery=asked)

    # RabbitMQ expires the first message of a queue, and this one is behind a message that stays.
    assert int(channel.queue_declare(doomed, passive=True).message_count) == 2
    assert channel.basic_get(doomed, no_ack=True).properties["message_id"] == kept[1].message_id
    dead = queues(collector.manager)[0]
    eventually(lambda: dead.count() == 1, "it is collected", 15)
    [copy] = dead.peek()
    assert (copy.message.id, copy.destination) == (ended.message_id, doomed)
    assert copy.message_class == MessageClass.NACK_RECEIVE_TIMEOUT
    stayed = channel.basic_get(plain, no_ack=True)
    assert stayed.properties["message_id"] == kept[0].message_id
    assert "expiration" not in stayed.properties


@pytest.mark.behaviour(103, 104)
@pytest.mark.slow
def test_a_policy_of_the_broker_lets_a_message_expire_into_the_dead_letter_queue(
    private_server: Callable[[str], PrivateServer], sqlite_url: str, unique: str
) -> None:
    server = cast(PrivateRabbitMQ, private_server("rabbitmq"))
    doomed, collected = f"{unique}.doomed", f"{unique}.deadletter"
    policy = {"dead-letter-exchange": "", "dead-letter-routing-key": collected}
    server.control("set_policy", "dies", f"^{doomed}$", json.dumps(policy))
    config = EndpointConfiguration(unique)
    config.use_transport(server.url, management_url=server.with_management())
    config.error_queue = f"{unique}.error"
    store = DeadLetterStore(sqlite_url)
    config.enable_feature(DeadLetterQueues(node="n1", store=store, collect_from=collected))
    dead = QueueManager(store=store, node="n1")
    with closing(Endpoint(config)) as endpoint:
        with closing(config.settings().transport.session()) as session:
            session.create_queues([doomed])
            endpoint.start()
            assert isinstance(session, TellsDeadMessages)
            # The API tells of a policy with its statistics, which come later.
            eventually(
                lambda: session.dead_messages_to(doomed) == collected, "the policy shows", 30
            )

        ended = endpoint.send(
            doomed,
            body=1,
            message_type="Hello",
            time_to_be_received=timedelta(milliseconds=1),
            delivery=DeliveryOptions(journal=JournalLevel.DEADLETTER),
        )

        eventually(lambda: queues(dead)[0].count() == 1, "it is collected", 30)
        [copy] = queues(dead)[0].peek()
    assert (copy.message.id, copy.destination) == (ended.message_id, doomed)
    assert copy.message_class == MessageClass.NACK_RECEIVE_TIMEOUT


def test_the_queue_of_an_endpoint_passes_its_dead_messages_to_the_collector(
    collector: Collector, rabbitmq_url: str, unique: str
) -> None:
    transport = transport_from_url(rabbitmq_url)
    with closing(transport), closing(transport.session()) as session:
        assert isinstance(session, TellsDeadMessages)
        found = [session.dead_messages_to(unique + name) for name in ("", ".deadletter", ".gone")]

    assert found == [f"{unique}.deadletter", f"{unique}.error", None]


@pytest.mark.behaviour(104)
def test_a_queue_is_asked_once_a_minute_whether_messages_may_expire_there() -> None:
    asked: list[str] = []
    now = [0.0]

    class Session:
        def dead_messages_to(self, queue: str) -> str:
            asked.append(queue)
            return "collected" if queue == "doomed" else "error"

        def close(self) -> None:
            return

    transport: Any = SimpleNamespace(session=Session)
    may_end = ExpiringQueues(transport, "collected", lambda: now[0])

    assert [may_end("doomed", True), may_end("plain", True), may_end("doomed", False)] == [
        True,
        False,
        False,
    ]
    may_end("doomed", True)
    assert asked == ["doomed", "plain"]
    now[0] = 60.0
    may_end("doomed", True)
    assert asked == ["doomed", "plain", "doomed"]


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
