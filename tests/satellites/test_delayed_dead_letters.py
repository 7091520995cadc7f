"""Undeliverable messages of a delayed message store become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import select

from tests.support.clock import START, FakeClock
from tests.support.dead_letter_node import DeadLetterNode, an_asking
from tests.support.delayed import BatchStore
from tests.support.makers import SECOND, a_breaker, a_received, a_timeout
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr.contracts import SendResult, Timeout, TransactionMode
from timeoutmgr.deadletter import DeliveryOptions, MessageClass, NodeQueue
from timeoutmgr.deadletter import delivery_headers as marks
from timeoutmgr.deadletter.manager import Quotas
from timeoutmgr.deadletter.policies import DeadLetterForwarding
from timeoutmgr.errors import NodeFull, StorageUnavailable, TransportUnavailable, Unroutable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.routes import to_delayed_store
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.breakers import RateBreaker
from timeoutmgr.satellites.delayed_store.adapter import Batches, DispatchDue
from timeoutmgr.satellites.delayed_store.receiver import StoreDelayed
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.delivery_policy import Settlement, Undeliverable
from timeoutmgr.transport.work import IsolatedSends, Work

RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE


class DispatchHarness:
    """Both steps over one store in memory, a simulated broker, and real dead-letter queues."""

    def __init__(self, url: str, mode: TransactionMode, retries: int, quotas: Quotas) -> None:
        self.clock = FakeClock()
        self.store = BatchStore(self.clock)
        self.transport = FakeTransport("billing")
        self.telemetry = Counters()
        self.mode = mode
        self.node = DeadLetterNode(url, self.clock, quotas)
        batches = Batches(self.store, self.clock, 10)
        self.due = DispatchDue(
            batches=batches,
            endpoint="sales",
            error_queue="error",
            limits=Limits(),
            mode=mode,
            attempts=1 + retries,
            clock=self.clock,
            telemetry=self.telemetry,
            dispatch=a_breaker(self.clock),
            recovery=RateBreaker(
                "recovery", per_second=1, on_trigger=lambda _error: None, clock=self.clock
            ),
            policy=DeadLetterForwarding(self.node.service),
        )
        self.arriving = StoreDelayed(
            batches=batches,
            endpoint="sales",
            error_queue="error",
            attempts=1 + retries,
            limits=Limits(),
            clock=self.clock,
            telemetry=self.telemetry,
            ready=lambda: None,
            wake=lambda _due: None,
            policy=DeadLetterForwarding(self.node.service),
        )

    def dispatch(self, *timeouts: Timeout) -> None:
        """Have the due poller dispatch *timeouts*, and stored messages."""
        for one in timeouts:
            self.store.put(one)
        with closing(self.transport.session()) as session:
            self.due(session)
        self.store.free()

    def arrive(self, *timeouts: Timeout) -> None:
        """Have *timeouts* arrive in the queue of the delayed messages."""
        session = self.transport.session()
        routed = [
            to_delayed_store(Outgoing(one.destination, one.message), one.due, "sales.timeouts")
            for one in timeouts
        ]
        with Work(session, FakeReceiver(self.transport, "sales"), self.mode) as work:
            self.arriving([a_received(one.message) for one in routed], work)

    def lie_dead(self, box: NodeQueue = NodeQueue.DEADLETTER) -> dict[str, int]:
        return {one.message.id: one.message_class for one in self.node.dead(box)}

    @property
    def stored(self) -> list[str]:
        return [one.message.id for one in self.store.rows.values()]


Make = Callable[..., DispatchHarness]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[DispatchHarness] = []

    def harness(
        mode: TransactionMode = RECEIVE, *, retries: int = 0, quotas: Quotas | None = None
    ) -> DispatchHarness:
        made.append(
            DispatchHarness(f"sqlite:///{tmp_path / 'dead.db'}", mode, retries, quotas or Quotas())
        )
        return made[-1]

    yield harness

    for one in made:
        one.node.close()


WAYS = pytest.mark.parametrize("way", [DispatchHarness.dispatch, DispatchHarness.arrive])
MODES = pytest.mark.parametrize("mode", [RECEIVE, SCOPE])


@WAYS
@MODES
@pytest.mark.behaviour(64, 104)
def test_a_missing_destination_leaves_a_dead_letter_and_neighbours_are_delivered(
    make: Make, mode: TransactionMode, way: Callable[..., None]
) -> None:
    harness = make(mode, retries=3)

    way(harness, an_asking("lost", "nowhere"), an_asking("fine", "billing"))

    assert harness.lie_dead() == {"lost": MessageClass.NACK_BAD_DST_Q}
    assert harness.transport.ids("billing") == ["fine"]
    assert harness.transport.ids("error") == []
    assert harness.stored == []
    assert harness.telemetry.snapshot()["delayed_failed"] == 1


@WAYS
@pytest.mark.behaviour(100)
def test_a_message_that_asks_for_none_goes_to_the_error_queue(
    make: Make, way: Callable[..., None]
) -> None:
    harness = make()

    way(harness, a_timeout("m1", destination="nowhere"))

    assert harness.lie_dead() == {}
    assert harness.transport.ids("error") == ["m1"]
    assert harness.stored == []


@MODES
def test_the_dead_letter_is_stored_before_the_row_is_removed(
    make: Make, mode: TransactionMode
) -> None:
    harness = make(mode)
    seen: list[dict[str, int]] = []
    harness.store.after["remove"] = lambda: seen.append(harness.lie_dead())

    harness.dispatch(an_asking("lost", "nowhere"))

    assert seen == [{"lost": MessageClass.NACK_BAD_DST_Q}]


@pytest.mark.behaviour(90)
@pytest.mark.parametrize("retries", [0, 2])
def test_a_message_refused_by_its_queue_becomes_a_dead_letter_after_all_attempts(
    make: Make, retries: int
) -> None:
    harness = make(retries=retries)
    harness.transport.script("billing", *[SendResult.REFUSED] * 9)

    harness.dispatch(an_asking("m1", "billing"))
    for _ in range(retries):
        assert harness.lie_dead() == {}
        harness.clock.advance(60)
        harness.dispatch()

    [copy] = harness.node.dead()
    assert (copy.message_class, copy.attempts) == (
        MessageClass.NACK_Q_EXCEED_QUOTA,
        1 + retries,
    )
    assert harness.stored == []


@WAYS
def test_a_message_forwarded_too_often_becomes_a_dead_letter_unsent(
    make: Make, way: Callable[..., None]
) -> None:
    harness = make()

    way(harness, an_asking("m16", "billing", hops="16"), an_asking("m14", "billing", hops="14"))

    assert harness.lie_dead() == {"m16": MessageClass.NACK_HOP_COUNT_EXCEEDED}
    [delivered] = harness.transport.messages("billing")
    assert (delivered.id, delivered.headers[marks.HOPS]) == ("m14", "15")


@pytest.mark.behaviour(104)
def test_its_time_to_reach_the_queue_begins_with_the_first_attempt(make: Make) -> None:
    harness = make(retries=9)
    harness.clock.advance(1_000_000)  # it is due for long: no attempt was made until now
    harness.transport.script("billing", *[SendResult.REFUSED] * 2)

    harness.dispatch(an_asking("m1", "billing", time_to_reach_queue="00:10:00"))
    for seconds in (599, 2):
        assert harness.lie_dead() == {}
        harness.clock.advance(seconds)
        harness.dispatch()

    assert harness.lie_dead() == {"m1": MessageClass.NACK_REACH_QUEUE_TIMEOUT}
    assert harness.transport.ids("billing") == []


@pytest.mark.behaviour(104)
def test_an_outage_counts_as_time_to_reach_the_queue(make: Make) -> None:
    harness = make(retries=9)
    harness.transport.fail("send", TransportUnavailable("is down"))
    harness.dispatch(an_asking("m1", "billing", time_to_reach_queue="00:10:00"))
    assert harness.stored == ["m1"]

    harness.clock.advance(601)
    harness.dispatch()

    assert harness.lie_dead() == {"m1": MessageClass.NACK_REACH_QUEUE_TIMEOUT}


def test_while_the_dead_letter_store_is_away_it_rests_and_neighbours_are_sent_once(
    make: Make,
) -> None:
    harness = make()
    with harness.node.away():
        harness.dispatch(an_asking("lost", "nowhere"), an_asking("fine", "billing"))

        assert harness.stored == ["lost"]
        assert harness.store.next() == START + SECOND
        assert "recovery_failures" not in harness.telemetry.snapshot()
    harness.clock.advance(1)
    harness.dispatch()

    assert harness.lie_dead() == {"lost": MessageClass.NACK_BAD_DST_Q}
    assert harness.transport.ids("billing") == ["fine"]
    assert (harness.stored, harness.transport.ids("error")) == ([], [])


def test_in_its_own_database_an_unavailable_dead_letter_store_rolls_no_transaction_back(
    make: Make,
) -> None:
    harness = make(SCOPE)

    with harness.node.away():
        harness.dispatch(an_asking("lost", "nowhere"), an_asking("fine", "billing"))

    assert harness.stored == ["lost"]
    assert harness.transport.ids("billing") == ["fine"]


def settled_in_one_transaction(node: DeadLetterNode) -> Settlement:
    """Settle an undeliverable timeout in the transaction that the dead-letter store shares."""
    joined = DeadLetterForwarding(replace(node.service, joins=True))
    lost = an_asking("lost", "nowhere")
    failed = Undeliverable(lost, lost.message, Unroutable("nowhere"))
    with node.database.begin() as connection:
        return joined.settle([failed], cast(IsolatedSends, SimpleNamespace(scope=connection)))


def test_in_one_transaction_an_unavailable_dead_letter_store_undoes_all_of_it(make: Make) -> None:
    node = make(SCOPE).node

    with node.away(), pytest.raises(StorageUnavailable):
        settled_in_one_transaction(node)


def test_in_one_transaction_a_full_node_postpones_its_message(make: Make) -> None:
    node = make(SCOPE, quotas=Quotas(node=1)).node

    settlement = settled_in_one_transaction(node)

    assert [one.timeout.message.id for one in settlement.postponed] == ["lost"]


@WAYS
@MODES
def test_a_full_node_delays_only_messages_that_become_dead_letters(
    make: Make, mode: TransactionMode, way: Callable[..., None]
) -> None:
    harness = make(mode, quotas=Quotas(node=1))

    with suppress(NodeFull):
        way(harness, an_asking("lost", "nowhere"), an_asking("fine", "billing"))

    assert harness.transport.ids("billing") == ["fine"]
    assert harness.stored == ["lost"]
    assert (harness.lie_dead(), harness.transport.ids("error")) == ({}, [])


def test_an_error_without_a_name_is_the_error_queues_business(make: Make) -> None:
    harness = make()
    harness.transport.script("billing", RuntimeError("a bug"))

    harness.dispatch(an_asking("m1", "billing"))

    assert harness.lie_dead() == {}
    assert harness.transport.ids("error") == ["m1"]


@WAYS
@MODES
def test_a_kept_message_has_arrived_where_it_is_finally_for(
    make: Make, mode: TransactionMode, way: Callable[..., None]
) -> None:
    harness = make(mode)
    kept = {"transactional": "True", "source_node": "n1", "source_queue": "sales"}
    fine, lost = an_asking("fine", "billing", **kept), an_asking("lost", "nowhere", **kept)
    manager = harness.node.manager
    for one in (fine, lost):
        sent = to_delayed_store(Outgoing(one.destination, one.message), one.due, "sales.timeouts")
        harness.node.service.before_sending([sent])

    way(harness, fine, lost)

    assert harness.lie_dead(NodeQueue.DEADXACT) == {"lost": MessageClass.NACK_BAD_DST_Q}
    awaiting = manager.store.tables.awaiting.c
    with harness.node.database.read() as connection:
        rows = connection.execute(select(awaiting.destination, awaiting["class"])).all()
    assert [tuple(row) for row in rows] == [("billing", MessageClass.ACK_REACH_QUEUE)]


@WAYS
def test_a_message_kept_by_a_former_installation_of_its_source_becomes_a_dead_letter(
    make: Make, way: Callable[..., None]
) -> None:
    harness = make()
    ours = {"transactional": "True", "source_node": "n1", "source_queue": "sales"}
    sent = [
        an_asking("former", "billing", source_guid="g0", **ours),
        an_asking("of now", "billing", source_guid="g1", **ours),
        an_asking("unsaid", "billing", **ours),
        an_asking("plain", "billing", source_node="n1", source_guid="g0"),
        an_asking("others", "billing", **{**ours, "source_node": "n2"}, source_guid="g0"),
    ]

    way(harness, *sent)

    changed = MessageClass.NACK_SOURCE_COMPUTER_GUID_CHANGED
    assert harness.lie_dead(NodeQueue.DEADXACT) == {"former": changed}
    delivered = sorted(harness.transport.ids("billing"))
    assert delivered == ["of now", "others", "plain", "unsaid"]


def test_a_transactional_message_says_which_installation_keeps_it(make: Make) -> None:
    harness = make().node.service

    kept = harness.delivery_headers(DeliveryOptions(transactional=True), {}, "billing")
    plain = harness.delivery_headers(None, {}, "billing")

    assert kept[marks.SOURCE_GUID] == "g1"
    assert marks.SOURCE_GUID not in plain
