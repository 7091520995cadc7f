from __future__ import annotations

from datetime import timedelta

import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import START
from tests.support.makers import SECOND
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.satellites.schedule import PollSchedule

MINUTE = 60 * SECOND


def polled(next_due: Micros | None = None, at: Micros = START) -> PollSchedule:
    """Return a schedule of one minute whose first poll ended at *at*."""
    schedule = PollSchedule(timedelta(minutes=1))
    schedule.begin()
    schedule.end(at, next_due)
    return schedule


@pytest.mark.behaviour(36, 37, 52)
@pytest.mark.parametrize(
    ("next_due", "expected"),
    [
        (None, START + MINUTE),
        (START + 5 * SECOND, START + 5 * SECOND),
        (START + MINUTE, START + MINUTE),
        (START + MINUTE + 1, START + MINUTE),
        (LATEST, START + MINUTE),
        (START, START),
        (START - 3600 * SECOND, START),
    ],
)
def test_the_next_poll_is_at_the_next_due_time_within_the_interval(
    next_due: Micros | None, expected: Micros
) -> None:
    assert polled(next_due).next == expected


def test_before_the_first_poll_there_is_no_next() -> None:
    assert PollSchedule(timedelta(minutes=1)).next is None


@pytest.mark.behaviour(38)
def test_an_earlier_due_time_pulls_the_next_poll_forward() -> None:
    schedule = polled()

    assert schedule.wake(START + 5 * SECOND) == START + 5 * SECOND
    assert schedule.next == START + 5 * SECOND


@pytest.mark.behaviour(39)
@pytest.mark.parametrize("due", [START + MINUTE, START + MINUTE + 1, LATEST])
def test_a_later_due_time_does_not_cause_a_poll(due: Micros) -> None:
    schedule = polled()

    assert schedule.wake(due) is None
    assert schedule.next == START + MINUTE


@pytest.mark.behaviour(40)
def test_a_wake_during_a_poll_is_kept_for_its_end() -> None:
    schedule = polled()
    schedule.begin()

    assert schedule.wake(START + 5 * SECOND) is None
    assert schedule.end(START, None) == START + 5 * SECOND


@pytest.mark.behaviour(40)
def test_of_several_wakes_during_a_poll_the_earliest_counts() -> None:
    schedule = polled()
    schedule.begin()
    for seconds in (9, 3, 7):
        schedule.wake(START + seconds * SECOND)

    assert schedule.end(START, START + 5 * SECOND) == START + 3 * SECOND


@pytest.mark.behaviour(42)
def test_after_a_pushed_poll_the_normal_cycle_resumes() -> None:
    schedule = polled()
    schedule.wake(START + 5 * SECOND)
    schedule.begin()

    assert schedule.end(START + 5 * SECOND, None) == START + 65 * SECOND


def test_a_wake_before_a_poll_began_is_that_polls_to_see() -> None:
    schedule = polled()
    schedule.wake(START + 5 * SECOND)
    schedule.begin()

    assert schedule.end(START + 5 * SECOND, START + 50 * SECOND) == START + 50 * SECOND


@pytest.mark.behaviour(71)
def test_a_pause_after_a_failure_holds_against_wakes_during_it() -> None:
    schedule = polled()
    schedule.begin()
    schedule.wake(START)

    assert schedule.end(START, None, START + 10 * SECOND) == START + 10 * SECOND


@pytest.mark.behaviour(38)
def test_the_decision_under_a_clock_that_ticks() -> None:
    clock = SystemClock()
    with freeze_time("2030-06-01 12:00:00") as frozen:
        schedule = PollSchedule(timedelta(minutes=1))
        schedule.begin()
        schedule.end(clock.now(), None)

        frozen.tick(timedelta(seconds=20))
        woken = schedule.wake(clock.now() + 5 * SECOND)
        frozen.tick(timedelta(seconds=5))

        assert woken == schedule.next == clock.now()


@pytest.mark.behaviour(54)
def test_after_a_step_back_of_the_clock_the_next_poll_is_within_one_interval_again() -> None:
    schedule = polled()
    back = START - 3600 * SECOND
    schedule.begin()

    assert schedule.end(back, None) == back + MINUTE


events = st.lists(
    st.tuples(st.sampled_from(["wake", "begin", "end"]), st.integers(0, 90), st.integers(-30, 200)),
    max_size=60,
)


@pytest.mark.behaviour(37, 38, 40, 52)
@given(events)
def test_the_poller_never_sleeps_past_a_wake_nor_past_the_interval(
    given_events: list[tuple[str, int, int]],
) -> None:
    schedule = polled()
    now, polling = START, False
    ended, unseen = START, list[Micros]()
    for event, elapsed, ahead in given_events:
        now += elapsed * SECOND
        if event == "wake":
            due = now + ahead * SECOND
            schedule.wake(due)
            unseen.append(due)
        elif event == "begin" and not polling:
            schedule.begin()
            polling, unseen = True, []
        elif event == "end" and polling:
            schedule.end(now, None)
            polling, ended = False, now
        if not polling:
            assert schedule.next is not None
            assert schedule.next <= ended + MINUTE
            assert all(schedule.next <= max(due, ended) for due in unseen)
