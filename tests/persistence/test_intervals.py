"""Intervals in force never overlap: one claim ends where the next one begins."""

from __future__ import annotations

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, ids, timeout


def test_a_claim_ends_where_the_next_one_begins(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout("b"), timeout("c")])
    store.claim(NOW, 10, "o")
    store.store_many([timeout("a"), timeout("d")])

    before = store.claim(NOW, 10, "o")
    behind = store.claim(NOW, 10, "o")

    assert ids(before) == ["a"]
    assert ids(behind) == ["d"]
