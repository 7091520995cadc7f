"""Wakes without a pause cost a poll every tenth of a second, and a single wake is not late."""

from __future__ import annotations

from tests.support.forks import ended_in_a_child
from timeoutmgr.satellites.timeout_manager.wakeups import EVERY, WakeLimit

NOW = 1_000_000


def test_a_single_wake_is_for_at_once() -> None:
    assert WakeLimit().poll_time(NOW - 5, NOW) == NOW - 5


def test_wakes_without_a_pause_are_joined() -> None:
    limit = WakeLimit()

    asked = {limit.poll_time(0, NOW + n) for n in range(0, 10 * EVERY, 1_000)}

    assert len([due for due in asked if due > 0]) <= 10
    assert all(due % EVERY == NOW % EVERY for due in asked if due > 0)


def test_a_wake_to_a_later_due_time_is_not_put_off() -> None:
    limit = WakeLimit()
    limit.poll_time(0, NOW)

    assert limit.poll_time(NOW + 5, NOW) == NOW + 5


def test_a_clock_that_is_set_back_keeps_no_wake_waiting() -> None:
    limit = WakeLimit()
    limit.poll_time(0, NOW + 3600 * EVERY)

    assert limit.poll_time(0, NOW) == 0


def test_a_child_that_is_forked_while_a_thread_of_the_parent_is_limited_is_limited_too() -> None:
    limit = WakeLimit()

    with limit._lock:
        ended = ended_in_a_child(lambda: limit.poll_time(0, NOW))

    assert ended == 0
