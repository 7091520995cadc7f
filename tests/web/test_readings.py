"""Readings: shared, bounded in rate, and kept while a part is away."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.persistence.making import SetClock
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.web.readings import Question, Readings


class Monotonic:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def monotonic() -> Monotonic:
    return Monotonic()


@pytest.fixture
def readings(monotonic: Monotonic) -> Iterator[Readings]:
    made = Readings(SetClock(), monotonic, patience=30)
    yield made
    made.close()


def test_a_value_is_read_once_until_its_age_is_reached(
    readings: Readings, monotonic: Monotonic
) -> None:
    values = iter(range(9))

    def get() -> object:
        return readings.get(Question("key", lambda: next(values), max_age=5)).value

    assert [get(), get()] == [0, 0]
    monotonic.at = 5
    assert [get(), get()] == [1, 1]


def test_two_browsers_at_once_wait_for_a_single_read(readings: Readings) -> None:
    began, may_end, reads = threading.Event(), threading.Event(), []

    def read() -> int:
        reads.append(1)
        began.set()
        may_end.wait(30)
        return len(reads)

    found: list[object] = []
    asked = Question("key", read, max_age=5)
    threads = [
        threading.Thread(target=lambda: found.append(readings.get(asked).value)) for _ in range(2)
    ]
    threads[0].start()
    assert began.wait(30)
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join()

    assert (found, len(reads)) == ([1, 1], 1)


def test_the_readings_of_a_page_are_read_side_by_side(readings: Readings) -> None:
    both = threading.Barrier(2, timeout=30)

    found = readings.get_all(
        [Question(key, lambda: both.wait() >= 0, max_age=5) for key in ("first", "second")]
    )

    assert [each.value for each in found] == [True, True]


def test_live_reads_together_keep_to_their_rate(readings: Readings, monotonic: Monotonic) -> None:
    statements = 0

    def read() -> int:
        nonlocal statements
        statements += 3
        return statements

    for key in range(5):
        readings.get(Question(key, read, max_age=1, cost=3), live=True)
    first = statements
    for second in range(100):
        monotonic.at = float(20 + second)
        for _browser in range(10):
            for key in range(5):
                readings.get(Question(key, read, max_age=1, cost=3), live=True)

    assert first == 15
    assert 90 <= statements - first <= 102


def test_a_person_reads_although_the_share_of_live_reads_is_used(readings: Readings) -> None:
    readings.get(Question("costly", lambda: 1, max_age=1, cost=1_000), live=True)

    assert readings.get(Question("asked", lambda: 2, max_age=1)).value == 2


def test_the_last_number_and_its_instant_stay_while_the_store_is_away(
    monotonic: Monotonic,
) -> None:
    clock = SetClock()
    readings = Readings(clock, monotonic, patience=30)
    good = readings.get(Question("key", lambda: 7, max_age=1))

    def fail() -> int:
        raise StorageUnavailable("postgresql://u:secret@db/x is away")

    clock.at += 60_000_000
    monotonic.at = 60
    bad = readings.get(Question("key", fail, max_age=1))
    monotonic.at = 120
    again = readings.get(Question("key", lambda: 8, max_age=1))
    readings.close()

    assert (bad.value, bad.at, bad.summary) == (7, good.at, "The store does not answer.")
    assert bad.problem is not None
    assert "secret" not in bad.problem
    assert (again.value, again.problem) == (8, None)


def test_a_page_does_not_wait_for_a_read_that_hangs() -> None:
    readings = Readings(SetClock(), patience=0)
    may_end = threading.Event()

    found = readings.get(Question("key", lambda: may_end.wait(30), max_age=1))
    may_end.set()
    readings.close()

    assert (found.value, found.summary) == (None, "No answer yet.")


def test_an_error_of_ours_is_not_shown_as_an_outage(readings: Readings) -> None:
    with pytest.raises(ZeroDivisionError):
        readings.get(Question("key", lambda: 1 / 0, max_age=1))


def test_a_change_has_all_numbers_read_again(readings: Readings) -> None:
    values = iter(range(9))
    readings.get(Question("key", lambda: next(values), max_age=100))

    readings.forget()

    assert readings.get(Question("key", lambda: next(values), max_age=100)).value == 1


def test_a_read_that_began_before_a_change_is_not_shown_behind_it(readings: Readings) -> None:
    began, may_end, state = threading.Event(), threading.Event(), ["before"]

    def read() -> str:
        seen = state[0]
        began.set()
        may_end.wait(30)
        return seen

    asked = Question("key", read, max_age=100)
    earlier = threading.Thread(target=readings.get, args=[asked])
    earlier.start()
    assert began.wait(30)
    state[0] = "after"
    readings.forget()
    may_end.set()

    behind = readings.get(asked)
    earlier.join()

    assert (behind.value, readings.get(asked).value) == ("after", "after")


def test_the_last_good_number_is_shown_at_once_and_read_again_behind(
    readings: Readings, monotonic: Monotonic
) -> None:
    values, may_end = iter(range(9)), threading.Event()

    def read() -> int:
        may_end.wait(30)
        return next(values)

    may_end.set()
    asked = [Question("key", read, max_age=5)]
    first = readings.get_all(asked, shown_for=60)
    may_end.clear()
    monotonic.at = 30
    shown = readings.get_all(asked, shown_for=60)
    may_end.set()
    behind = readings.get_all(asked)
    monotonic.at = 100
    late = readings.get_all(asked, shown_for=60)

    assert [each.value for [each] in (first, shown, behind, late)] == [0, 0, 1, 2]
