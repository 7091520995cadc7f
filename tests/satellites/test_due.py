from __future__ import annotations

import threading
from contextlib import closing

import pytest

from tests.support.clock import START, FakeClock
from tests.support.delayed import BatchStore, SingleStore
from tests.support.makers import SECOND, a_breaker, a_timeout
from tests.support.ports import FakeTransport
from timeoutmgr.contracts import SendResult, Timeout, TransactionMode
from timeoutmgr.errors import InvalidMessage, StorageUnavailable, TransportUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.breakers import RateBreaker
from timeoutmgr.satellites.delayed_store.adapter import Batches, DispatchDue, DrainLoop, DrainStep
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.telemetry import Counters

RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE
BOTH = pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
FORMS = pytest.mark.parametrize("form", [SingleStore, BatchStore])


class Desk:
    """The step over a store in memory and a simulated broker, in one mode."""

    def __init__(
        self,
        mode: TransactionMode = RECEIVE,
        *,
        form: type[SingleStore] = BatchStore,
        retries: int = 0,
        batch: int = 10,
        lanes: int = 1,
    ) -> None:
        self.clock = FakeClock()
        self.store = form(self.clock)
        self.transport = FakeTransport("billing", "shipping")
        self.telemetry = Counters()
        self.triggered: list[str] = []
        self.breaker = a_breaker(self.clock, 30, lambda error: self.triggered.append("dispatch"))
        self.recovery = RateBreaker(
            "recovery",
            per_second=1,
            on_trigger=lambda error: self.triggered.append("recovery"),
            clock=self.clock,
        )
        self.step = DispatchDue(
            batches=Batches(self.store, self.clock, batch),
            endpoint="sales",
            error_queue="error",
            limits=Limits(),
            mode=mode,
            attempts=1 + retries,
            clock=self.clock,
            telemetry=self.telemetry,
            dispatch=self.breaker,
            recovery=self.recovery,
            turn=threading.Lock(),
        )
        self.rounds = DrainLoop(self.step, sessions=SessionPool(self.transport), lanes=lanes)

    def put(self, *timeouts: Timeout) -> None:
        for one in timeouts:
            self.store.put(one)

    def round(self) -> DrainStep:
        try:
            with closing(self.transport.session()) as session:
                return self.step(session)
        finally:
            self.store.free()

    def poll(self) -> int | None:
        with closing(self.transport.session()) as session:
            return self.rounds(session)

    def sent(self, queue: str = "billing") -> list[str]:
        return self.transport.ids(queue)

    def counted(self, event: str) -> float:
        return self.telemetry.snapshot().get(event, 0)


@BOTH
@FORMS
@pytest.mark.behaviour(57)
def test_a_due_message_is_sent_and_removed(mode: TransactionMode, form: type[SingleStore]) -> None:
    desk = Desk(mode, form=form)
    desk.put(a_timeout("m1"), a_timeout("m2"), a_timeout("later", START + SECOND))

    assert desk.poll() == START + SECOND

    assert sorted(desk.sent()) == ["m1", "m2"]
    assert [one.message.id for one in desk.store.rows.values()] == ["later"]
    related = {
        one.headers[headers.RELATED_TO_TIMEOUT] for one in desk.transport.messages("billing")
    }
    assert related == {a_timeout("m1").id, a_timeout("m2").id}


@pytest.mark.behaviour(57, 94)
def test_a_message_is_confirmed_before_its_row_is_removed() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.store.after["remove"] = lambda: desk.store.journal.append(f"sent {desk.sent()}")

    desk.round()

    assert desk.store.journal == ["transaction", "fetch", "remove", "sent ['m1']", "commit"]


@pytest.mark.behaviour(61, 62, 94)
def test_where_the_removal_fails_the_message_goes_out_again_under_the_same_id() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.store.fail("remove", StorageUnavailable("away"))

    with pytest.raises(StorageUnavailable):
        desk.round()
    desk.round()

    assert desk.sent() == ["m1", "m1"]
    assert desk.store.rows == {}
    assert "increment" not in desk.store.journal


@pytest.mark.behaviour(63, 94)
def test_in_transaction_scope_a_failed_removal_takes_the_send_back() -> None:
    desk = Desk(SCOPE)
    desk.put(a_timeout())
    desk.store.fail("remove", StorageUnavailable("away"))

    with pytest.raises(StorageUnavailable):
        desk.round()

    assert desk.sent() == []
    desk.round()
    assert desk.sent() == ["m1"]


@pytest.mark.behaviour(60)
def test_a_removal_that_comes_second_is_benign_and_counted() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.store.after["fetch"] = lambda: desk.store.after.update(
        remove=lambda: desk.store.drop(a_timeout().id)
    )

    desk.round()

    assert desk.sent() == ["m1"]
    assert desk.sent("error") == []
    assert desk.counted("delayed_gone") == 1


@FORMS
@pytest.mark.behaviour(60, 63)
def test_in_transaction_scope_a_second_removal_takes_the_send_back(
    form: type[SingleStore],
) -> None:
    desk = Desk(SCOPE, form=form)
    desk.put(a_timeout())
    desk.store.after["remove"] = lambda: desk.store.drop(a_timeout().id)

    desk.round()

    assert desk.transport.journal[-1] == "rollback"
    assert desk.sent() == []
    assert desk.sent("error") == []
    assert desk.counted("delayed_gone") == 0


@BOTH
@FORMS
@pytest.mark.behaviour(64, 91)
def test_a_missing_destination_goes_to_the_error_queue_whole(
    mode: TransactionMode, form: type[SingleStore]
) -> None:
    desk = Desk(mode, form=form, retries=3)
    desk.put(a_timeout("lost", destination="nowhere"), a_timeout("fine"))

    assert desk.poll() is None

    assert desk.sent() == ["fine"]
    [copy] = desk.transport.messages("error")
    assert copy.body == b"body of lost"
    assert copy.headers[headers.FAILED_QUEUE] == "nowhere"
    assert desk.store.rows == {}


@pytest.mark.behaviour(91)
def test_the_error_queue_has_the_copy_before_the_row_is_removed() -> None:
    desk = Desk()
    desk.put(a_timeout("lost", destination="nowhere"))
    desk.store.after["remove"] = lambda: desk.store.journal.append(f"copied {desk.sent('error')}")

    desk.round()

    assert "copied ['lost']" in desk.store.journal


@BOTH
@pytest.mark.behaviour(91)
def test_where_the_error_queue_does_not_take_it_nothing_is_removed(mode: TransactionMode) -> None:
    desk = Desk(mode)
    desk.put(a_timeout("lost", destination="nowhere"))
    del desk.transport.queues["error"]

    desk.poll()

    assert [row.attempts for row in desk.store.rows.values()] == [1]
    assert desk.counted("recovery_failures") == 1


@pytest.mark.behaviour(90)
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_refused_message_is_tried_once_and_as_often_as_there_are_retries(retries: int) -> None:
    desk = Desk(retries=retries)
    desk.put(a_timeout())
    desk.transport.script("billing", *[SendResult.REFUSED] * 10)

    for _ in range(10):
        desk.poll()
        desk.clock.advance(60)

    tried = [line for line in desk.transport.journal if line.startswith("send billing")]
    assert len(tried) == 1 + retries
    assert desk.sent("error") == ["m1"]
    assert desk.store.rows == {}


@pytest.mark.behaviour(90)
def test_a_failure_is_counted_after_the_transaction_of_the_fetch() -> None:
    desk = Desk(retries=1)
    desk.put(a_timeout())
    desk.transport.script("billing", SendResult.REFUSED)

    desk.round()

    assert desk.store.journal.index("commit") < desk.store.journal.index("increment")


@BOTH
@pytest.mark.behaviour(90)
def test_an_error_without_a_name_is_an_attempt_too(mode: TransactionMode) -> None:
    desk = Desk(mode, retries=1)
    desk.put(a_timeout("bad"))
    desk.transport.script("billing", RuntimeError("one"), RuntimeError("two"))

    desk.round()
    [row] = desk.store.rows.values()
    assert row.attempts == 1
    desk.clock.advance(60)
    desk.round()

    assert desk.store.rows == {}
    [copy] = desk.transport.messages("error")
    assert "RuntimeError('two')" in copy.headers[headers.EXCEPTION_MESSAGE]


@FORMS
@pytest.mark.behaviour(92)
def test_a_failing_row_backs_off_and_delays_no_other(form: type[SingleStore]) -> None:
    desk = Desk(form=form, retries=3)
    desk.put(a_timeout("bad", START - SECOND, "shipping"))
    desk.put(*(a_timeout(f"m{n}") for n in range(3)))
    desk.transport.script("shipping", SendResult.REFUSED)

    assert desk.poll() == START + SECOND

    assert len(desk.sent()) == 3
    assert desk.sent("shipping") == []
    desk.clock.advance(1)
    assert desk.poll() is None
    assert desk.sent("shipping") == ["bad"]


def test_a_message_that_fails_its_batch_does_not_sink_its_neighbours() -> None:
    desk = Desk()
    desk.put(*(a_timeout(f"m{n}") for n in range(4)), a_timeout("bad", destination="shipping"))
    desk.transport.script("shipping", RuntimeError("once"), RuntimeError("and alone"))

    desk.poll()

    assert sorted(set(desk.sent())) == ["m0", "m1", "m2", "m3"]
    assert desk.sent("error") == ["bad"]
    assert desk.store.rows == {}


def test_an_unsendable_message_goes_to_the_error_queue_at_once() -> None:
    desk = Desk(retries=5)
    desk.put(a_timeout("bad", destination="shipping"), a_timeout("fine"))
    desk.transport.script("shipping", InvalidMessage("no"), InvalidMessage("no"))

    desk.poll()

    assert desk.sent("error") == ["bad"]
    assert set(desk.sent()) == {"fine"}


@pytest.mark.parametrize("away", [TransportUnavailable("away"), SendResult.UNKNOWN])
def test_an_outage_of_the_broker_costs_no_attempt(away: SendResult | Exception) -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", away)

    again = desk.poll()

    [row] = desk.store.rows.values()
    assert row.attempts == 0
    assert desk.sent("error") == []
    assert str(desk.breaker.state) == "armed"
    assert again == START + SECOND
    desk.clock.advance(1)
    desk.poll()
    assert desk.sent() == ["m1"]
    assert str(desk.breaker.state) == "disarmed"


@pytest.mark.behaviour(69)
def test_an_outage_that_lasts_triggers_the_dispatch_breaker() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", *[TransportUnavailable("away")] * 100)

    for _ in range(31):
        desk.poll()
        desk.clock.advance(1)

    assert desk.triggered == ["dispatch"]


@BOTH
@pytest.mark.behaviour(93)
def test_error_handling_that_fails_and_fails_trips_the_recovery_breaker(
    mode: TransactionMode,
) -> None:
    desk = Desk(mode)
    desk.put(a_timeout())
    desk.store.fail("remove", *[RuntimeError("no removal")] * 1000)
    desk.store.fail("increment", *[RuntimeError("no count")] * 1000)

    for _ in range(25):
        desk.round()
        desk.clock.advance(1)

    assert "recovery" in desk.triggered
    assert list(desk.store.rows) == [a_timeout().id]
    if mode is SCOPE:
        assert (desk.sent(), desk.sent("error")) == ([], [])


@pytest.mark.behaviour(87)
def test_a_due_message_locked_by_another_process_is_tried_again_a_second_later() -> None:
    desk = Desk()
    desk.put(a_timeout(due=START - 5 * SECOND))
    desk.store.held[a_timeout().id] = "another process"

    assert desk.poll() == START + SECOND

    assert desk.sent() == []
    assert desk.store.journal.count("fetch") == 1


@pytest.mark.behaviour(36)
def test_an_idle_look_fetches_nothing() -> None:
    desk = Desk()

    assert desk.poll() is None

    assert desk.store.journal == ["next"]


@pytest.mark.behaviour(45, 50)
def test_many_of_one_instant_go_out_batch_by_batch() -> None:
    desk = Desk(batch=7)
    desk.put(*(a_timeout(f"m{n}") for n in range(50)))

    assert desk.poll() is None

    assert len(set(desk.sent())) == len(desk.sent()) == 50


@pytest.mark.behaviour(89)
@FORMS
def test_while_one_batch_is_sent_the_next_is_fetched(form: type[SingleStore]) -> None:
    desk = Desk(form=form, batch=1, lanes=2)
    desk.put(*(a_timeout(f"m{n}") for n in range(3)))
    fetched = threading.Barrier(2)
    removals: list[int] = []

    def meet() -> None:
        removals.append(1)
        if len(removals) in (2, 3):
            # Neither removes anything before both have fetched.
            fetched.wait(10)

    desk.store.after["remove"] = meet

    assert desk.poll() is None

    assert sorted(desk.sent()) == ["m0", "m1", "m2"]


@pytest.mark.behaviour(97)
def test_a_stop_finishes_the_current_batch_and_fetches_no_more() -> None:
    desk = Desk(batch=2)
    desk.put(*(a_timeout(f"m{n}") for n in range(6)))
    stop = threading.Event()
    desk.rounds.stop_when(stop.is_set)
    desk.store.after["remove"] = stop.set

    desk.poll()

    assert len(desk.sent()) == 2
    assert len(desk.store.rows) == 4


def test_an_error_of_the_second_lane_is_the_polls() -> None:
    desk = Desk(batch=1, lanes=2)
    desk.put(*(a_timeout(f"m{n}") for n in range(40)))
    desk.store.fail("fetch", None, *[StorageUnavailable("away")] * 2)

    with pytest.raises(StorageUnavailable):
        desk.poll()

    desk.store.faults.clear()
    desk.poll()
    assert sorted(set(desk.sent())) == sorted(f"m{n}" for n in range(40))


@pytest.mark.behaviour(99)
def test_a_hundred_thousand_rounds_leave_nothing_behind() -> None:
    import gc
    import tracemalloc

    desk = Desk()
    with closing(desk.transport.session()) as session:
        for _ in range(1_000):
            desk.step(session)
        desk.store.journal.clear()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            for _ in range(1_000):
                desk.rounds(session)
            desk.store.journal.clear()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()

    assert after - before < 64 * 1024


def test_lateness_is_told() -> None:
    desk = Desk()
    desk.put(a_timeout(due=START - 3 * SECOND))

    desk.poll()

    assert desk.counted("lateness_seconds") == pytest.approx(3.0)


@pytest.mark.parametrize("retries", [1])
def test_a_put_off_message_is_not_tried_by_the_other_lane(retries: int) -> None:
    desk = Desk(retries=retries, batch=1, lanes=2)
    desk.put(*(a_timeout(f"m{n}") for n in range(20)), a_timeout("bad", START, "shipping"))
    desk.transport.script("shipping", *[SendResult.REFUSED] * 5)

    desk.poll()

    tried = [line for line in desk.transport.journal if line.startswith("send shipping")]
    assert len(tried) == 1


def test_a_stored_row_that_may_not_go_there_goes_to_the_error_queue_whole() -> None:
    desk = Desk()
    desk.step.limits = Limits().of_endpoint("sales", "error")
    desk.put(a_timeout("m1", destination="other.Timeouts"), a_timeout("m2", destination="error"))

    desk.poll()

    copies = {each.id: each for each in desk.transport.messages("error")}
    assert {each.headers[headers.FAILED_QUEUE] for each in copies.values()} == {
        "other.Timeouts",
        "error",
    }
    assert copies["m1"].body == b"body of m1"
    assert not desk.store.rows
