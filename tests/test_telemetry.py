from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from timeoutmgr.telemetry import Counters


def test_counts_add_up() -> None:
    counters = Counters()

    counters.count("stored")
    counters.count("stored", 4)

    assert counters.snapshot() == {"stored": 5}


def test_the_last_value_is_kept() -> None:
    counters = Counters()

    counters.value("lateness_seconds", 3.0)
    counters.value("lateness_seconds", 0.5)

    assert counters.snapshot() == {"lateness_seconds": 0.5}


def test_a_snapshot_does_not_change_afterwards() -> None:
    counters = Counters()
    before = counters.snapshot()

    counters.count("stored")

    assert before == {}


def test_no_count_of_many_threads_is_lost() -> None:
    counters = Counters()

    def storm() -> None:
        for _ in range(1000):
            counters.count("stored")

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(storm)

    assert counters.snapshot() == {"stored": 8000}
