"""What comes when, against a dictionary: an exact bucket is exact, a lower bound is not above."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, timeout
from timeoutmgr.contracts import LoadWindow
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql import insight as bounds
from timeoutmgr.persistence.sql import searches
from timeoutmgr.persistence.sql.insight import StoreInsight
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

DUES = {f"{n:03}": NOW + (n * n * 7) % 997 for n in range(120)}
ROWS = 100
TO = {name: "mail" if int(name) % 3 == 0 else "billing" for name in DUES}
WINDOWS = st.builds(
    LoadWindow,
    start=st.integers(NOW - 50, NOW + 1_000),
    width=st.integers(1, 300),
    buckets=st.integers(1, 40),
)


@pytest.fixture
def answers(
    sql_of: Callable[[str], SqlPersistence], unique: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], StoreInsight]:
    """Answers about DUES by a clock that goes on by so many seconds for each look at it."""
    monkeypatch.setattr(searches, "FIRST", 10)
    monkeypatch.setattr(searches, "_FEWEST", 1)
    monkeypatch.setattr(bounds, "LOOKED_AT", ROWS)
    store = Stores(sql_of("sqlite"), unique)()
    store.store_many([timeout(name, due, destination=TO[name]) for name, due in DUES.items()])
    assert isinstance(store, SqlTimeoutStore)
    context, seconds = store.context, [0.0]

    def made(step: float) -> StoreInsight:
        def monotonic() -> float:
            seconds[0] += step
            return seconds[0]

        return StoreInsight(context, monotonic)

    return made


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    window=WINDOWS,
    destination=st.sampled_from([None, "mail", "billing", "nobody"]),
    step=st.sampled_from([0.0, searches.TIME / 8, searches.TIME]),
)
def test_the_counts_of_a_histogram_are_what_their_marks_say(
    answers: Callable[[float], StoreInsight],
    window: LoadWindow,
    destination: str | None,
    step: float,
) -> None:
    load = answers(step).load(window, destination=destination)

    for count, wanted in zip(load.counts, expected(window, destination), strict=True):
        assert count.number == wanted if count.exact else count.number <= wanted
    if step == 0.0 and sum(expected(window, None)) <= ROWS:
        assert load.total.exact


def expected(window: LoadWindow, destination: str | None) -> list[int]:
    """How many timeouts a dictionary has in each bucket."""
    found = Counter(
        (due - window.start) // window.width
        for name, due in DUES.items()
        if destination in {None, TO[name]}
    )
    return [found[number] for number in range(window.buckets)]
