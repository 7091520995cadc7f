from __future__ import annotations

import pytest

from tests.support.clock import START, FakeClock
from tests.support.delayed import BatchStore, SingleStore
from tests.support.makers import SECOND, a_breaker, a_delayed, a_message, a_received
from tests.support.ports import FakeReceiver, FakeSession, FakeTransport
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.errors import InvalidMessage, MessageRejected, StorageUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import (
    clear_timeouts,
    timeout_id,
    to_delayed_store,
    to_timeout_manager,
    wake_manager,
)
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.satellites.delayed_store.adapter import Batches
from timeoutmgr.satellites.delayed_store.receiver import StoreDelayed
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.delivery_policy import Outage
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings
from timeoutmgr.transport.work import Work

RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE
BOTH = pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
FORMS = pytest.mark.parametrize("form", [SingleStore, BatchStore])


class DispatchHarness:
    """The step over a store in memory and a simulated broker, in one mode."""

    def __init__(
        self,
        mode: TransactionMode = RECEIVE,
        form: type[SingleStore] = BatchStore,
        retries: int = 0,
    ) -> None:
        self.mode = mode
        self.clock = FakeClock()
        self.store = form(self.clock)
        self.transport = FakeTransport("billing", "sales.timeouts")
        self.telemetry = Counters()
        self.woken: list[Micros] = []
        self.retries = retries
        self.step = StoreDelayed(
            batches=Batches(self.store, self.clock, 10),
            endpoint="sales",
            error_queue="error",
            attempts=1 + retries,
            limits=Limits(),
            clock=self.clock,
            telemetry=self.telemetry,
            ready=lambda: None,
            wake=self.woken.append,
        )

    def receive(self, *messages: Message) -> None:
        session = self.transport.session()
        with Work(session, FakeReceiver(self.transport, "sales.timeouts"), self.mode) as work:
            self.step([a_received(message) for message in messages], work)

    def pump(self, *messages: Message) -> None:
        """Have the pump deal with *messages*, as it is configured for this satellite."""
        self.transport.put("sales.timeouts", *messages)
        self.breaker = a_breaker(self.clock, 30)
        pump = Pump(
            Consumption(
                name="Delayed Message Processor",
                queue="sales.timeouts",
                step=self.step,
                batch=10,
                policy=RecoverabilitySettings(immediate=1 + self.retries, delayed=0),
                storage=Outage(breaker=self.breaker, probe=lambda: None),
            ),
            PumpSurroundings(
                endpoint="sales",
                transport=self.transport,
                mode=self.mode,
                error_queue="error",
                clock=self.clock,
                telemetry=self.telemetry,
                broker=a_breaker(self.clock),
            ),
        )
        session = FakeSession(self.transport)
        pump.pump_once(session, FakeReceiver(self.transport, "sales.timeouts"), 0)


@BOTH
@FORMS
@pytest.mark.behaviour(24)
def test_a_later_message_is_stored_whole_and_wakes_the_poller(
    mode: TransactionMode, form: type[SingleStore]
) -> None:
    harness = DispatchHarness(mode, form)
    due = START + 60 * SECOND

    harness.receive(a_delayed("m1", due), a_delayed("m2", due + SECOND))

    assert {one.message.id: one.due for one in harness.store.rows.values()} == {
        "m1": due,
        "m2": due + SECOND,
    }
    assert harness.woken == [due]
    assert harness.store.rows[timeout_id("sales", "m1")].destination == "billing"


@pytest.mark.behaviour(41)
def test_a_rollback_wakes_no_poller_and_stores_nothing() -> None:
    harness = DispatchHarness(SCOPE)
    harness.transport.fail("commit", StorageUnavailable("away"))

    with pytest.raises(StorageUnavailable):
        harness.receive(a_delayed())

    assert harness.store.rows == {}


@BOTH
@pytest.mark.behaviour(25)
def test_a_message_due_already_goes_straight_on_and_is_never_stored(mode: TransactionMode) -> None:
    harness = DispatchHarness(mode)
    due = START + SECOND

    harness.receive(a_delayed("now", START), a_delayed("later", due))

    assert harness.transport.ids("billing") == ["now"]
    assert [one.message.id for one in harness.store.rows.values()] == ["later"]
    assert harness.woken == [due]  # nothing is stored that an earlier poll would find
    joined = "send" if mode is RECEIVE else "send in transaction"
    assert f"{joined} billing confirmed" in harness.transport.journal


@pytest.mark.behaviour(26)
def test_a_message_that_is_not_due_by_the_stores_clock_is_stored() -> None:
    harness = DispatchHarness()
    harness.store.now = lambda: START - SECOND  # type: ignore[attr-defined]  # a store may have it

    harness.receive(a_delayed("now", START))

    assert harness.transport.ids("billing") == []
    assert len(harness.store.rows) == 1


@BOTH
@pytest.mark.behaviour(64)
def test_due_already_and_without_a_destination_queue_it_goes_to_the_error_queue(
    mode: TransactionMode,
) -> None:
    harness = DispatchHarness(mode)

    harness.receive(a_delayed("lost", START, "nowhere"), a_delayed("fine", START))

    assert harness.transport.ids("error") == ["lost"]
    assert harness.transport.ids("billing") == ["fine"]
    assert harness.store.rows == {}


def test_a_message_refused_by_its_queue_is_stored_with_an_attempt_counted() -> None:
    harness = DispatchHarness(retries=1)
    harness.transport.script("billing", SendResult.REFUSED)

    harness.receive(a_delayed("now", START))

    [row] = harness.store.rows.values()
    assert row.attempts == 1
    assert harness.woken == [START]


def test_without_an_answer_it_is_stored_and_no_attempt_counted() -> None:
    harness = DispatchHarness()
    harness.transport.script("billing", SendResult.UNKNOWN)

    harness.receive(a_delayed("now", START))

    [row] = harness.store.rows.values()
    assert row.attempts == 0


def test_a_message_refused_by_both_queues_is_stored() -> None:
    harness = DispatchHarness()
    del harness.transport.queues["error"]

    harness.receive(a_delayed("lost", START, "nowhere"))

    assert len(harness.store.rows) == 1


@pytest.mark.behaviour(96)
@pytest.mark.parametrize("route", [to_delayed_store, to_timeout_manager])
def test_the_headers_of_either_way_are_understood_and_never_delivered(route: object) -> None:
    assert callable(route)
    harness = DispatchHarness()
    message = a_message("m1", b"body", time_sent=to_wire(START))
    routed = route(Outgoing("billing", message), START, "sales.timeouts").message

    harness.receive(routed)

    [delivered] = harness.transport.messages("billing")
    removed = {headers.EXPIRE, headers.DESTINATION, headers.DELAYED_DESTINATION}
    assert not removed & set(delivered.headers)
    assert delivered.headers[headers.DELIVER_AT] == to_wire(START)
    assert delivered.headers[headers.TIME_SENT] == to_wire(START)


@pytest.mark.behaviour(96)
def test_properties_in_transit_are_never_visible_to_the_receiver() -> None:
    harness = DispatchHarness()
    foreign = a_delayed("m1", START)
    prefixed = {f"{headers.PROPERTY_PREFIX}MSMQ.UseJournalQueue": "True"}

    harness.receive(Message(id="m1", headers={**foreign.headers, **prefixed}, body=b"x"))

    [delivered] = harness.transport.messages("billing")
    assert not [name for name in delivered.headers if name.startswith(headers.PROPERTY_PREFIX)]


@pytest.mark.behaviour(90)
@pytest.mark.parametrize("retries", [0, 2])
def test_storing_is_tried_once_and_as_often_as_there_are_retries(retries: int) -> None:
    harness = DispatchHarness(retries=retries)
    harness.store.fail("store", *[RuntimeError("cannot be stored")] * 10)

    harness.pump(a_delayed("bad"))

    assert harness.store.journal.count("store") == 1 + retries
    [copy] = harness.transport.messages("error")
    assert copy.id == "bad"
    assert copy.headers[headers.FAILED_QUEUE] == "sales.timeouts"
    assert copy.headers[headers.EXPIRE]


@pytest.mark.behaviour(32)
def test_while_the_storage_is_away_nothing_leaves_the_queue() -> None:
    harness = DispatchHarness()
    harness.store.fail("store", StorageUnavailable("away"))

    with pytest.raises(StorageUnavailable):
        harness.pump(a_delayed("m1"))

    assert harness.transport.ids("error") == []
    assert harness.breaker.state is BreakerState.DISARMED  # the loop around it reports it


@pytest.mark.behaviour(27)
def test_a_message_that_is_not_delayed_goes_to_the_error_queue() -> None:
    harness = DispatchHarness(retries=9)

    harness.pump(a_message("plain"), a_delayed("fine"))

    assert harness.transport.ids("error") == ["plain"]
    assert len(harness.store.rows) == 1


def test_an_order_to_clear_is_refused_with_a_sentence() -> None:
    harness = DispatchHarness()
    order = clear_timeouts("saga", "sales.timeouts", "m1", START).message

    with pytest.raises(MessageRejected, match="cannot clear timeouts"):
        harness.receive(order)


def test_a_conflict_policy_for_a_used_id_is_refused_with_a_sentence() -> None:
    harness = DispatchHarness()

    with pytest.raises(MessageRejected, match="does not remember which ids were used"):
        harness.receive(a_delayed("m1", on_conflict="replace"))


def test_a_wake_request_wakes_the_poller() -> None:
    harness = DispatchHarness()

    harness.receive(wake_manager("sales.timeouts", START + SECOND, "m1").message)

    assert harness.woken == [START + SECOND]


def test_wakes_without_a_pause_wake_the_poller_ten_times_a_second() -> None:
    harness = DispatchHarness()

    for number in range(100):
        harness.receive(wake_manager("sales.timeouts", START - SECOND, f"w{number}").message)
        harness.clock.advance(0.01)

    assert harness.telemetry.snapshot()["wakes_received"] == 100
    assert sum(due < START for due in harness.woken) <= 10  # the others join a later poll


def test_only_a_delayed_message_is_stored_inside_a_transaction() -> None:
    harness = DispatchHarness()
    with pytest.raises(InvalidMessage):
        harness.step.store_directly([wake_manager("sales.timeouts", START, "m1").message], None)
