"""History is written with the change that it tells of, and undone with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, outcomes, rolled_back, timeout
from timeoutmgr.contracts import HistoryEntry, KeepsHistory, OutcomeKind, TimeoutStore
from timeoutmgr.message.routes import EARLY_CANCEL
from timeoutmgr.persistence import SqlPersistence


@pytest.mark.parametrize("kind", [OutcomeKind.DISPATCHED, OutcomeKind.FAILED])
def test_history_is_undone_with_its_outcome(
    sql_of: Callable[[str], SqlPersistence], unique: str, kind: OutcomeKind
) -> None:
    # PostgreSQL: on SQLite a second transaction would wait for the first, and tell by itself.
    persistence = sql_of("postgres")
    store = Stores(persistence, unique)(atomic=True)
    store.store_many([timeout("a")])

    with rolled_back(persistence.database) as transaction:
        chunk = store.claim(NOW, 1, "o", transaction=transaction)
        with store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked:
            locked.close(outcomes(chunk.keys, kind))

    assert kind.value not in store.statistics().outcomes


def ends_of(store: TimeoutStore, timeout_id: str) -> list[tuple[str, str | None]]:
    """Return how a timeout ended, with the channels."""
    return [(entry.event, entry.channel) for entry in ends(store, timeout_id)]


def ends(store: TimeoutStore, timeout_id: str) -> list[HistoryEntry]:
    """Return the events of a timeout but its beginning, which few settings record."""
    assert isinstance(store, KeepsHistory)
    return [entry for entry in store.history(timeout_id) if entry.event != "scheduled"]


def test_the_history_of_a_cancelled_timeout_names_the_channel(store: TimeoutStore) -> None:
    assert isinstance(store, KeepsHistory)
    store.store_many([timeout("a"), timeout("b", saga="s"), timeout("c", saga="s"), timeout("d")])

    store.cancel("a", channel="cli")
    store.cancel_saga("s", channel="queue 'sales.Timeouts', message 'forged'")
    store.cancel("d")

    assert ends_of(store, "a") == [("cancelled", "cli")]
    assert ends_of(store, "b") == [("cancelled", "queue 'sales.Timeouts', message 'forged'")]
    assert ends_of(store, "c") == ends_of(store, "b")
    assert ends_of(store, "d") == [("cancelled", None)]


def test_a_history_has_the_outcome_of_its_timeout_alone(store: TimeoutStore) -> None:
    assert isinstance(store, KeepsHistory)
    store.store_many([timeout("a", NOW - SECOND), timeout("b")])

    chunk = store.claim(NOW, 1, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes(chunk.keys))

    [entry] = ends(store, "a")
    assert (entry.id, entry.event, entry.channel) == ("a", "dispatched", None)
    assert (entry.due, entry.destination, entry.attempt) == (NOW - SECOND, "billing", 0)
    assert entry.node
    assert (ends(store, "b"), store.history("nobody")) == ([], [])


def test_a_message_that_was_cancelled_before_it_came_says_so(store: TimeoutStore) -> None:
    assert isinstance(store, KeepsHistory)
    store.cancel("a", channel="cli")

    store.store_many([timeout("a")])

    assert ends_of(store, "a") == [("cancelled", EARLY_CANCEL)]


def test_a_long_history_is_cut_to_its_newest_events(sqlite: Stores) -> None:
    store = sqlite()
    assert isinstance(store, KeepsHistory)
    store.store_many([timeout("a")])
    store.reschedule("a", NOW + SECOND)
    store.cancel("a", channel="cli")

    events = [entry.event for entry in store.history("a", limit=2)]

    assert events == ["rescheduled", "cancelled"]
