"""The levels on the broker: as written down in golden.json, and on a real broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import amqp
import pytest

from timeoutmgr.contracts import SendResult, Topology
from timeoutmgr.contracts.transports import Queue
from timeoutmgr.errors import ConfigurationError, QueueMissing, TopologyMismatch
from timeoutmgr.message.message import NO_NUMBERS, Message, Outgoing
from timeoutmgr.native.infrastructure import delay_topology, unroutable_topology
from timeoutmgr.native.levels import binding_key, routing_key
from timeoutmgr.native.names import CELERY, NAME_SETS, OURS, NameSet, name_set
from timeoutmgr.transport.amqp.session import RabbitMQSession

GOLDEN = Path(__file__).parent / "golden.json"


def described(topology: Topology) -> dict[str, Any]:
    return {
        "exchanges": [[one.name, one.kind, dict(one.arguments)] for one in topology.exchanges],
        "queues": [
            [one.name, None if one.arguments is None else dict(one.arguments)]
            for one in topology.queues
        ],
        "bindings": [
            [one.source, one.target, one.key, "exchange" if one.to_exchange else "queue"]
            for one in topology.bindings
        ],
    }


@pytest.mark.behaviour(105)
def test_names_arguments_and_bindings_match_the_golden_file() -> None:
    now = {
        f"{names.name}, {kind}": described(delay_topology(names, kind))
        for names in NAME_SETS.values()
        for kind in names.queue_types
    }
    now["unroutable"] = described(unroutable_topology())

    assert now == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_celerys_names_get_kombus_prefix() -> None:
    names = CELERY.prefixed("shop")

    assert names.level_name(3) == "shop_celery_delayed_3"
    assert names.delivery == "shop_celery_delayed_delivery"
    assert CELERY.prefixed("") is CELERY
    assert CELERY.prefixed("{shop}").level_name(3) == "{shop}_celery_delayed_3"
    with pytest.raises(ConfigurationError, match="prefix"):
        OURS.prefixed("shop")


def test_an_unknown_name_set_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'nservicebus-v2'"):
        name_set("nservicebus-v3")


def test_a_queue_type_that_the_names_do_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="quorum queues, got 'classic'"):
        delay_topology(name_set("nservicebus-v2"), "classic")


# --- on a broker ------------------------------------------------------------------------------


@pytest.mark.behaviour(115)
def test_declaring_twice_changes_nothing_and_removing_leaves_nothing(
    session: RabbitMQSession, unique: str
) -> None:
    names = NameSet(
        name="own",
        level=f"{unique}.level-{{}}",
        delivery=f"{unique}.delivery",
        arguments=OURS.arguments,
    )
    levels = delay_topology(names)
    assert len(session.missing(levels)) == 29

    session.declare(levels)
    session.declare(levels)

    assert session.missing(levels) == []
    session.remove(levels)
    session.remove(levels)
    assert len(session.missing(levels)) == 29
    queues = [queue.name for queue in levels.queues]
    assert session.missing_queues(queues) == queues


@pytest.mark.behaviour(115)
def test_other_arguments_are_reported_with_the_name_and_the_words_of_the_broker(
    session: RabbitMQSession, levels: RabbitMQSession
) -> None:
    with pytest.raises(TopologyMismatch, match=r"delay-level-27' exists.*x-queue-type|x-dead"):
        session.declare(delay_topology(OURS, "classic"))

    assert session.missing(delay_topology(OURS)) == []  # the session goes on


def test_an_argument_that_the_type_of_a_queue_excludes_is_no_difference_from_an_existing_queue(
    session: RabbitMQSession, unique: str
) -> None:
    # As the broker reads a level of nservicebus-v1 where the default queue type is quorum.
    level = Queue(unique, {"x-queue-mode": "lazy", "x-queue-type": "quorum"})

    with pytest.raises(ConfigurationError, match=r"invalid arg.*default queue type") as refused:
        session.declare(Topology(queues=(level,)))

    assert "exists" not in str(refused.value)


def test_a_queue_is_bound_only_if_it_exists_and_so_must_the_exchange(
    levels: RabbitMQSession, unique: str
) -> None:
    levels.create_queues([unique])

    assert levels.bind_queues([unique, f"{unique}.no"], OURS.delivery, binding_key) == [
        f"{unique}.no"
    ]
    with pytest.raises(QueueMissing, match="timeoutmgr install"):
        levels.bind_queues([unique], f"{unique}.no", binding_key)
    levels.delete_queues([unique])


@pytest.mark.behaviour(111)
def test_the_delivery_exchange_gives_a_message_to_its_own_queue_alone(
    levels: RabbitMQSession, raw_channel: amqp.Channel, unique: str
) -> None:
    queues = [unique, f"eu.{unique}", f"eu.{unique}.{unique}"]
    levels.create_queues(queues)
    assert levels.bind_queues(queues, OURS.delivery, binding_key) == []

    for queue in queues:
        raw_channel.basic_publish(amqp.Message(queue), OURS.delivery, routing_key(0, queue))
    levels.ping()

    for queue in queues:
        found = []
        while (message := raw_channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message.body)
        assert found == [queue]
    levels.delete_queues(queues)


class Through:
    """A way through an exchange that a test says."""

    def __init__(self, exchange: str, key: str) -> None:
        self._address = exchange, key

    def address(self) -> tuple[str, str]:
        return self._address

    def numbers(self, _message: Message) -> Mapping[str, int]:
        return NO_NUMBERS


def test_a_message_that_no_exchange_is_there_for_is_refused_and_the_session_goes_on(
    session: RabbitMQSession, unique: str
) -> None:
    session.create_queues([unique])
    lost = Outgoing(unique, Message(id="m1"), Through(f"{unique}.no", "key"))

    assert session.send([lost]) == [SendResult.REFUSED]

    assert session.send([Outgoing(unique, Message(id="m2"))]) == [SendResult.CONFIRMED]
    session.delete_queues([unique])
