"""Levels that are shared with other programs: each may declare them after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import amqp
import kombu as kombu_package
import pytest
from kombu.transport import native_delayed_delivery as kombus_helper

from tests.native.fleet import Fleet
from timeoutmgr.native.infrastructure import DelayLevels, delay_topology
from timeoutmgr.native.names import CELERY, NSERVICEBUS_V1, NSERVICEBUS_V2, NameSet
from timeoutmgr.transport.amqp.session import RabbitMQSession

pytestmark = pytest.mark.usefixtures("levels_of_others_go")

kombu: Any = kombu_package  # its annotations are too few to check against
helper: Any = kombus_helper


@pytest.fixture
def prefix(unique: str, session: RabbitMQSession) -> Iterator[str]:
    """A prefix of levels for this test alone."""
    yield unique
    session.remove(delay_topology(CELERY.prefixed(unique), "quorum"))


@pytest.mark.behaviour(105, 115)
def test_kombus_levels_and_ours_of_its_names_agree(
    rabbitmq_url: str, session: RabbitMQSession, prefix: str
) -> None:
    with kombu.Connection(rabbitmq_url) as connection:
        helper.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum", prefix)
        assert session.missing(delay_topology(CELERY.prefixed(prefix))) == []
        session.declare(delay_topology(CELERY.prefixed(prefix)))
        helper.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum", prefix)


def test_we_send_to_a_celery_queue_and_celery_to_ours(fleet: Fleet, prefix: str) -> None:
    sales, inbox = fleet.with_inbox(
        fleet.native(f"{fleet.stem}.sales", names="celery", prefix=prefix)
    )
    theirs = fleet.queue(f"{fleet.stem}celery")

    with kombu.Connection(fleet.url) as connection:
        producer = kombu.Producer(connection.channel(), auto_declare=False)
        producer.publish(
            b"{}",
            exchange=kombu.Exchange(helper.level_name(0, prefix), "topic"),
            routing_key=helper.calculate_routing_key(1, f"{fleet.stem}.sales"),
            content_type="application/json",
            content_encoding="utf-8",
            message_id="from-celery",
            headers={"NServiceBus.EnclosedMessageTypes": "Task"},
        )
        exchange = kombu.Exchange(f"{fleet.stem}tasks", "topic")
        queue = kombu.Queue(theirs, exchange, routing_key=theirs)
        exchange(connection.channel()).declare()
        helper.bind_queue_to_native_delayed_delivery_exchange(connection, queue, prefix)
        sent = sales.send(theirs, "Task", {}, delay=1)

        assert [one.id for one in inbox.wait_for(1)] == ["from-celery"]
        with closing(fleet.session.receiver(theirs, prefetch=1)) as receiver:
            [received] = receiver.receive(1, 5.0)
        assert received.message.id == sent.message_id
        exchange(connection.channel()).delete()


def declared_as_dotnet_does(channel: amqp.Channel, v2: bool) -> None:
    """Declare the levels with the arguments that NServiceBus gives, written out here once more."""
    stem = "nsb.v2." if v2 else "nsb."
    for level in range(27, -1, -1):
        name = f"{stem}delay-level-{level:02}"
        after = f"{stem}delay-delivery" if level == 0 else f"{stem}delay-level-{level - 1:02}"
        arguments = {"x-message-ttl": 2**level * 1000, "x-dead-letter-exchange": after}
        if v2:
            arguments |= {
                "x-queue-type": "quorum",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            }
        else:
            arguments |= {"x-queue-mode": "lazy"}
        channel.exchange_declare(name, "topic", durable=True, auto_delete=False)
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        channel.queue_bind(name, name, "*." * (27 - level) + "1.#")
    channel.exchange_declare(f"{stem}delay-delivery", "topic", durable=True, auto_delete=False)
    for level in range(27, 0, -1):
        source, target = f"{stem}delay-level-{level:02}", f"{stem}delay-level-{level - 1:02}"
        channel.exchange_bind(target, source, "*." * (27 - level) + "0.#")
    channel.exchange_bind(f"{stem}delay-delivery", f"{stem}delay-level-00", "*." * 27 + "0.#")


@pytest.mark.behaviour(105, 115)
@pytest.mark.parametrize("names", [NSERVICEBUS_V2, NSERVICEBUS_V1], ids=lambda names: names.name)
def test_levels_of_nservicebus_and_ours_of_its_names_agree(
    names: NameSet, session: RabbitMQSession, raw_channel: amqp.Channel
) -> None:
    declared_as_dotnet_does(raw_channel, names is NSERVICEBUS_V2)

    assert session.missing(delay_topology(names)) == []
    session.declare(delay_topology(names))
    declared_as_dotnet_does(raw_channel, names is NSERVICEBUS_V2)

    session.remove(delay_topology(names))


@pytest.mark.behaviour(111)
def test_a_foreign_binding_by_suffix_also_gets_messages_of_other_endpoints(
    fleet: Fleet, raw_channel: amqp.Channel, prefix: str
) -> None:
    levels = CELERY.prefixed(prefix)
    DelayLevels(transport=fleet.transport, names=levels, queue_type="quorum").install()
    theirs = fleet.queue(f"{fleet.stem}foreign")
    raw_channel.queue_bind(theirs, levels.delivery, f"#.{fleet.stem}sales")
    _, inbox = fleet.with_inbox(
        fleet.native(f"eu.{fleet.stem}sales", names="celery", prefix=prefix)
    )
    sender = fleet.start(fleet.native(f"{fleet.stem}.sender", names="celery", prefix=prefix))

    sender.send(f"eu.{fleet.stem}sales", "Remind", {}, delay=0)

    inbox.wait_for(1)
    assert fleet.session.count(theirs) == 1  # documented: only their side can bind exactly
