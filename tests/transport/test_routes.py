"""Routes by exchanges that others own: tried alone, and forgotten before they are too many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from tests.support.makers import a_message
from timeoutmgr.contracts import SendResult, TransportSession
from timeoutmgr.message.foreign import QueueDeclaration, Route
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.amqp import session as sessions
from timeoutmgr.transport.amqp.session import RabbitMQSession


@pytest.fixture
def declared(session: TransportSession, unique: str) -> Iterator[list[str]]:
    """The names of two queues that only routes declare."""
    names = [f"{unique}-1", f"{unique}-2"]
    yield names
    session.delete_queues(names)


def by_exchange(queue: str, key: str) -> Outgoing:
    """Return a message that goes by the topic exchange to *queue*, which its route declares."""
    route = Route("amq.topic", key, (QueueDeclaration(queue, "amq.topic", "topic", key),))
    return Outgoing(route.destination, a_message(), route)


def test_a_route_declares_its_queue_although_another_route_has_its_exchange_and_key(
    session: TransportSession, declared: list[str], unique: str
) -> None:
    for name in declared:
        assert session.send([by_exchange(name, unique)]) == [SendResult.CONFIRMED]

    assert [session.count(name) for name in declared] == [2, 1]


def test_a_queue_of_a_route_that_was_deleted_is_declared_again(
    session: TransportSession, declared: list[str], queue: str
) -> None:
    [name, _] = declared
    route = Route("", name, (QueueDeclaration(name),))
    direct, bound = Outgoing(name, a_message(), route), by_exchange(name, f"{queue}.key")
    confirmed = [SendResult.CONFIRMED] * 3
    assert session.send([direct, bound, Outgoing(queue, a_message())]) == confirmed
    session.delete_queues([name])

    assert session.send([direct, bound, Outgoing(queue, a_message())]) == confirmed
    assert (session.count(name), session.count(queue)) == (2, 2)


def test_a_route_that_is_not_declared_again_leaves_no_other_message_unroutable(
    session: TransportSession, declared: list[str], queue: str
) -> None:
    arguments: dict[str, object] = {}
    batch = [
        Outgoing(name, a_message(), Route("", name, (QueueDeclaration(name, arguments=each),)))
        for name, each in zip(declared, [{}, arguments], strict=True)
    ]
    assert session.send(batch) == [SendResult.CONFIRMED] * 2
    session.delete_queues(declared)
    arguments["x-expires"] = "the broker refuses it by now"

    results = session.send([*batch, Outgoing(queue, a_message())])

    assert results == [SendResult.CONFIRMED, SendResult.UNROUTABLE, SendResult.CONFIRMED]


def test_a_route_that_may_not_be_used_leaves_no_other_message_in_doubt(
    session: TransportSession, queue: str
) -> None:
    internal = Route("amq.rabbitmq.trace", "key")  # nobody may publish to it

    results = session.send(
        [
            Outgoing(queue, a_message("m1")),
            Outgoing(internal.destination, a_message("m2"), internal),
            Outgoing(queue, a_message("m3")),
            Outgoing(internal.destination, a_message("m4"), internal),
        ]
    )

    assert results == [SendResult.CONFIRMED, SendResult.UNROUTABLE] * 2
    assert session.send([Outgoing(queue, a_message("m5"))]) == [SendResult.CONFIRMED]


def test_the_routes_of_a_program_with_a_key_for_each_message_are_forgotten(
    session: TransportSession, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST_ROUTES", 3)
    routes = [Route("amq.topic", f"{queue}.{number}") for number in range(10)]

    results = session.send([Outgoing(one.destination, a_message(), one) for one in routes])

    assert set(results) == {SendResult.UNROUTABLE}  # no queue is bound
    assert len(cast(RabbitMQSession, session)._routes) <= 3
