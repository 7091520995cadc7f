from __future__ import annotations

import threading
from contextlib import closing

import pytest

from tests.support.clock import START, FakeClock
from tests.support.delayed import BatchStore, SingleStore
from tests.support.forks import ended_in_a_child
from tests.support.limits import no_thread
from tests.support.makers import SECOND, a_breaker, a_timeout
from tests.support.ports import FakeTransport
from timeoutmgr.contracts import SendResult, Timeout, TransactionMode
from timeoutmgr.errors import InvalidMessage, StorageUnavailable, TransportUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.breakers import RateBreaker
from timeoutmgr.satellites.delayed_store.adapter import (
    Batches,
    DispatchDue,
    DrainLoop,
    DrainProgress,
    DrainStep,
)
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.telemetry import Counters

RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE
BOTH = pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
FORMS = pytest.mark.parametrize("form", [SingleStore, BatchStore])


class DispatchHarness:
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
        )
        self.rounds = DrainLoop(self.step, sessions=SessionPool(self.transport), lanes=lanes)

    def put(self, *timeouts: Timeout) -> None:
        for one in timeouts:
            self.store.put(one)

    def drain_step(self) -> DrainStep:
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
    harness = DispatchHarness(mode, form=form)
    harness.put(a_timeout("m1"), a_timeout("m2"), a_timeout("later", START + SECOND))

    assert harness.poll() == START + SECOND

    assert sorted(harness.sent()) == ["m1", "m2"]
    assert [one.message.id for one in harness.store.rows.values()] == ["later"]
    related = {
        one.headers[headers.RELATED_TO_TIMEOUT] for one in harness.transport.messages("billing")
    }
    assert related == {a_timeout("m1").id, a_timeout("m2").id}


@pytest.mark.behaviour(57, 94)
def test_a_message_is_confirmed_before_its_row_is_removed() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.store.after["remove"] = lambda: harness.store.journal.append(f"sent {harness.sent()}")

    harness.drain_step()

    assert harness.store.journal == ["transaction", "fetch", "remove", "sent ['m1']", "commit"]


@pytest.mark.behaviour(61, 62, 94)
def test_where_the_removal_fails_the_message_goes_out_again_under_the_same_id() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.store.fail("remove", StorageUnavailable("away"))

    with pytest.raises(StorageUnavailable):
        harness.drain_step()
    harness.drain_step()

    assert harness.sent() == ["m1", "m1"]
    assert harness.store.rows == {}
    assert "increment" not in harness.store.journal


@pytest.mark.behaviour(63, 94)
def test_in_transaction_scope_a_failed_removal_takes_the_send_back() -> None:
    harness = DispatchHarness(SCOPE)
    harness.put(a_timeout())
    harness.store.fail("remove", StorageUnavailable("away"))

    with pytest.raises(StorageUnavailable):
        harness.drain_step()

    assert harness.sent() == []
    harness.drain_step()
    assert harness.sent() == ["m1"]


@pytest.mark.behaviour(60)
def test_a_removal_that_comes_second_is_benign_and_counted() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.store.after["fetch"] = lambda: harness.store.after.update(
        remove=lambda: harness.store.drop(a_timeout().id)
    )

    harness.drain_step()

    assert harness.sent() == ["m1"]
    assert harness.sent("error") == []
    assert harness.counted("delayed_gone") == 1


@FORMS
@pytest.mark.behaviour(60, 63)
def test_in_transaction_scope_a_second_removal_takes_the_send_back(
    form: type[SingleStore],
) -> None:
    harness = DispatchHarness(SCOPE, form=form)
    harness.put(a_timeout())
    harness.store.after["remove"] = lambda: harness.store.drop(a_timeout().id)

    harness.drain_step()

    assert harness.transport.journal[-1] == "rollback"
    assert harness.sent() == []
    assert harness.sent("error") == []
    assert harness.counted("delayed_gone") == 0


@BOTH
@FORMS
@pytest.mark.behaviour(64, 91)
def test_a_missing_destination_goes_to_the_error_queue_whole(
    mode: TransactionMode, form: type[SingleStore]
) -> None:
    harness = DispatchHarness(mode, form=form, retries=3)
    harness.put(a_timeout("lost", destination="nowhere"), a_timeout("fine"))

    assert harness.poll() is None

    assert harness.sent() == ["fine"]
    [copy] = harness.transport.messages("error")
    assert copy.body == b"body of lost"
    assert copy.headers[headers.FAILED_QUEUE] == "nowhere"
    assert harness.store.rows == {}


@pytest.mark.behaviour(91)
def test_the_error_queue_has_the_copy_before_the_row_is_removed() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("lost", destination="nowhere"))
    harness.store.after["remove"] = lambda: harness.store.journal.append(
        f"copied {harness.sent('error')}"
    )

    harness.drain_step()

    assert "copied ['lost']" in harness.store.journal


@BOTH
@pytest.mark.behaviour(91)
def test_without_an_error_queue_each_row_stays(mode: TransactionMode) -> None:
    harness = DispatchHarness(mode)
    harness.put(a_timeout("lost", destination="nowhere"))
    del harness.transport.queues["error"]

    harness.poll()

    assert [row.attempts for row in harness.store.rows.values()] == [1]
    assert harness.counted("recovery_failures") == 1


@pytest.mark.behaviour(90)
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_refused_message_is_tried_once_and_as_often_as_there_are_retries(retries: int) -> None:
    harness = DispatchHarness(retries=retries)
    harness.put(a_timeout())
    harness.transport.script("billing", *[SendResult.REFUSED] * 10)

    for _ in range(10):
        harness.poll()
        harness.clock.advance(60)

    tried = [line for line in harness.transport.journal if line.startswith("send billing")]
    assert len(tried) == 1 + retries
    assert harness.sent("error") == ["m1"]
    assert harness.store.rows == {}


@pytest.mark.behaviour(90)
def test_a_failure_is_counted_after_the_transaction_of_the_fetch() -> None:
    harness = DispatchHarness(retries=1)
    harness.put(a_timeout())
    harness.transport.script("billing", SendResult.REFUSED)

    harness.drain_step()

    assert harness.store.journal.index("commit") < harness.store.journal.index("increment")


@BOTH
@pytest.mark.behaviour(90)
def test_an_error_without_a_name_is_an_attempt_too(mode: TransactionMode) -> None:
    harness = DispatchHarness(mode, retries=1)
    harness.put(a_timeout("bad"))
    harness.transport.script("billing", RuntimeError("one"), RuntimeError("two"))

    harness.drain_step()
    [row] = harness.store.rows.values()
    assert row.attempts == 1
    harness.clock.advance(60)
    harness.drain_step()

    assert harness.store.rows == {}
    [copy] = harness.transport.messages("error")
    assert "RuntimeError('two')" in copy.headers[headers.EXCEPTION_MESSAGE]


@FORMS
@pytest.mark.behaviour(92)
def test_a_failing_row_backs_off_and_delays_no_other(form: type[SingleStore]) -> None:
    harness = DispatchHarness(form=form, retries=3)
    harness.put(a_timeout("bad", START - SECOND, "shipping"))
    harness.put(*(a_timeout(f"m{n}") for n in range(3)))
    harness.transport.script("shipping", SendResult.REFUSED)

    assert harness.poll() == START + SECOND

    assert len(harness.sent()) == 3
    assert harness.sent("shipping") == []
    harness.clock.advance(1)
    assert harness.poll() is None
    assert harness.sent("shipping") == ["bad"]


def test_a_message_that_fails_its_batch_does_not_sink_its_neighbours() -> None:
    harness = DispatchHarness()
    harness.put(*(a_timeout(f"m{n}") for n in range(4)), a_timeout("bad", destination="shipping"))
    harness.transport.script("shipping", RuntimeError("once"), RuntimeError("and alone"))

    harness.poll()

    assert sorted(set(harness.sent())) == ["m0", "m1", "m2", "m3"]
    assert harness.sent("error") == ["bad"]
    assert harness.store.rows == {}


def test_an_unsendable_message_goes_to_the_error_queue_at_once() -> None:
    harness = DispatchHarness(retries=5)
    harness.put(a_timeout("bad", destination="shipping"), a_timeout("fine"))
    harness.transport.script("shipping", InvalidMessage("no"), InvalidMessage("no"))

    harness.poll()

    assert harness.sent("error") == ["bad"]
    assert set(harness.sent()) == {"fine"}


@pytest.mark.parametrize("away", [TransportUnavailable("away"), SendResult.UNKNOWN])
def test_an_outage_of_the_broker_costs_no_attempt(away: SendResult | Exception) -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.transport.script("billing", away)

    again = harness.poll()

    [row] = harness.store.rows.values()
    assert row.attempts == 0
    assert harness.sent("error") == []
    assert str(harness.breaker.state) == "armed"
    assert again == START + SECOND
    harness.clock.advance(1)
    harness.poll()
    assert harness.sent() == ["m1"]
    assert str(harness.breaker.state) == "disarmed"


@pytest.mark.behaviour(69)
def test_an_outage_that_lasts_triggers_the_dispatch_breaker() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.transport.script("billing", *[TransportUnavailable("away")] * 100)

    for _ in range(31):
        harness.poll()
        harness.clock.advance(1)

    assert harness.triggered == ["dispatch"]


def test_an_outage_ends_where_another_process_has_sent_what_was_due() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.transport.script("billing", TransportUnavailable("away"))
    harness.poll()
    assert str(harness.breaker.state) == "armed"

    harness.store.rows.clear()
    harness.poll()

    assert str(harness.breaker.state) == "disarmed"


def test_a_single_message_that_its_queue_refuses_is_no_outage() -> None:
    harness = DispatchHarness(retries=6)
    harness.put(a_timeout())
    harness.transport.script("billing", *[SendResult.REFUSED] * 100)

    for _ in range(120):
        harness.poll()
        harness.clock.advance(1)

    assert harness.triggered == []
    assert harness.sent("error") == [a_timeout().message.id]


@BOTH
@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.behaviour(93)
def test_error_handling_that_fails_and_fails_trips_the_recovery_breaker(
    mode: TransactionMode, retries: int
) -> None:
    harness = DispatchHarness(mode, retries=retries)
    harness.put(a_timeout())
    harness.store.fail("remove", *[RuntimeError("no removal")] * 1000)
    harness.store.fail("increment", *[RuntimeError("no count")] * 1000)

    for _ in range(40):
        harness.drain_step()
        harness.clock.advance(1)

    assert harness.triggered == ["recovery"]
    assert list(harness.store.rows) == [a_timeout().id]
    if mode is SCOPE:
        assert (harness.sent(), harness.sent("error")) == ([], [])


@pytest.mark.behaviour(87)
def test_a_due_message_locked_by_another_process_is_tried_again_a_second_later() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(due=START - 5 * SECOND))
    harness.store.held[a_timeout().id] = "another process"

    assert harness.poll() == START + SECOND

    assert harness.sent() == []
    assert harness.store.journal.count("fetch") == 1


@pytest.mark.behaviour(36)
def test_an_idle_poll_fetches_nothing() -> None:
    harness = DispatchHarness()

    assert harness.poll() is None

    assert harness.store.journal == ["next"]


@pytest.mark.behaviour(45, 50)
def test_many_of_one_instant_go_out_batch_by_batch() -> None:
    harness = DispatchHarness(batch=7)
    harness.put(*(a_timeout(f"m{n}") for n in range(50)))

    assert harness.poll() is None

    assert len(set(harness.sent())) == len(harness.sent()) == 50


@pytest.mark.behaviour(89)
@FORMS
def test_while_one_batch_is_sent_the_next_is_fetched(form: type[SingleStore]) -> None:
    harness = DispatchHarness(form=form, batch=1, lanes=2)
    harness.put(*(a_timeout(f"m{n}") for n in range(3)))
    fetched = threading.Barrier(2)
    removals: list[int] = []

    def meet() -> None:
        removals.append(1)
        if len(removals) in (2, 3):
            # Neither removes anything before both have fetched.
            fetched.wait(10)

    harness.store.after["remove"] = meet

    assert harness.poll() is None

    assert sorted(harness.sent()) == ["m0", "m1", "m2"]


def test_a_poll_without_a_thread_for_its_second_lane_sends_all() -> None:
    harness = DispatchHarness(batch=1, lanes=2)
    harness.put(*(a_timeout(f"m{n}") for n in range(3)))

    with no_thread():
        assert harness.poll() is None

    assert sorted(harness.sent()) == ["m0", "m1", "m2"]


def test_a_child_that_is_forked_during_a_fetch_of_the_parent_sends() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1"))

    def send_in_the_child() -> int:
        harness.poll()
        return 0 if harness.sent() == ["m1"] else 1

    with harness.step.fetch_lock:
        ended = ended_in_a_child(send_in_the_child)

    assert ended == 0


@pytest.mark.behaviour(97)
def test_a_stop_finishes_the_current_batch_and_fetches_no_more() -> None:
    harness = DispatchHarness(batch=2)
    harness.put(*(a_timeout(f"m{n}") for n in range(6)))
    stop = threading.Event()
    harness.rounds.stop_when(stop.is_set)
    harness.store.after["remove"] = stop.set

    harness.poll()

    assert len(harness.sent()) == 2
    assert len(harness.store.rows) == 4


def test_an_error_of_the_second_lane_is_the_polls() -> None:
    harness = DispatchHarness(batch=1, lanes=2)
    harness.put(*(a_timeout(f"m{n}") for n in range(40)))
    harness.store.fail("fetch", None, *[StorageUnavailable("away")] * 2)

    with pytest.raises(StorageUnavailable):
        harness.poll()

    harness.store.faults.clear()
    harness.poll()
    assert sorted(set(harness.sent())) == sorted(f"m{n}" for n in range(40))


def test_a_pause_that_one_lane_sets_is_not_undone_by_the_other() -> None:
    progress = DrainProgress()

    class Interrupted(DrainStep):
        """A result whose lane is interrupted by the other lane, which finds the broker away."""

        @property
        def full(self) -> bool:
            progress.add(DrainStep(0, pause=5.0))
            return True

        @full.setter
        def full(self, value: bool) -> None: ...

    progress.add(Interrupted(100))

    assert (progress.over, progress.pause) == (True, 5.0)


@pytest.mark.behaviour(99)
def test_a_hundred_thousand_rounds_leave_nothing_behind() -> None:
    import gc
    import tracemalloc

    harness = DispatchHarness()
    with closing(harness.transport.session()) as session:
        for _ in range(1_000):
            harness.step(session)
        harness.store.journal.clear()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            for _ in range(1_000):
                harness.rounds(session)
            harness.store.journal.clear()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()

    assert after - before < 64 * 1024


def test_lateness_is_measured() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(due=START - 3 * SECOND))

    harness.poll()

    assert harness.counted("lateness_seconds") == pytest.approx(3.0)


@pytest.mark.parametrize("retries", [1])
def test_a_put_off_message_is_not_tried_by_the_other_lane(retries: int) -> None:
    harness = DispatchHarness(retries=retries, batch=1, lanes=2)
    harness.put(*(a_timeout(f"m{n}") for n in range(20)), a_timeout("bad", START, "shipping"))
    harness.transport.script("shipping", *[SendResult.REFUSED] * 5)

    harness.poll()

    tried = [line for line in harness.transport.journal if line.startswith("send shipping")]
    assert len(tried) == 1


def test_a_stored_row_that_may_not_go_there_goes_to_the_error_queue_whole() -> None:
    harness = DispatchHarness()
    harness.step.limits = Limits().of_endpoint("sales", "error")
    harness.put(a_timeout("m1", destination="other.Timeouts"), a_timeout("m2", destination="error"))

    harness.poll()

    copies = {each.id: each for each in harness.transport.messages("error")}
    assert {each.headers[headers.FAILED_QUEUE] for each in copies.values()} == {
        "other.Timeouts",
        "error",
    }
    assert copies["m1"].body == b"body of m1"
    assert not harness.store.rows
