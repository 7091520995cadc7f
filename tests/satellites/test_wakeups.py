"""A process seldom asks others for a poll: if they would miss a timeout that it stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tests.satellites.polling import SOON, Loop
from tests.support.clock import START, FakeClock
from tests.support.forks import ended_in_a_child
from tests.support.makers import SECOND
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.satellites.timeout_manager.wakeups import OtherPollers


class CountedWakeups:
    """Counts the requests; *fail* is raised by the next question."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.fail: Exception | None = None
        self.checks = 0
        self.is_closed = False

    def notify(self) -> None:
        fail, self.fail = self.fail, None
        self.asked.release()
        if fail is not None:
            raise fail

    def check(self) -> None:
        self.checks += 1

    def close(self) -> None:
        self.is_closed = True

    def is_asked(self) -> bool:
        return self.asked.acquire(timeout=SOON)


@pytest.fixture
def wakeups() -> CountedWakeups:
    return CountedWakeups()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def others(wakeups: CountedWakeups, clock: FakeClock) -> Iterator[OtherPollers]:
    made = OtherPollers(wakeups, endpoint="e", interval=timedelta(minutes=1), now=clock.now)
    made.start()
    yield made
    made.stop()


def test_other_processes_are_asked_for_a_timeout_that_their_rhythm_would_miss(
    others: OtherPollers, wakeups: CountedWakeups
) -> None:
    others.stored(START + 10 * SECOND)

    assert wakeups.is_asked()


def test_other_processes_are_not_asked_for_a_timeout_that_their_rhythm_finds(
    others: OtherPollers, wakeups: CountedWakeups
) -> None:
    others.stored(START + 61 * SECOND)
    others.stop()

    assert not wakeups.asked.acquire(blocking=False)


def test_a_question_covers_later_timeouts(others: OtherPollers, wakeups: CountedWakeups) -> None:
    others.stored(START + 10 * SECOND)
    assert wakeups.is_asked()

    others.stored(START + 20 * SECOND)
    others.stop()

    assert not wakeups.asked.acquire(blocking=False)


@pytest.mark.parametrize(("passed", "due"), [(0, 5 * SECOND), (11 * SECOND, 20 * SECOND)])
def test_a_question_covers_nothing_earlier_and_nothing_once_its_time_has_passed(
    others: OtherPollers, wakeups: CountedWakeups, clock: FakeClock, passed: int, due: int
) -> None:
    others.stored(START + 10 * SECOND)
    assert wakeups.is_asked()
    clock.advance(passed / SECOND)

    others.stored(START + due)

    assert wakeups.is_asked()


@pytest.mark.parametrize("error", [StorageUnavailable("away"), ZeroDivisionError()])
def test_a_question_that_failed_covers_nothing(
    others: OtherPollers, wakeups: CountedWakeups, error: Exception
) -> None:
    wakeups.fail = error
    others.stored(START + 10 * SECOND)
    assert wakeups.is_asked()

    asked = False
    while not asked:  # until the failure is noted
        others.stored(START + 10 * SECOND)
        asked = wakeups.asked.acquire(timeout=0.05)


def test_a_watchdog_that_comes_late_begins_nothing(
    others: OtherPollers, wakeups: CountedWakeups
) -> None:
    others.watch()
    others.stop()

    others.watch()

    assert (wakeups.checks, wakeups.is_closed) == (1, True)


def test_a_store_without_a_way_to_ask_needs_no_thread(clock: FakeClock) -> None:
    others = OtherPollers(None, endpoint="e", interval=timedelta(minutes=1), now=clock.now)
    before = threading.active_count()

    others.start()
    others.stored(START)
    others.watch()

    assert threading.active_count() == before
    others.stop()


def test_a_poller_that_is_asked_polls_at_once() -> None:
    loop = Loop(interval=3600.0).started()
    try:
        ask: Callable[[], None] = loop.poller.poll_now
        ask()

        assert loop.telemetry.reaches("polls", 2)
    finally:
        loop.poller.stop()


def test_a_child_that_is_forked_while_the_parent_asks_and_checks_does_both(
    others: OtherPollers, wakeups: CountedWakeups
) -> None:
    def ask_in_the_child() -> int:
        others.stored(START + SECOND)
        others.watch()
        others.start()
        others.stored(START + SECOND)
        asked = wakeups.is_asked()
        others.stop()
        return 0 if asked and wakeups.checks == 1 else 1

    asked, stop = (vars(event)["_cond"] for event in (others._asked, others._stop))
    with others._lock, others._checking, asked, stop:
        ended = ended_in_a_child(ask_in_the_child)

    assert ended == 0
