"""A poll comes at the start, when something is due and at every wake; no wake is lost."""

from __future__ import annotations

import threading

import pytest
from apscheduler.events import EVENT_JOB_MAX_INSTANCES

from tests.satellites.polling import DAY, SOON, Loop
from tests.support.clock import START
from tests.support.makers import SECOND
from timeoutmgr.message.instants import EARLIEST, Micros


@pytest.mark.behaviour(49)
def test_a_started_poller_polls_at_once(loop: Loop) -> None:
    keys = loop.harness.put(3, START - 30 * 365 * DAY)

    loop.started()

    assert loop.harness.claimed() == [keys]


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


def test_a_run_that_is_skipped_because_a_poll_runs_is_not_logged(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    skipped = threading.Event()

    def forced_meanwhile() -> None:
        loop.store.after.clear()
        scheduler = loop.poller._scheduler
        assert scheduler is not None
        scheduler.add_listener(lambda _event: skipped.set(), EVENT_JOB_MAX_INSTANCES)
        loop.clock.mono += 120  # an interval and more: the watch forces a poll
        loop.poller.watch()
        assert skipped.wait(SOON)

    loop.store.after["claim"] = forced_meanwhile
    loop.started()

    assert loop.telemetry.reaches("polls", 1)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_poll_that_is_run_before_its_instant_waits_for_it(loop: Loop) -> None:
    loop.started()
    begun: list[Micros] = []
    loop.ready = lambda: begun.append(loop.clock.now())
    keys = loop.harness.put(1, loop.clock.now() + SECOND // 5)
    due = keys[0].due

    loop.poller.wake(due)

    assert loop.telemetry.reaches("polls", 2)
    assert begun[0] >= due
    assert loop.harness.claimed() == [keys]


def test_a_wake_for_later_than_the_next_poll_causes_no_query(loop: Loop) -> None:
    loop.started()

    loop.poller.wake(loop.clock.now() + 3600 * SECOND)
    assert not loop.telemetry.reaches("polls", 2, within=0.3)


@pytest.mark.behaviour(37)
def test_the_next_due_time_pulls_the_poll_forward(loop: Loop) -> None:
    keys = loop.harness.put(1, loop.clock.now() + SECOND // 5)

    loop.started()

    assert loop.telemetry.reaches("polls", 2)
    assert loop.harness.claimed() == [keys]


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
