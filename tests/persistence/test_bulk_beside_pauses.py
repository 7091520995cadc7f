"""A bulk run and its undo leave no timeout at the place of a pause that is over."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, timeout
from tests.persistence.test_bulk_runs import BY, HOUR, SHIFT, runs_of
from tests.persistence.test_pausing import face, sent
from timeoutmgr.contracts import Outcome, OutcomeKind
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange
from timeoutmgr.message.instants import from_micros

CHANGES = (
    SHIFT,
    BulkChange(action=BulkAction.MOVE, to=NOW + HOUR),
    BulkChange(action=BulkAction.SPREAD, start=NOW + HOUR, end=NOW + 2 * HOUR),
)


def parked_and_changed(store: Any, change: BulkChange) -> str:
    """Park the timeout ``a``, change it in bulk, and return the run."""
    store.store_many([timeout("a")])
    face(store).pause("billing", by=BY)
    assert sent(store) == []
    run_id: str = runs_of(store).plan(change, by=BY).run.id
    assert runs_of(store).apply(run_id, by=BY).changed == 1
    return run_id


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.action.value)
def test_an_undo_has_a_timeout_sent_whose_pause_is_over(sql: Stores, change: BulkChange) -> None:
    store: Any = sql()
    run_id = parked_and_changed(store, change)
    face(store).resume("billing", by=BY)

    assert runs_of(store).undo(run_id, by=BY).undone == 1

    found = store.find("a")
    assert found is not None
    assert found[1].due == NOW
    assert sent(store) == ["a"]


def test_an_undo_wakes_the_poller_for_a_timeout_that_was_parked(sqlite: Stores) -> None:
    store: Any = sqlite()
    run_id = parked_and_changed(store, SHIFT)
    face(store).resume("billing", by=BY)
    wakes: list[int] = []

    type(face(store))(store, wakes.append).bulk.undo(run_id, by=BY)

    assert wakes == [NOW]


def test_an_undo_has_a_timeout_parked_again_by_the_pause_that_holds_then(sql: Stores) -> None:
    store: Any = sql()
    run_id = parked_and_changed(store, SHIFT)
    face(store).pause("billing", until=from_micros(NOW + HOUR), by=BY)

    runs_of(store).undo(run_id, by=BY)

    assert sent(store) == []
    assert [pause.parked.number for pause in store.pauses()] == [1]
    sql.clock.at = NOW + HOUR
    assert sent(store, NOW + HOUR) == ["a"]


def test_an_undo_of_an_earlier_version_s_run_trusts_no_place_of_a_pause(sql: Stores) -> None:
    store: Any = sql()
    run_id = parked_and_changed(store, SHIFT)
    face(store).resume("billing", by=BY)
    runs = store.context.tables.runs
    with store.context.database.begin() as connection:
        report = '{"first_due": 1, "last_due": 1, "selected": 1}'
        connection.execute(update(runs).where(runs.c.run_id == run_id).values(report=report))

    runs_of(store).undo(run_id, by=BY)

    assert sent(store) == ["a"]


def test_a_retry_leaves_out_what_a_pause_has_parked(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("waits"), timeout("parked", destination="shipping")])
    face(store).pause("shipping", by=BY)
    chunk = store.claim(NOW, 10, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        [one] = locked.timeouts
        retry = Outcome(key=one.key, kind=OutcomeKind.RETRY, at=NOW, next_try=NOW + HOUR)
        locked.close([retry])
    runs = runs_of(store)

    run_id = runs.plan(BulkChange(action=BulkAction.RETRY), by=BY).run.id

    assert [key.id for key in runs.keys(run_id)] == ["waits"]
