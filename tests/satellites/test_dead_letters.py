"""A dispatcher makes dead letters of undeliverable timeouts, if the endpoint has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clock import FakeClock
from tests.support.dead_letter_node import DeadLetterNode, an_asking
from tests.support.makers import a_received, a_timeout
from tests.support.ports import FakeReceiver, FakeTransport
from tests.support.store import ScriptedStore
from timeoutmgr.contracts import SendResult, TimeoutState, TransactionMode
from timeoutmgr.deadletter import MessageClass, StoredCopy
from timeoutmgr.deadletter import delivery_headers as marks
from timeoutmgr.deadletter.manager import Quotas
from timeoutmgr.deadletter.policies import DeadLetterForwarding
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.validation import Limits
from timeoutmgr.satellites.control import chunk_message
from timeoutmgr.satellites.timeout_manager.dispatcher import ATTEMPTS, DispatchTimeouts
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.work import Work


class DispatchHarness:
    """The dispatcher's step over real stores and a simulated broker."""

    def __init__(self, url: str, quotas: Quotas) -> None:
        self.clock = FakeClock()
        self.store = ScriptedStore(self.clock)
        self.transport = FakeTransport("billing")
        self.node = DeadLetterNode(url, self.clock, quotas)
        self.step = DispatchTimeouts(
            store=self.store,
            error_queue="error",
            limits=Limits(),
            clock=self.clock,
            telemetry=Counters(),
            policy=DeadLetterForwarding(self.node.service),
        )

    def put(self, message_id: str, destination: str, **given: str) -> None:
        self.store.store_many([an_asking(message_id, destination, **given)])

    def order_due(self) -> None:
        chunk = self.store.claim(self.clock.now(), 100, "me")
        session = self.transport.session()
        mode = TransactionMode.RECEIVE_ONLY
        with Work(session, FakeReceiver(self.transport, "control"), mode) as work:
            self.step([a_received(chunk_message(chunk.token, chunk.keys, "c1"))], work)

    def dead(self) -> list[StoredCopy]:
        return self.node.dead()

    def state(self, message_id: str) -> TimeoutState | None:
        found = self.store.find(a_timeout(message_id).id)
        return None if found is None else found[0]


@pytest.fixture
def harness(sqlite_url: str) -> Iterator[DispatchHarness]:
    made = DispatchHarness(sqlite_url, Quotas())
    yield made
    made.node.close()


def test_a_message_refused_five_times_by_its_queue_was_over_the_quota(
    harness: DispatchHarness,
) -> None:
    harness.put("m1", "billing")
    harness.transport.script("billing", *[SendResult.REFUSED] * ATTEMPTS)

    for _ in range(ATTEMPTS):
        harness.order_due()
        harness.clock.advance(120)

    [copy] = harness.dead()
    assert copy.message_class == MessageClass.NACK_Q_EXCEED_QUOTA
    assert copy.attempts == ATTEMPTS
    assert harness.state("m1") is TimeoutState.FAILED
    assert harness.transport.ids("error") == []


@pytest.mark.behaviour(104)
def test_its_time_to_reach_the_queue_begins_with_the_first_attempt(
    harness: DispatchHarness,
) -> None:
    harness.put("m1", "billing", time_to_reach_queue="00:10:00")
    harness.clock.advance(1_000_000)  # it may be due for long: no attempt was made until now
    harness.transport.script("billing", *[SendResult.UNKNOWN] * 2)

    harness.order_due()
    harness.clock.advance(599)
    harness.order_due()
    assert harness.dead() == []
    harness.clock.advance(2)
    harness.order_due()

    [copy] = harness.dead()
    assert copy.message_class == MessageClass.NACK_REACH_QUEUE_TIMEOUT
    assert harness.transport.ids("billing") == []


@pytest.mark.behaviour(104)
def test_an_outage_counts_as_time_to_reach_the_queue(harness: DispatchHarness) -> None:
    harness.put("m1", "billing", time_to_reach_queue="00:10:00")
    harness.put("m2", "billing", time_to_reach_queue="01:00:00")
    harness.transport.fail("send", TransportUnavailable("is down"))
    with pytest.raises(TransportUnavailable):
        harness.order_due()

    harness.clock.advance(601)
    harness.order_due()

    dead = [(one.message.id, one.message_class, one.attempts) for one in harness.dead()]
    assert dead == [("m1", MessageClass.NACK_REACH_QUEUE_TIMEOUT, 1)]
    assert harness.transport.ids("billing") == ["m2"]


def test_a_first_attempt_is_of_one_due_time(harness: DispatchHarness) -> None:
    harness.transport.script("billing", SendResult.UNKNOWN)
    harness.put("m1", "billing", time_to_reach_queue="00:10:00")
    harness.order_due()
    timeout = a_timeout("m1")
    harness.store.reschedule(timeout.id, harness.clock.now() + 1)

    harness.clock.advance(1_000_000)
    harness.order_due()

    assert (harness.dead(), harness.transport.ids("billing")) == ([], ["m1"])


def test_neighbours_of_a_dead_letter_are_delivered(harness: DispatchHarness) -> None:
    harness.put("m1", "nowhere")
    harness.put("m2", "billing")

    harness.order_due()

    assert [copy.message.id for copy in harness.dead()] == ["m1"]
    assert harness.transport.ids("billing") == ["m2"]
    assert [harness.state(one) for one in ("m1", "m2")] == [
        TimeoutState.FAILED,
        TimeoutState.DISPATCHED,
    ]


def test_while_the_dead_letter_store_is_away_it_stays_and_neighbours_are_sent_once(
    harness: DispatchHarness,
) -> None:
    harness.put("m1", "nowhere")
    harness.put("m2", "billing")
    with harness.node.away():
        harness.order_due()

        assert harness.transport.ids("billing") == ["m2"]
        assert harness.state("m1") is TimeoutState.PENDING
        assert harness.state("m2") is TimeoutState.DISPATCHED
    harness.clock.advance(120)
    harness.order_due()
    assert [copy.message.id for copy in harness.dead()] == ["m1"]
    assert harness.transport.ids("billing") == ["m2"]


def test_a_full_node_delays_only_timeouts_that_become_dead_letters(sqlite_url: str) -> None:
    harness = DispatchHarness(sqlite_url, Quotas(node=1))
    harness.put("m1", "nowhere")
    harness.put("m2", "billing")

    harness.order_due()

    assert harness.transport.ids("billing") == ["m2"]
    assert harness.state("m1") is TimeoutState.PENDING
    assert harness.transport.ids("error") == []
    harness.node.close()


def test_the_hop_is_counted_on_the_delivered_message(harness: DispatchHarness) -> None:
    harness.put("m1", "billing")

    harness.order_due()

    [message] = harness.transport.messages("billing")
    assert message.headers[marks.HOPS] == "1"
