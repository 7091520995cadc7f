"""The claimer without its hints: the same claims, with more reads."""

from __future__ import annotations

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, dispatch, ids, timeout
from tests.support.forks import ended_in_a_child
from timeoutmgr.persistence.sql.claim.claimer import Claimer
from timeoutmgr.persistence.sql.claim.hints import Burst, Gaps, KeyCursor, NextDue
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

HINTS = (KeyCursor, Burst, Gaps, NextDue)


@pytest.mark.parametrize(
    "without",
    [(), *((hint,) for hint in HINTS), HINTS],
    ids=lambda without: " ".join(hint.__name__ for hint in without) or "nothing",
)
def test_claimer_without_a_hint_claims_the_same_keys(sql: Stores, without: tuple[type]) -> None:
    store = sql()
    assert isinstance(store, SqlTimeoutStore)
    store.claimer = Claimer(store.context, without=without)
    store.store_many([timeout(f"{n}") for n in range(9)])

    chunks = [store.claim(NOW, 2, "o") for _ in range(3)]
    dispatch(store, chunks[1])
    store.store_many([timeout("late", NOW - SECOND), timeout("future", NOW + SECOND)])
    chunks += [store.claim(NOW, 2, "o") for _ in range(2)]
    store.store_many([timeout("2b")])
    chunks += [store.claim(NOW, 9, "o") for _ in range(2)]
    for chunk in (chunks[0], *chunks[2:]):
        dispatch(store, chunk)
    nothing = store.claim(NOW, 9, "o")
    store.store_many([timeout("soon")])
    chunks.append(store.claim(NOW, 9, "o"))

    claimed = [ids(chunk) for chunk in chunks]
    assert claimed[:4] == [["0", "1"], ["2", "3"], ["4", "5"], ["late"]]
    assert sorted(name for names in claimed[4:] for name in names) == ["2b", "6", "7", "8", "soon"]
    assert (ids(nothing), nothing.next_due) == ([], NOW + SECOND)


def test_a_child_that_is_forked_while_a_thread_of_the_parent_stores_claims(sqlite: Stores) -> None:
    store = sqlite()
    assert isinstance(store, SqlTimeoutStore)
    store.store_many([timeout("a")])

    with store.claimer._cursor._lock:
        missed = ended_in_a_child(lambda: not store.claim(NOW, 1, "o").keys)

    assert not missed
