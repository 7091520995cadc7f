"""Old rows are removed as they come; the rests between removals follow the measured times."""

from __future__ import annotations

import pytest

from tests.support.clock import FakeClock
from tests.support.store import ScriptedStore
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.satellites.housekeeping import UNPURGED, Purger
from timeoutmgr.telemetry import Counters

SECOND = 1_000_000
TOOK = 0.02
"""Seconds of each removal."""


class OldRows(ScriptedStore):
    """A store in which *arriving* rows become old each second; a removal takes 1,000 of them.

    Its lag is the remaining rows, at the rate at which rows arrive.
    """

    def __init__(self, clock: FakeClock, *, old: int = 0, arriving: int = 0) -> None:
        super().__init__(clock)
        self._fake = clock
        self._arriving = arriving
        self._removed = -old
        self._since = clock.monotonic()

    def purge(self) -> int:
        self._called("purge")
        self._fake.advance(TOOK)
        removed = min(self.left, 1_000)
        self._removed += removed
        return removed

    def purge_lag(self) -> Micros:
        return round(self.left / max(self._arriving, 1) * SECOND)

    @property
    def left(self) -> int:
        return int(self._arriving * (self._fake.monotonic() - self._since)) - self._removed


class House:
    """Rounds of removals, and the rests that they made."""

    def __init__(self, *, old: int = 0, arriving: int = 0) -> None:
        self.clock = FakeClock()
        self.store = OldRows(self.clock, old=old, arriving=arriving)
        self.telemetry = Counters()
        self.rests: list[float] = []
        self.stops_after = 10**6
        self.purger = Purger(
            self.store, telemetry=self.telemetry, rest=self._rest, monotonic=self.clock.monotonic
        )

    def run(self, seconds: float = 75.0) -> None:
        self.purger.purge_until(self.clock.monotonic() + seconds)

    def _rest(self, seconds: float) -> bool:
        self.rests.append(seconds)
        self.clock.advance(seconds)
        return len(self.rests) >= self.stops_after


def test_a_purge_removes_all_old_rows() -> None:
    house = House(old=100_500)

    house.run()

    assert house.store.left == 0
    assert house.telemetry.snapshot()["rows_purged"] == 100_500
    assert house.telemetry.snapshot()["purge_lag_seconds"] == 0


def test_removals_leave_most_of_the_time_to_other_work_while_the_lag_falls() -> None:
    house = House(old=200_000)

    house.run()

    assert house.rests == [pytest.approx(5 * TOOK)] * 200


def test_a_slow_removal_is_followed_by_a_long_rest() -> None:
    house = House(old=2_000)
    slow = house.store.purge

    def purge() -> int:
        house.clock.advance(1.0)
        return slow()

    house.store.purge = purge  # type: ignore[method-assign]  # a busy server
    house.run()

    assert house.rests == [pytest.approx(5 * (1.0 + TOOK))] * 2


def test_a_rest_ends_when_the_next_heartbeat_is_due_and_continues_after_it() -> None:
    house = House(old=10**9)
    slow = house.store.purge

    def purge() -> int:
        house.clock.advance(40.0)
        return slow()

    house.store.purge = purge  # type: ignore[method-assign]  # a server that hardly answers
    begun = house.clock.monotonic()
    house.run(75)
    assert house.clock.monotonic() - begun == pytest.approx(75)

    house.run(500)

    assert sum(house.rests[:2]) == pytest.approx(5 * (40.0 + TOOK))
    assert house.store.calls["purge"] > 1


def test_removals_keep_up_with_rows_that_age_faster_than_the_gentle_pace() -> None:
    # A gentle pace removes 8,333 a second, no rest at all 50,000.
    house = House(old=1_000, arriving=20_000)

    house.run(600)

    assert house.store.left < 15 * 20_000  # seconds of arrivals, after ten minutes
    assert min(house.rests) == pytest.approx(TOOK / 2)
    assert max(house.rests) == pytest.approx(5 * TOOK)


def test_the_lag_is_measured_while_rows_are_removed() -> None:
    house = House(old=50_000_000, arriving=10)
    house.run()

    measured = house.telemetry.snapshot()["purge_lag_seconds"]

    assert measured == pytest.approx(house.store.purge_lag() / SECOND, rel=0.05)
    assert measured > 4_000_000


def test_a_purge_ends_when_the_next_heartbeat_is_due() -> None:
    house = House(old=10**9)

    house.run(75)

    assert 75 <= house.clock.monotonic() - house.store._since < 76


def test_the_next_purge_follows_at_once_if_rows_were_removed() -> None:
    house = House(old=10**9)
    house.run(1)
    calls = house.store.calls["purge"]

    house.run(1)

    assert house.store.calls["purge"] > calls


def test_a_purge_that_finds_nothing_old_is_the_last_for_half_an_hour() -> None:
    house = House()
    house.run()
    house.clock.advance(UNPURGED - 1)
    house.run()
    assert house.store.calls["purge"] == 1

    house.clock.advance(1)
    house.run()
    assert house.store.calls["purge"] == 2


def test_an_outage_does_not_postpone_the_next_purge() -> None:
    house = House(old=1)
    house.store.fail("purge", StorageUnavailable("away"))
    with pytest.raises(StorageUnavailable):
        house.run()

    house.run()

    assert house.store.left == 0


def test_a_purge_ends_at_a_stop_request() -> None:
    house = House(old=10**9)
    house.stops_after = 3

    house.run()

    assert len(house.rests) == 3
