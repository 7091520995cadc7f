"""A clock that jumps holds no poll up, and the clocks' difference is measured and told."""

from __future__ import annotations

from functools import partial

import pytest

from tests.satellites.polling import DAY, Loop
from tests.support.makers import SECOND, a_timeout
from timeoutmgr.message.instants import Micros


@pytest.mark.behaviour(54)
def test_a_poll_that_moved_away_with_the_wall_clock_is_forced_by_the_watchdog(loop: Loop) -> None:
    loop.started()
    loop.clock.mono = 62.0

    assert is_polled_again_when_set(loop, by=-3600 * SECOND)


@pytest.mark.behaviour(54)
@pytest.mark.parametrize("ahead", [14 * DAY, -14 * DAY])
def test_a_clock_that_is_not_the_hosts_holds_no_poll_up(loop: Loop, ahead: Micros) -> None:
    loop.clock.wall = ahead

    loop.started()
    loop.poller.wake(loop.store.now() + SECOND // 10)

    assert loop.telemetry.reaches("polls", 2)


@pytest.mark.behaviour(54)
def test_a_clock_that_a_test_moves_on_brings_the_poll_at_its_next_watch(loop: Loop) -> None:
    loop.started()

    assert is_polled_again_when_set(loop, by=14 * DAY)


def is_polled_again_when_set(loop: Loop, by: Micros) -> bool:
    """Return whether a second poll follows when the wall clock is set *by* so much and watched.

    Again and again: the end of the first poll may just overwrite the time that a watch asks for.
    """
    for _ in range(20):
        loop.clock.wall += by
        loop.poller.watch()
        if loop.telemetry.reaches("polls", 2, within=1.0):
            return True
    return False


@pytest.mark.behaviour(54)
def test_the_watchdog_forces_no_poll_while_they_come_as_they_should(loop: Loop) -> None:
    loop.started()
    loop.clock.wall, loop.clock.mono = 30 * SECOND, 30.0

    loop.poller.watch()

    assert "polls_forced" not in loop.telemetry.snapshot()


@pytest.mark.behaviour(55, 139)
@pytest.mark.parametrize(
    ("offset", "warned", "critical"),
    [(0.2, False, 0), (5, True, 0), (300, False, 1), (-300, False, 1)],
)
def test_the_clocks_offset_is_measured_and_reported(
    caplog: pytest.LogCaptureFixture, offset: float, warned: bool, critical: int
) -> None:
    loop = Loop(offset=round(offset * SECOND))

    loop.poller.measure_offset()

    assert loop.telemetry.snapshot()["clock_offset_seconds"] == pytest.approx(offset, abs=0.1)
    assert ("the database's clock differs" in caplog.text) is warned
    assert len(loop.offsets) == critical


@pytest.mark.behaviour(55)
@pytest.mark.parametrize(
    ("offsets", "reported"),
    [
        ([300, 300, 300.4, 290], [300]),
        ([300, 5, 300], [300, 300]),
        ([300, -300, 1000], [300, -300, 1000]),
        ([5, 40, 60, 80], [40, 80]),
    ],
)
def test_a_critical_offset_is_reported_once_until_it_moves(
    offsets: list[float], reported: list[float]
) -> None:
    """The measurement of the heartbeat forces a poll, which measures again."""
    loop = Loop()

    for offset in offsets:
        loop.poller.measure_offset(partial(round, offset * SECOND))

    assert loop.offsets == reported


@pytest.mark.behaviour(55)
def test_a_poller_that_starts_again_reports_its_critical_offset_again() -> None:
    loop = Loop()
    loop.poller.measure_offset(lambda: 300 * SECOND)
    try:
        loop.started()

        loop.poller.measure_offset(lambda: 300 * SECOND)

        assert loop.offsets == [300, 300]
    finally:
        loop.poller.stop()


@pytest.mark.behaviour(55)
def test_an_offset_known_from_another_answer_is_not_queried_again() -> None:
    loop = Loop(offset=0)

    loop.poller.measure_offset(lambda: 5 * SECOND)

    assert loop.telemetry.snapshot()["clock_offset_seconds"] == 5.0


@pytest.mark.behaviour(55)
def test_a_store_whose_clock_is_set_back_is_polled_no_earlier_than_its_timeout_is_due() -> None:
    loop = Loop(offset=0)
    loop.poller.measure_offset()
    loop.store._offset = -3600 * SECOND
    loop.store.store_many([a_timeout("m", loop.store.now() + 60 * SECOND)])

    planned = loop.poller._poll_once()

    assert planned is not None
    assert planned > loop.clock.now()


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
