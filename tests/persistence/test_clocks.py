"""Due times are compared with the database's clock, whatever the host's says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.persistence.making import SECOND, SetClock, dispatch, ids, outcomes, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Key
from timeoutmgr.persistence import SqlPersistence

HOUR = 3_600 * SECOND


@pytest.fixture(params=["postgres", "mysql"])
def persistence(request: pytest.FixtureRequest, unique: str) -> Iterator[SqlPersistence]:
    """A persistence that goes by the database's clock."""
    made = SqlPersistence(request.getfixturevalue(f"{request.param}_url"), prefix=f"{unique}_")
    made.install()
    yield made
    made.close()


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
@pytest.mark.behaviour(54, 55)
def test_a_wrong_host_clock_makes_nothing_early_or_late(
    persistence: SqlPersistence, skew: int
) -> None:
    right = SystemClock()
    wrong = SetClock(right.now() + skew)
    store = persistence.timeouts("e", wrong)
    due, later = right.now() - 1, right.now() + HOUR // 2
    store.store_many([timeout("due", due), timeout("later", later)])

    chunk = store.claim(wrong.now(), 10, "o")
    with store.take_many(chunk.token, [*chunk.keys, Key(later, "later")]) as taken:
        in_hand = [one.id for one in taken.timeouts]
        taken.close(outcomes(chunk.keys, at=right.now()))

    assert ids(chunk) == in_hand == ["due"]
    assert chunk.next_due == later
    assert abs(store.now() - right.now()) < 5 * SECOND


@pytest.mark.behaviour(55)
def test_a_heartbeat_tells_how_far_ahead_the_databases_clock_is(
    postgres_url: str, unique: str
) -> None:
    with closing(SqlPersistence(postgres_url, prefix=f"{unique}_")) as persistence:
        persistence.install()
        wrong = SetClock(SystemClock().now() - HOUR)
        store = persistence.timeouts("e", wrong)

        first, second = store.heartbeat("o", {}), store.heartbeat("o", {})
        store.farewell("o")

    assert first is None
    assert second == pytest.approx(HOUR, abs=60 * SECOND)


@pytest.mark.behaviour(121)
def test_the_databases_clock_has_microseconds(persistence: SqlPersistence) -> None:
    store = persistence.timeouts("e", SetClock())

    readings = [store.now() for _ in range(20)]

    assert readings == sorted(readings)
    assert any(reading % 1_000 for reading in readings)


def test_what_is_due_by_the_database_goes_through_to_the_end(persistence: SqlPersistence) -> None:
    store = persistence.timeouts("e", SetClock(0))
    store.store_many([timeout(f"{n}", n) for n in range(5)])

    chunk = store.claim(0, 10, "o")

    assert len(dispatch(store, chunk, at=SystemClock().now())) == 5
