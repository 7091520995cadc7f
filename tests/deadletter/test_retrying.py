"""A failed retry leaves the dead letter, and two retries at once send each dead letter once."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.deadletter.making import Nodes, ids, queues
from tests.support.makers import a_message
from tests.support.ports import FakeTransport
from timeoutmgr.contracts.dead_letters import AcknowledgeLevel, DeliveryOptions, MessageClass
from timeoutmgr.deadletter.manager import Quotas
from timeoutmgr.deadletter.queues import StoredCopyQueue
from timeoutmgr.deadletter.retry import Retry, retry
from timeoutmgr.deadletter.service import DeadLetterService, JournalingRules
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Outgoing, with_headers
from timeoutmgr.message.validation import Limits
from timeoutmgr.telemetry import Counters


class DeadOrders:
    """Transactional messages for a queue of a broker, which are dead letters of a node now."""

    def __init__(self, nodes: Nodes, *names: str) -> None:
        self.transport = FakeTransport("billing", "answers")
        self.service = DeadLetterService(
            manager=nodes.manager(),
            endpoint="sales",
            rules=JournalingRules(dead_letter=True),
            clock=nodes.clock,
            telemetry=Counters(),
            limits=Limits(),
            joins=False,
        )
        options = DeliveryOptions(
            transactional=True,
            acknowledge=AcknowledgeLevel.FULL_REACH_QUEUE,
            admin_queue="answers",
        )
        asked = self.service.delivery_headers(options, {}, "billing")
        for name in names:
            self.service.before_sending([Outgoing("billing", with_headers(a_message(name), asked))])
            self.service.manager.acknowledge((name, "billing"), MessageClass.NACK_Q_PURGED)
        self.queue: StoredCopyQueue = queues(self.service.manager)[1]
        self.listed = self.queue.peek()

    def retry(self) -> list[Retry]:
        """Retry the dead letters of the first list, as a second command does with the same list."""
        done = retry(self.transport, self.service, self.queue, self.listed)
        return [each.what for each in done]

    @property
    def awaiting(self) -> int:
        """The bytes of copies that await their final acknowledgement."""
        with self.service.manager.store.database.begin() as transaction:
            return self.service.manager.lock(transaction).of("awaiting")


def test_a_retry_whose_send_fails_leaves_the_dead_letter_in_its_queue(nodes: Nodes) -> None:
    orders = DeadOrders(nodes, "a", "b")
    orders.transport.fail("send", TransportUnavailable("the broker is away"))

    with pytest.raises(TransportUnavailable):
        orders.retry()

    assert ids(orders.queue) == ["a", "b"]
    assert orders.awaiting == 0


def test_a_second_retry_of_the_same_dead_letters_sends_nothing(nodes: Nodes) -> None:
    orders = DeadOrders(nodes, "a", "b")

    assert orders.retry() == [Retry.RETRIED] * 2
    assert orders.retry() == [Retry.MISSING] * 2
    assert orders.transport.ids("billing") == ["a", "b"]


def test_the_arrival_of_a_retried_message_is_acknowledged_once(nodes: Nodes) -> None:
    orders = DeadOrders(nodes, "a")

    orders.retry()
    orders.retry()

    assert len(orders.transport.ids("answers")) == 1


def test_dead_letters_are_retried_on_a_node_over_its_quota(nodes: Nodes) -> None:
    dead = DeadOrders(nodes, "m1", "m2")
    lowered = replace(dead.service.manager, quotas=Quotas(node=1))
    dead.service = replace(dead.service, manager=lowered)

    assert dead.retry() == [Retry.RETRIED] * 2


def test_two_retries_at_once_send_each_dead_letter_once(nodes: Nodes) -> None:
    orders = DeadOrders(nodes, *(f"{n:02}" for n in range(20)))
    start = threading.Barrier(2)

    def command() -> None:
        start.wait()
        orders.retry()

    commands = [threading.Thread(target=command) for _ in range(2)]
    for each in commands:
        each.start()
    for each in commands:
        each.join()

    assert sorted(orders.transport.ids("billing")) == [f"{n:02}" for n in range(20)]


def test_a_retried_transactional_message_awaits_its_final_acknowledgement(nodes: Nodes) -> None:
    orders = DeadOrders(nodes, "a")

    orders.retry()

    assert (ids(orders.queue), orders.awaiting > 0) == ([], True)
