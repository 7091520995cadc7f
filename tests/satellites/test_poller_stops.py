"""A poller that is stopped is still, has let go of everything, and can be started again."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.satellites.polling import SOON, Loop
from tests.support.forks import ended_in_a_child
from timeoutmgr.message.instants import Micros


def test_a_stopped_poller_has_let_go_of_its_session(loop: Loop) -> None:
    loop.started()

    loop.poller.stop()

    assert loop.transport.open_sessions == 0


def test_a_stopped_poller_does_not_poll_when_woken(loop: Loop) -> None:
    loop.started()
    loop.poller.stop()

    loop.poller.wake(loop.clock.now())
    loop.poller.watch()

    assert loop.poller._scheduler is None
    loop.poller.start()
    assert loop.telemetry.reaches("polls", 2)
    loop.poller.stop()  # waits for polls that are under way
    assert loop.telemetry.snapshot()["polls"] == 2


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


def test_concurrent_wakes_and_stops_never_block_each_other() -> None:
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


def test_a_program_that_logs_at_info_hears_of_no_single_poll(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        loop.started()
        loop.poller.stop()

    assert [one.name for one in caplog.records if one.name.startswith("apscheduler")] == []


def test_a_child_that_is_forked_amid_a_poll_polls_and_stops(loop: Loop) -> None:
    polling, go_on = threading.Event(), threading.Event()
    loop.started()

    def wait() -> None:
        polling.set()
        go_on.wait(SOON)

    def poll_in_the_child() -> int:
        loop.ready = lambda: None
        loop.poller.wake(loop.clock.now())
        loop.poller.start()
        has_polled = loop.telemetry.reaches("polls", 2)
        loop.poller.stop()
        return 0 if has_polled else 1

    loop.ready = wait
    loop.poller.poll_now()
    assert polling.wait(SOON)
    ended = ended_in_a_child(poll_in_the_child)
    go_on.set()

    assert ended == 0
