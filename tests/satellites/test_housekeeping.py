from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.clock import FakeClock
from tests.support.forks import ended_in_a_child
from tests.support.store import ScriptedStore
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.satellites.housekeeping import Housekeeping
from timeoutmgr.telemetry import Counters

AWAY = StorageUnavailable("away")
SOON = 10.0


class House:
    """Housekeeping over a real store."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = ScriptedStore(self.clock)
        self.telemetry = Counters()
        self.ready: Callable[[], None] = lambda: None
        self.measured = threading.Event()
        self.keeping = Housekeeping(
            self.store,
            owner="me",
            ready=lambda: self.ready(),
            measure_offset=self.measure,
            state=lambda: {"breaker": "disarmed"},
            telemetry=self.telemetry,
            monotonic=self.clock.monotonic,
        )

    def measure(self, read_offset: Callable[[], Micros | None]) -> None:
        read_offset()
        self.measured.set()


@pytest.fixture
def house() -> House:
    return House()


def test_a_heartbeat_shows_the_process_and_its_state(house: House) -> None:
    house.keeping.keep_house()

    [record] = house.store.processes()
    assert (record.owner, record.endpoint, record.state) == (
        "me",
        "sales",
        {"breaker": "disarmed"},
    )


def test_a_restart_removes_old_rows_again(house: House) -> None:
    looks = threading.Semaphore(0)

    def purge() -> int:
        looks.release()
        return 0

    house.store.purge = purge  # type: ignore[method-assign]  # to be counted

    for _ in range(2):
        house.keeping.start()
        assert looks.acquire(timeout=SOON)
        house.keeping.stop()


@pytest.mark.behaviour(55)
def test_clocks_are_compared_each_time(house: House) -> None:
    house.keeping.keep_house()

    assert house.measured.is_set()


def test_rows_past_retention_are_removed(house: House) -> None:
    house.store.cancel("old")
    house.clock.advance(31 * 86_400)

    house.keeping.keep_house()

    assert house.telemetry.snapshot()["rows_purged"] == 1
    assert house.store.find("old") is None


def test_where_nothing_was_old_it_is_looked_for_again_half_an_hour_later(house: House) -> None:
    found = iter([0, 0])
    house.store.purge = lambda: next(found)  # type: ignore[method-assign]  # to be counted

    for _ in range(24):
        house.keeping.keep_house()
        house.clock.advance(75)
    assert list(found) == [0]

    found = iter([0])
    house.keeping.keep_house()
    assert list(found) == []


def test_the_storage_is_tended_until_there_is_no_more_to_do(house: House) -> None:
    steps = iter([True, True, False])
    house.store.run_maintenance = lambda: next(steps)  # type: ignore[method-assign]  # a store with work

    house.keeping.keep_house()

    assert list(steps) == []


def test_slow_maintenance_does_not_delay_the_next_heartbeat(house: House) -> None:
    def slow() -> bool:
        house.clock.advance(2.0)
        return True

    def wait(timeout: float | None = None) -> bool:
        house.clock.advance(timeout or 0.0)
        return False

    house.store.run_maintenance = slow  # type: ignore[method-assign]  # a store with much work
    house.keeping._stop.wait = wait  # type: ignore[method-assign]  # the clock of the test
    begun = house.clock.monotonic()

    house.keeping.keep_house()

    assert house.clock.monotonic() - begun < 75


def test_while_the_storage_is_away_nothing_is_written(house: House) -> None:
    def ready() -> None:
        raise AWAY

    house.ready = ready

    with pytest.raises(StorageUnavailable):
        house.keeping.keep_house()

    assert house.store.processes() == []


@pytest.mark.parametrize("error", [AWAY, RuntimeError("a bug")])
def test_an_error_does_not_end_it(house: House, error: Exception) -> None:
    failed = threading.Event()

    def ready() -> None:
        failed.set()
        raise error

    house.ready = ready
    house.keeping.start()

    assert failed.wait(SOON)
    house.keeping.stop()


def test_the_first_heartbeat_is_written_at_once(house: House) -> None:
    house.keeping.start()

    assert house.measured.wait(SOON)
    house.keeping.stop()


def test_stop_before_start_and_twice_is_fine(house: House) -> None:
    house.keeping.stop()
    house.keeping.start()
    house.keeping.stop()
    house.keeping.stop()


def test_housekeeping_of_a_forked_child_rests_until_the_child_stops_it(house: House) -> None:
    def stop_in_the_child() -> int:
        house.keeping.stop()
        return 0 if house.keeping._purger.rest(3_600.0) else 1

    house.keeping.start()
    assert house.measured.wait(SOON)
    with vars(house.keeping._stop)["_cond"]:
        ended = ended_in_a_child(stop_in_the_child)
    house.keeping.stop()

    assert ended == 0
