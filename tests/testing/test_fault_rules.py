"""The faults of bytes follow from the settings, and from the chance that is passed in."""

from __future__ import annotations

from random import Random

from timeoutmgr.testing.fault_link import Way


def test_one_seed_makes_the_same_jitter_again() -> None:
    way = Way(latency=0.1, jitter=0.05)

    one, other = ([way.delay(chance) for _ in range(9)] for chance in (Random("7"), Random("7")))

    assert one == other
    assert len(set(one)) == 9


def test_jitter_goes_both_ways_and_never_below_nothing() -> None:
    chance = Random("7")

    some = [Way(latency=0.1, jitter=0.05).delay(chance) for _ in range(999)]
    wide = [Way(latency=0.1, jitter=0.5).delay(chance) for _ in range(999)]

    assert 0.05 <= min(some) < 0.06
    assert 0.14 < max(some) <= 0.15
    assert min(wide) == 0.0


def test_a_throttled_way_is_cut_into_small_pieces() -> None:
    assert Way().slices(10_000) == 10_000
    assert Way(bytes_per_second=1_000).slices(10_000) == 50
    assert Way(bytes_per_second=1_000).slices(20) == 20
    assert Way(bytes_per_second=1).slices(20) == 1
