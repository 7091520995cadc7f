"""The number that pages: the age of the oldest due timeout that no pause holds."""

from __future__ import annotations

from typing import Any

from tests.persistence.conftest import Stores
from tests.persistence.making import SECOND, dispatch, timeout
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.metrics.samples import age_in

BY = ChangedBy(channel="cli", actor="ann", reason="billing is down")


def park(store: Any, at: int) -> list[str]:
    """Claim and dispatch all that is due: what a pause holds is parked."""
    found: list[str] = []
    while (chunk := store.claim(at, 100, "o")).keys:
        found += dispatch(store, chunk, at)
    return found


def test_the_age_is_that_of_the_oldest_due_timeout(sql: Stores) -> None:
    store: Any = sql()
    now = store.now()
    store.store_many([timeout("a", now - 60 * SECOND), timeout("b", now - 5 * SECOND)])

    age = age_in(store)()

    assert age is not None
    assert 60 * SECOND <= age < 600 * SECOND


def test_a_store_without_timeouts_has_no_age(sql: Stores) -> None:
    assert age_in(sql())() is None


def test_a_timeout_that_a_pause_holds_has_no_age_and_another_behind_it_has(sql: Stores) -> None:
    store: Any = sql()
    now = store.now()
    store.store_many([timeout("held", now - 600 * SECOND)])
    store.pause("billing", None, BY)
    assert park(store, now) == []

    held = age_in(store)()
    store.store_many([timeout("free", now - 60 * SECOND, destination="shipping")])
    freed = age_in(store)()

    assert held is not None
    assert held <= 0
    assert freed is not None
    assert 60 * SECOND <= freed < 600 * SECOND
