from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import FakeClock
from tests.support.makers import a_breaker
from timeoutmgr.errors import ConfigurationError, StorageUnavailable
from timeoutmgr.resilience.breakers import BreakerState, OutageBreaker, RateBreaker

AWAY = StorageUnavailable("away")


class Watched:
    """A breaker of two minutes, and the errors that it triggered with."""

    def __init__(self, wait: float = 120.0) -> None:
        self.clock = FakeClock()
        self.triggered: list[BaseException] = []
        self.breaker = a_breaker(self.clock, wait, self.triggered.append)


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.mark.behaviour(68)
def test_a_new_breaker_is_disarmed(watched: Watched) -> None:
    assert watched.breaker.state is BreakerState.DISARMED


@pytest.mark.behaviour(68)
def test_the_first_failure_arms(watched: Watched) -> None:
    watched.breaker.failure(AWAY)

    assert watched.breaker.state is BreakerState.ARMED


@pytest.mark.behaviour(68)
def test_a_success_disarms(watched: Watched) -> None:
    watched.breaker.failure(AWAY)
    watched.breaker.success()

    assert watched.breaker.state is BreakerState.DISARMED


@pytest.mark.behaviour(68)
def test_later_failures_do_not_start_the_wait_again(watched: Watched) -> None:
    watched.breaker.failure(AWAY)
    watched.clock.advance(119)
    watched.breaker.failure(AWAY)
    watched.clock.advance(1)
    watched.breaker.failure(AWAY)

    assert watched.breaker.state is BreakerState.TRIGGERED


@pytest.mark.behaviour(69)
@pytest.mark.parametrize(("after", "times"), [(119.999, 0), (120.0, 1), (500.0, 1)])
def test_a_breaker_triggers_exactly_after_the_wait_without_success(
    watched: Watched, after: float, times: int
) -> None:
    watched.breaker.failure(AWAY)
    watched.clock.advance(after)
    watched.breaker.failure(AWAY)

    assert len(watched.triggered) == times


@pytest.mark.behaviour(69)
def test_a_breaker_disarmed_in_time_does_not_trigger(watched: Watched) -> None:
    watched.breaker.failure(AWAY)
    watched.clock.advance(119)
    watched.breaker.success()
    watched.clock.advance(500)
    watched.breaker.check()

    assert watched.triggered == []


@pytest.mark.behaviour(75)
def test_an_outage_that_comes_and_goes_below_the_wait_never_triggers(watched: Watched) -> None:
    for _ in range(50):
        watched.breaker.failure(AWAY)
        watched.clock.advance(119)
        watched.breaker.check()
        watched.breaker.success()

    assert watched.triggered == []


@pytest.mark.behaviour(70)
def test_a_breaker_triggers_once_in_one_outage(watched: Watched) -> None:
    for _ in range(100):
        watched.breaker.failure(AWAY)
        watched.clock.advance(10)

    assert len(watched.triggered) == 1


@pytest.mark.behaviour(70)
def test_a_breaker_triggers_again_in_a_new_outage_after_a_recovery(watched: Watched) -> None:
    for _ in range(2):
        watched.breaker.failure(AWAY)
        watched.clock.advance(120)
        watched.breaker.check()
        watched.breaker.success()

    assert len(watched.triggered) == 2


def test_a_breaker_triggers_with_the_latest_error(watched: Watched) -> None:
    latest = StorageUnavailable("latest")
    watched.breaker.failure(AWAY)
    watched.breaker.failure(latest)
    watched.clock.advance(120)
    watched.breaker.check()

    assert watched.triggered == [latest]


@pytest.mark.behaviour(71)
def test_a_failure_pauses_a_second_while_armed(watched: Watched) -> None:
    assert watched.breaker.failure(AWAY) == 1.0


@pytest.mark.behaviour(71)
def test_a_failure_pauses_ten_seconds_once_triggered(watched: Watched) -> None:
    watched.breaker.failure(AWAY)
    watched.clock.advance(120)

    assert watched.breaker.failure(AWAY) == 10.0
    assert watched.breaker.failure(AWAY) == 10.0


@pytest.mark.behaviour(69)
def test_a_pause_ends_when_the_wait_does() -> None:
    assert Watched(0.25).breaker.failure(AWAY) == pytest.approx(0.25)


def test_a_wait_of_zero_triggers_on_the_first_failure() -> None:
    watched = Watched(0)

    pause = watched.breaker.failure(AWAY)

    assert (watched.triggered, pause) == ([AWAY], 10.0)


@pytest.mark.behaviour(16)
def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'storage' must not be negative"):
        OutageBreaker(
            "storage",
            time_to_wait=timedelta(microseconds=-1),
            on_trigger=lambda error: None,
            clock=FakeClock(),
        )


@pytest.mark.behaviour(77)
def test_an_attempt_that_hangs_cannot_hide_an_outage(watched: Watched) -> None:
    watched.breaker.failure(AWAY)
    watched.clock.advance(120)

    watched.breaker.check()

    assert watched.triggered == [AWAY]


def test_a_check_of_a_disarmed_breaker_does_nothing(watched: Watched) -> None:
    watched.clock.advance(10_000)
    watched.breaker.check()

    assert watched.triggered == []


@pytest.mark.behaviour(54)
def test_a_step_of_the_wall_clock_neither_triggers_nor_delays(watched: Watched) -> None:
    watched.breaker.failure(AWAY)
    watched.clock.step_wall(timedelta(days=1))
    watched.breaker.check()
    assert watched.triggered == []

    watched.clock.step_wall(timedelta(days=-2))
    watched.clock.advance(120)
    watched.breaker.check()
    assert watched.triggered == [AWAY]


@pytest.mark.behaviour(73)
def test_an_action_that_raises_is_logged_and_the_breaker_counts_as_triggered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def explode(error: BaseException) -> None:
        raise RuntimeError("the hook")

    clock = FakeClock()
    breaker = a_breaker(clock, 0, explode)

    with caplog.at_level(logging.CRITICAL):
        breaker.failure(AWAY)

    assert breaker.state is BreakerState.TRIGGERED
    assert "the action of breaker test failed" in caplog.text


def test_an_action_may_check_its_own_breaker() -> None:
    seen: list[BreakerState] = []
    clock = FakeClock()
    breaker = a_breaker(clock, 0, lambda error: seen.append(breaker.state))

    breaker.failure(AWAY)

    assert seen == [BreakerState.TRIGGERED]


@pytest.mark.behaviour(72)
def test_one_of_many_threads_at_the_end_of_the_wait_triggers() -> None:
    watched = Watched()
    watched.breaker.failure(AWAY)
    watched.clock.advance(120)
    start = threading.Barrier(8)

    def storm() -> None:
        start.wait()
        for _ in range(50):
            watched.breaker.failure(AWAY)
            watched.breaker.check()

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(storm) for _ in range(8)]:
            one.result()

    assert len(watched.triggered) == 1


@pytest.mark.behaviour(72)
def test_a_storm_of_failures_and_successes_leaves_a_working_breaker() -> None:
    watched = Watched()
    start = threading.Barrier(8)

    def storm(fails: bool) -> None:
        start.wait()
        for _ in range(500):
            if fails:
                watched.breaker.failure(AWAY)
            else:
                watched.breaker.success()

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(storm, number % 2 == 0) for number in range(8)]:
            one.result()

    watched.breaker.success()
    assert watched.breaker.state is BreakerState.DISARMED
    watched.breaker.failure(AWAY)
    watched.clock.advance(120)
    watched.breaker.check()
    assert len(watched.triggered) == 1


@pytest.mark.behaviour(69, 70)
@given(
    st.lists(
        st.tuples(st.sampled_from(["failure", "success", "check"]), st.floats(0, 100)), max_size=40
    )
)
def test_a_breaker_triggers_once_for_each_wait_without_success(
    events: list[tuple[str, float]],
) -> None:
    watched = Watched(60)
    expected, failing_since, reported = 0, None, False
    for event, pause in events:
        if event == "success":
            watched.breaker.success()
            failing_since, reported = None, False
        else:
            if event == "failure":
                watched.breaker.failure(AWAY)
                failing_since = (
                    watched.clock.monotonic() if failing_since is None else failing_since
                )
            else:
                watched.breaker.check()
            if failing_since is not None and not reported:
                reported = watched.clock.monotonic() - failing_since >= 60
                expected += reported
        watched.clock.advance(pause)

    assert len(watched.triggered) == expected


# --- rates


def a_rate(clock: FakeClock, triggered: list[BaseException]) -> RateBreaker:
    return RateBreaker("rate", per_second=1, on_trigger=triggered.append, clock=clock)


@pytest.mark.behaviour(74)
@pytest.mark.parametrize(("failures", "times"), [(1, 0), (30, 0), (31, 1), (500, 1)])
def test_a_rate_triggers_once_above_thirty_times_the_rate_in_thirty_seconds(
    failures: int, times: int
) -> None:
    triggered: list[BaseException] = []
    breaker = a_rate(FakeClock(), triggered)

    for _ in range(failures):
        breaker.failure(AWAY)

    assert len(triggered) == times


@pytest.mark.behaviour(74)
def test_a_rate_that_stays_below_the_limit_never_triggers() -> None:
    clock, triggered = FakeClock(), list[BaseException]()
    breaker = a_rate(clock, triggered)

    for _ in range(300):
        breaker.failure(AWAY)
        clock.advance(1.0)

    assert triggered == []


@pytest.mark.behaviour(74)
def test_a_window_without_failures_disarms_a_rate() -> None:
    clock, triggered = FakeClock(), list[BaseException]()
    breaker = a_rate(clock, triggered)
    for _ in range(31):
        breaker.failure(AWAY)
    states = [breaker.state]

    clock.advance(30)
    states.append(breaker.state)

    assert states == [BreakerState.TRIGGERED, BreakerState.DISARMED]


@pytest.mark.behaviour(74)
def test_a_rate_triggers_again_after_a_quiet_window() -> None:
    clock, triggered = FakeClock(), list[BaseException]()
    breaker = a_rate(clock, triggered)
    for _ in range(2):
        for _ in range(31):
            breaker.failure(AWAY)
        clock.advance(31)

    assert len(triggered) == 2


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_that_is_not_positive_is_refused(rate: float) -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        RateBreaker("rate", per_second=rate, on_trigger=lambda error: None, clock=FakeClock())


def test_an_action_of_a_rate_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def explode(error: BaseException) -> None:
        raise RuntimeError("the hook")

    breaker = RateBreaker("rate", per_second=0.01, on_trigger=explode, clock=FakeClock())

    breaker.failure(AWAY)

    assert "the action of breaker rate failed" in caplog.text


def test_log_lines_of_an_outage_have_stable_event_names(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    watched.breaker.failure(AWAY)
    watched.clock.advance(120.0)
    watched.breaker.check()
    watched.breaker.success()

    events = [vars(record).get("event") for record in caplog.records]
    assert events == ["breaker_armed", "breaker_triggered", "breaker_disarmed"]
