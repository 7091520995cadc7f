"""The number that pages: the age of the oldest due timeout that no pause holds."""

from __future__ import annotations

import re
from typing import Any

from tests.persistence.conftest import Stores
from tests.persistence.making import SECOND, dispatch, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.metrics.exposition import Exposition
from timeoutmgr.metrics.memory import CountMemory, State
from timeoutmgr.metrics.samples import StoreDetails, age_in

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


def test_a_pause_is_shown_while_it_is_in_force_and_as_ended_after_it(sql: Stores) -> None:
    store: Any = sql()
    counts = CountMemory.create(1)
    section = counts.sections[0]
    section.set_state(State.TICK, 1.0)
    sample = StoreDetails(store, SystemClock(), counts, section)

    def shown() -> list[Any]:
        sample()
        page = Exposition(counts, "sales").render("")[0].decode()
        return re.findall(r'^timeoutmgr_paused\{destination="(.+?)".*\} (.+)$', page, re.M)

    before = shown()
    store.pause("billing", None, BY)
    store.pause(None, None, BY)
    during = shown()
    for destination in ("billing", None):
        store.resume(destination, BY)
    while not store.unpark().is_last:
        pass

    assert before == []
    assert during == [("billing", "1.0"), ("*", "1.0")]
    assert shown() == [("billing", "0.0"), ("*", "0.0")]
