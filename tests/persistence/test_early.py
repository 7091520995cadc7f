"""What is asked for by its key, and is not due, is left where it is."""

from __future__ import annotations

from tests.persistence.making import NOW, timeout
from timeoutmgr.contracts import Key, TimeoutStore


def test_what_is_not_due_is_not_taken_although_it_is_asked_for(store: TimeoutStore) -> None:
    store.store_many([timeout("a"), timeout("b", NOW + 1)])
    chunk = store.claim(NOW, 10, "o")

    with store.take_many(chunk.token, [*chunk.keys, Key(NOW + 1, "b")]) as taken:
        taken_ids = [one.id for one in taken.timeouts]

    assert taken_ids == ["a"]
