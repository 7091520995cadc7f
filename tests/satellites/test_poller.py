from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_breaker, a_timeout
from tests.support.ports import FakeTransport
from tests.support.store import ScriptedStore
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock, Key, SendResult, TransactionMode
from timeoutmgr.errors import QueueMissing, StorageUnavailable, TransportUnavailable
from timeoutmgr.instants import EARLIEST, Micros
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.satellites.control import ChunkOrder, read_control
from timeoutmgr.satellites.poller import AT_ONCE, LEAD, Poller, PollTimeouts
from timeoutmgr.sending import SessionPool
from timeoutmgr.telemetry import Counters

RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE
CONTROL = "sales.TimeoutsDispatcher"
AWAY = StorageUnavailable("away")
DAY = 86_400 * SECOND
SOON = 10.0
"""Seconds that a busy machine may take; nothing waits this long when all is well."""


class Round:
    """The step over a real store and a simulated broker."""

    def __init__(
        self, mode: TransactionMode = RECEIVE, chunk: int = 100, clock: Clock | None = None
    ) -> None:
        self.fake = FakeClock()
        self.store = ScriptedStore(clock or self.fake)
        self.transport = FakeTransport(CONTROL)
        self.telemetry = Counters()
        self.step = PollTimeouts(
            store=self.store,
            queue=CONTROL,
            owner="me",
            mode=mode,
            chunk=chunk,
            clock=clock or self.fake,
            new_id=lambda: "c1",
            telemetry=self.telemetry,
        )

    def put(self, count: int, due: Micros = START) -> list[Key]:
        timeouts = [a_timeout(f"m{due}-{number}", due) for number in range(count)]
        self.store.store_many(timeouts)
        return sorted(timeout.key for timeout in timeouts)

    def poll(self) -> Micros | None:
        return self.step(self.transport.session())

    def handed_on(self) -> list[list[Key]]:
        orders = [read_control(message) for message in self.transport.messages(CONTROL)]
        return [list(order.keys) for order in orders if isinstance(order, ChunkOrder)]


@pytest.mark.behaviour(36)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
def test_without_timeouts_nothing_is_sent_and_nothing_is_next(mode: TransactionMode) -> None:
    one = Round(mode)

    assert one.poll() is None
    assert one.handed_on() == []


@pytest.mark.behaviour(26, 37)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
def test_what_is_not_due_is_not_handed_on_but_said_to_be_next(mode: TransactionMode) -> None:
    one = Round(mode)
    one.put(1, START + 1)

    assert one.poll() == START + 1
    assert one.handed_on() == []


def test_what_is_due_in_a_moment_is_handed_on_and_nothing_behind_it() -> None:
    one = Round()
    one.step.ahead = LEAD
    keys = one.put(1, START + LEAD)
    one.put(1, START + LEAD + 1)

    one.poll()

    assert one.handed_on() == [keys]


@pytest.mark.parametrize(
    ("after", "looks_after"), [(2_999, 5_999), (3_000, 3_000), (20_000, 20_000), (60_000, 50_000)]
)
def test_the_next_look_is_for_the_next_that_is_due_but_not_for_each_of_many(
    after: Micros, looks_after: Micros
) -> None:
    one = Round()
    one.step.ahead = LEAD
    handed_on = START + LEAD
    one.put(1, handed_on)
    one.put(1, handed_on + after)

    assert one.poll() == handed_on + looks_after


def test_nothing_is_claimed_ahead_where_the_commit_is_what_sends() -> None:
    one = Round(SCOPE)
    one.step.ahead = LEAD
    one.put(1, START + 2_000)

    assert one.poll() == START + 2_000
    assert one.handed_on() == []


@pytest.mark.behaviour(42, 49)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
@pytest.mark.parametrize("due", [START, START - 20 * 365 * DAY])
def test_what_is_due_is_handed_on_once_whatever_its_age(mode: TransactionMode, due: Micros) -> None:
    one = Round(mode)
    keys = one.put(1, due)

    one.poll()
    one.poll()

    assert one.handed_on() == [keys]


@pytest.mark.behaviour(45, 50)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
def test_more_timeouts_of_one_instant_than_a_chunk_holds_are_all_handed_on_once(
    mode: TransactionMode,
) -> None:
    one = Round(mode, chunk=10)
    keys = one.put(25)

    one.poll()

    chunks = one.handed_on()
    assert [len(chunk) for chunk in chunks] == [10, 10, 5]
    assert sorted(key for chunk in chunks for key in chunk) == keys


@pytest.mark.behaviour(43)
@pytest.mark.parametrize(
    "answer",
    [
        SendResult.UNKNOWN,
        SendResult.REFUSED,
        SendResult.UNROUTABLE,
        TransportUnavailable("gone"),
        QueueMissing([CONTROL], "install it"),
        RuntimeError("a bug in the transport"),
    ],
)
def test_a_failing_send_releases_the_claim(answer: SendResult | Exception) -> None:
    one = Round(chunk=10)
    keys = one.put(3)
    one.transport.script(CONTROL, answer)
    with pytest.raises((TransportUnavailable, QueueMissing, RuntimeError)):
        one.poll()

    one.poll()

    assert one.handed_on() == [keys]


@pytest.mark.behaviour(43)
def test_after_a_failing_send_the_chunks_before_it_are_not_handed_on_again() -> None:
    one = Round(chunk=2)
    keys = one.put(6)
    one.transport.script(CONTROL, SendResult.CONFIRMED, SendResult.UNKNOWN)
    with pytest.raises(TransportUnavailable):
        one.poll()

    one.poll()

    assert sorted(key for chunk in one.handed_on() for key in chunk) == keys


@pytest.mark.behaviour(48)
def test_a_claim_whose_release_fails_too_lapses_by_itself() -> None:
    one = Round()
    keys = one.put(1)
    one.transport.script(CONTROL, TransportUnavailable("gone"))
    one.store.fail("release", AWAY)
    with pytest.raises((StorageUnavailable, TransportUnavailable)):
        one.poll()
    one.poll()
    assert one.handed_on() == []

    one.fake.advance(61)
    one.poll()

    assert one.handed_on() == [keys]


@pytest.mark.behaviour(63)
def test_in_transaction_scope_claim_and_control_message_are_one_transaction() -> None:
    one = Round(SCOPE)
    one.put(1)

    one.poll()

    claims = [joined for method, joined in one.store.joined if method == "claim"]
    assert None not in claims
    assert one.transport.journal[:3] == [
        "begin",
        f"send in transaction {CONTROL} confirmed",
        "commit",
    ]


@pytest.mark.behaviour(63)
def test_in_transaction_scope_a_failing_send_rolls_back() -> None:
    one = Round(SCOPE)
    one.put(1)
    one.transport.script(CONTROL, SendResult.REFUSED)

    with pytest.raises(TransportUnavailable):
        one.poll()

    assert one.transport.journal[-1] == "rollback"


def test_in_transaction_scope_an_idle_poll_takes_nobodys_turn_to_write() -> None:
    one = Round(SCOPE)
    one.put(1, START + SECOND)

    one.poll()

    assert one.transport.journal == []
    assert one.store.calls["claim"] == 0


@pytest.mark.behaviour(51)
def test_a_stop_ends_the_poll_after_the_chunk_in_hand() -> None:
    one = Round(chunk=1)
    one.put(3 + AT_ONCE)
    one.step.stopping = lambda: one.store.calls["claim"] >= 2

    one.poll()

    assert len(one.handed_on()) == 1 + AT_ONCE


@pytest.mark.parametrize("mode", list(TransactionMode))
def test_while_there_is_more_than_one_chunk_due_several_are_claimed_and_sent_together(
    mode: TransactionMode,
) -> None:
    one = Round(mode, chunk=2)
    keys = one.put(4 * AT_ONCE)

    one.poll()

    assert [key for chunk in one.handed_on() for key in chunk] == keys
    assert all(len(chunk) <= 2 for chunk in one.handed_on())
    assert one.store.calls["claim"] == 3  # the first alone, five, and the four that are left


def test_what_was_handed_on_is_looked_for_soon_as_its_dispatch_may_put_it_off() -> None:
    one = Round()
    one.put(1)
    assert one.poll() == START + 50_000

    one.put(1, START + 1_000)
    assert one.poll() == START + 1_000


def test_of_chunks_that_were_sent_together_those_that_were_not_taken_are_given_back() -> None:
    one = Round(chunk=1)
    keys = one.put(1 + AT_ONCE)
    answers = [SendResult.REFUSED, SendResult.CONFIRMED, SendResult.UNKNOWN]
    one.transport.script(CONTROL, *[SendResult.CONFIRMED] * 2, *answers)

    with pytest.raises(TransportUnavailable, match="did not take"):
        one.poll()
    one.poll()

    given_back = sorted(keys[place] for place in (2, 4))
    assert len(one.store.released) == 2
    handed_on = [key for chunk in one.handed_on() for key in chunk]
    assert handed_on == [*(key for key in keys if key not in given_back), *given_back]


@pytest.mark.behaviour(47)
def test_two_pollers_never_hand_on_the_same_timeout() -> None:
    one, other = Round(chunk=3), Round(chunk=3)
    other.step.store = one.store
    keys = one.put(20)
    turns = threading.Barrier(2)

    def race(which: Round) -> None:
        turns.wait()
        which.poll()

    threads = [threading.Thread(target=race, args=(which,)) for which in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)

    handed = [key for which in (one, other) for chunk in which.handed_on() for key in chunk]
    assert sorted(handed) == keys


@pytest.mark.behaviour(44)
def test_a_row_that_becomes_visible_late_is_found_at_the_next_poll() -> None:
    one = Round()
    first = one.put(1, START)
    one.poll()
    late = one.put(1, START - DAY)

    one.poll()

    assert one.handed_on() == [first, late]


# --- the loop


class Watching(Counters):
    """Counters that a test can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def count(self, event: str, amount: int = 1) -> None:
        super().count(event, amount)
        with self.changed:
            self.changed.notify_all()

    def reaches(self, event: str, count: int, within: float = SOON) -> bool:
        with self.changed:
            return self.changed.wait_for(
                lambda: self.snapshot().get(event, 0) >= count, timeout=within
            )


class ShiftedClock(SystemClock):
    """This host's clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall = 0
        self.mono = 0.0

    def now(self) -> Micros:
        return super().now() + self.wall

    def monotonic(self) -> float:
        return super().monotonic() + self.mono


class Loop:
    """A poller of one minute on a running scheduler."""

    def __init__(self, interval: float = 60.0, offset: Micros = 0) -> None:
        self.clock = ShiftedClock()
        self.round = Round(clock=self.clock)
        self.store = self.round.store
        self.store._offset = offset
        self.transport = self.round.transport
        self.telemetry = Watching()
        self.fetch = a_breaker(FakeClock(), 0.02)
        self.offsets: list[float] = []
        self.ready: Callable[[], None] = lambda: None
        self.poller = Poller(
            self.round.step,
            interval=timedelta(seconds=interval),
            sessions=SessionPool(self.transport),
            fetch=self.fetch,
            ready=lambda: self.ready(),
            clock=self.clock,
            telemetry=self.telemetry,
            on_clock_offset=self.offsets.append,
        )

    def started(self) -> Loop:
        """Start, and wait for the first poll."""
        self.poller.start()
        assert self.telemetry.reaches("polls", 1)
        return self


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.poller.stop()


@pytest.mark.behaviour(49)
def test_a_started_poller_polls_at_once(loop: Loop) -> None:
    keys = loop.round.put(3, START - 30 * 365 * DAY)

    loop.started()

    assert loop.round.handed_on() == [keys]


@pytest.mark.behaviour(38)
def test_a_wake_polls_long_before_the_interval_is_over(loop: Loop) -> None:
    loop.started()

    loop.poller.wake(loop.clock.now())

    assert loop.telemetry.reaches("polls", 2)


@pytest.mark.behaviour(40)
def test_a_wake_while_a_poll_runs_is_not_lost(loop: Loop) -> None:
    def woken_meanwhile() -> None:
        loop.store.after.clear()
        loop.poller.wake(loop.clock.now())

    loop.store.after["claim"] = woken_meanwhile
    loop.started()

    assert loop.telemetry.reaches("polls", 2)


@pytest.mark.behaviour(40)
def test_many_wakes_while_polls_run_are_not_lost(loop: Loop) -> None:
    loop.store.after["claim"] = lambda: loop.poller.wake(loop.clock.now())
    loop.started()

    assert loop.telemetry.reaches("polls", 20)


@pytest.mark.behaviour(39)
def test_a_poll_that_is_run_before_its_instant_waits_for_it(loop: Loop) -> None:
    loop.started()
    begun: list[Micros] = []
    loop.ready = lambda: begun.append(loop.clock.now())
    keys = loop.round.put(1, loop.clock.now() + SECOND // 5)
    due = keys[0].due

    loop.poller.wake(due)

    assert loop.telemetry.reaches("polls", 2)
    assert begun[0] >= due
    assert loop.round.handed_on() == [keys]


def test_a_wake_for_later_than_the_next_poll_causes_no_query(loop: Loop) -> None:
    loop.started()

    loop.poller.wake(loop.clock.now() + 3600 * SECOND)
    assert not loop.telemetry.reaches("polls", 2, within=0.3)


@pytest.mark.behaviour(37)
def test_the_next_due_time_pulls_the_poll_forward(loop: Loop) -> None:
    keys = loop.round.put(1, loop.clock.now() + SECOND // 5)

    loop.started()

    assert loop.telemetry.reaches("polls", 2)
    assert loop.round.handed_on() == [keys]


@pytest.mark.behaviour(56)
@pytest.mark.parametrize(
    "error", [AWAY, TransportUnavailable("gone"), RuntimeError("a bug"), ValueError("a bug")]
)
def test_the_loop_outlives_every_error(loop: Loop, error: Exception) -> None:
    loop.store.fail("claim", error, error)
    keys = loop.round.put(1, START - 10 * 365 * DAY)

    loop.started()

    assert loop.telemetry.snapshot()["polls_failed"] == 2
    assert loop.round.handed_on() == [keys]


@pytest.mark.behaviour(56, 76)
def test_an_outage_arms_the_breaker_and_its_end_disarms_it(loop: Loop) -> None:
    away = threading.Event()
    away.set()

    def ready() -> None:
        if away.is_set():
            raise AWAY

    loop.ready = ready
    loop.poller.start()
    assert loop.telemetry.reaches("polls_failed", 3)
    states = [loop.fetch.state]

    away.clear()
    assert loop.telemetry.reaches("polls", 1)
    states.append(loop.fetch.state)

    assert states == [BreakerState.ARMED, BreakerState.DISARMED]


def test_a_failed_poll_is_logged_with_the_documented_sentence(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.store.fail("claim", AWAY)

    with caplog.at_level(logging.WARNING):
        loop.started()

    assert "Failed to fetch timeouts from the timeout storage" in caplog.text


def test_failing_polls_leave_no_session_open(loop: Loop) -> None:
    loop.store.fail("claim", *[StorageUnavailable("away") for _ in range(5)])

    loop.started()

    assert loop.transport.open_sessions <= 1


def test_a_stopped_poller_has_let_go_of_its_session(loop: Loop) -> None:
    loop.started()

    loop.poller.stop()

    assert loop.transport.open_sessions == 0


@pytest.mark.behaviour(51)
def test_a_stopped_poller_does_not_poll_when_woken(loop: Loop) -> None:
    loop.started()
    loop.poller.stop()
    before = loop.store.calls["claim"]

    loop.poller.wake(loop.clock.now())
    loop.poller.watch()

    assert loop.store.calls["claim"] == before


def test_stop_before_start_and_twice_is_fine(loop: Loop) -> None:
    loop.poller.stop()
    loop.started()
    loop.poller.stop()
    loop.poller.stop()


def test_a_stopped_poller_can_be_started_again(loop: Loop) -> None:
    loop.started()
    loop.poller.stop()

    loop.poller.start()

    assert loop.telemetry.reaches("polls", 2)


def test_a_stop_and_a_poll_that_ends_do_not_wait_for_each_other(loop: Loop) -> None:
    # A poll's end moves the job, for which it needs the lock that a shutdown holds.
    loop.started()
    scheduler = loop.poller._scheduler
    assert scheduler is not None
    polling, go_on, ending, over = (threading.Event() for _ in range(4))
    move = loop.poller._run_at

    def poll() -> None:
        polling.set()
        go_on.wait(SOON)

    def move_when_over(at: Micros) -> None:
        ending.set()
        over.wait(SOON)
        move(at)

    loop.ready = poll
    loop.poller.wake(loop.clock.now())
    assert polling.wait(SOON)
    scheduler.get_jobs()  # returns once APScheduler has submitted that poll
    loop.poller._run_at = move_when_over  # type: ignore[method-assign]  # to hold it up
    go_on.set()
    assert ending.wait(SOON)

    stopping = threading.Thread(target=loop.poller.stop, daemon=True)
    stopping.start()
    stopping.join(SOON / 2)

    assert not stopping.is_alive()
    over.set()


def test_wakes_from_all_sides_and_stops_never_hold_each_other_up() -> None:
    # Short polls end while APScheduler still submits them, with its lock in hand.
    loop = Loop()
    over = threading.Event()

    def wake() -> None:
        while not over.is_set():
            loop.poller.wake(loop.clock.now())
            loop.poller.watch()

    wakers = [threading.Thread(target=wake, daemon=True) for _ in range(2)]
    for waker in wakers:
        waker.start()
    for _ in range(30):
        loop.poller.start()
        loop.poller.measure_offset()
        loop.poller.stop()
    over.set()
    for waker in wakers:
        waker.join(SOON)

    assert not any(waker.is_alive() for waker in wakers)
    assert loop.transport.open_sessions == 0


@pytest.mark.behaviour(54)
def test_a_poll_that_moved_away_with_the_wall_clock_is_forced_by_the_watchdog(loop: Loop) -> None:
    loop.clock.wall = 3600 * SECOND
    loop.poller.start()
    loop.clock.wall = 0
    loop.clock.mono = 62.0

    loop.poller.watch()

    assert loop.telemetry.reaches("polls", 1)


@pytest.mark.behaviour(54)
def test_the_watchdog_forces_no_poll_while_they_come_as_they_should(loop: Loop) -> None:
    loop.started()
    loop.clock.wall, loop.clock.mono = 30 * SECOND, 30.0

    loop.poller.watch()

    assert "polls_forced" not in loop.telemetry.snapshot()


@pytest.mark.behaviour(25, 54)
def test_a_wake_for_the_distant_past_polls_at_once() -> None:
    # APScheduler walks through every interval between a past run and now.
    loop = Loop(interval=1.0)
    try:
        loop.started()
        first = loop.telemetry.snapshot()["polls"]

        loop.poller.wake(loop.clock.now() - 60 * DAY)

        assert loop.telemetry.reaches("polls", int(first) + 1, within=3.0)
    finally:
        loop.poller.stop()


@pytest.mark.behaviour(52)
def test_a_wake_for_the_beginning_of_the_calendar_does_not_overflow() -> None:
    loop = Loop(offset=5 * SECOND)
    try:
        loop.started()
        loop.poller.measure_offset()

        loop.poller.wake(EARLIEST)

        assert loop.telemetry.reaches("polls", 2)
    finally:
        loop.poller.stop()


@pytest.mark.behaviour(55, 139)
@pytest.mark.parametrize(
    ("offset", "warned", "critical"),
    [(0.2, False, 0), (5, True, 0), (300, False, 1), (-300, False, 1)],
)
def test_the_clocks_offset_is_measured_and_told(
    caplog: pytest.LogCaptureFixture, offset: float, warned: bool, critical: int
) -> None:
    loop = Loop(offset=round(offset * SECOND))

    loop.poller.measure_offset()

    assert loop.telemetry.snapshot()["clock_offset_seconds"] == pytest.approx(offset, abs=0.1)
    assert ("the database's clock differs" in caplog.text) is warned
    assert len(loop.offsets) == critical


@pytest.mark.behaviour(55)
def test_an_offset_that_another_answer_told_is_not_asked_for_again() -> None:
    loop = Loop(offset=0)

    loop.poller.measure_offset(lambda: 5 * SECOND)

    assert loop.telemetry.snapshot()["clock_offset_seconds"] == 5.0


@pytest.mark.behaviour(55)
def test_an_offset_that_was_just_found_wakes_by_the_databases_clock() -> None:
    loop = Loop(offset=300 * SECOND)
    try:
        loop.started()
        loop.poller.measure_offset()
        assert loop.telemetry.reaches("polls", 1)
        before = int(loop.telemetry.snapshot()["polls"])

        loop.poller.wake(loop.store.now())

        assert loop.telemetry.reaches("polls", before + 1)
    finally:
        loop.poller.stop()
