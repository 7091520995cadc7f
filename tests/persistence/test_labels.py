"""Labels have rows while their timeout is pending, and timeouts without labels cost nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, select

from tests.persistence.conftest import SQL, Stores
from tests.persistence.explaining import statements
from tests.persistence.making import NOW, SECOND, outcomes, timeout
from timeoutmgr.contracts import OnConflict, OutcomeKind, Timeout, TimeoutFilter
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.message import headers
from timeoutmgr.message.message import with_headers
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql import mass_cancel
from timeoutmgr.persistence.sql.mass_cancel import MassCancel
from timeoutmgr.persistence.sql.store import SqlTimeoutStore


def labelled(name: str, due: int = NOW, *labels: str, saga: str | None = None) -> Timeout:
    made = timeout(name, due, saga=saga)
    text = json.dumps(labels or ("task=t", f"name={name}"))
    return replace(
        made, message=with_headers(made.message, {**made.message.headers, headers.LABELS: text})
    )


@pytest.fixture(params=SQL)
def sql_store(
    request: pytest.FixtureRequest, sql_of: Callable[[str], SqlPersistence], unique: str
) -> SqlTimeoutStore:
    store = Stores(sql_of(request.param), unique)()
    assert isinstance(store, SqlTimeoutStore)
    return store


def kept(store: SqlTimeoutStore) -> list[tuple[str, int, str]]:
    """Return all rows of labels, by the due time and id of their timeout."""
    table = store.context.tables.labels
    mine = select(table.c.id, table.c.due, table.c.label).where(table.c.endpoint == store.endpoint)
    with store.context.database.read() as connection:
        return sorted((row.id, row.due, row.label) for row in connection.execute(mine))


def rows_of(*timeouts: tuple[str, int]) -> list[tuple[str, int, str]]:
    return sorted(
        (name, due, label) for name, due in timeouts for label in ("task=t", f"name={name}")
    )


@pytest.mark.parametrize("count", [2, 40])
def test_the_rows_of_labels_are_the_rows_of_pending_timeouts(
    sql_store: SqlTimeoutStore, count: int
) -> None:
    store = sql_store
    store.store_many([labelled(f"{n}") for n in range(count)])
    store.store_many([labelled("1"), labelled("new"), timeout("none")])
    chunk = store.claim(NOW, count + 2, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes(chunk.keys))

    assert kept(store) == []


@pytest.mark.parametrize("count", [1, 40])
def test_timeouts_and_their_labels_are_one_commit(sql_store: SqlTimeoutStore, count: int) -> None:
    commits: list[Any] = []

    def note(connection: Any) -> None:
        commits.append(connection)

    engine = sql_store.context.database.engine
    event.listen(engine, "commit", note)
    sql_store.store_many([labelled(f"{n}") for n in range(count)])
    event.remove(engine, "commit", note)

    assert len(commits) == 1
    assert len(kept(sql_store)) == 2 * count


def test_labels_move_with_a_retry_a_reschedule_and_a_replacement(
    sql_store: SqlTimeoutStore,
) -> None:
    store = sql_store
    store.store_many([labelled("a"), labelled("b"), labelled("c", NOW + SECOND), labelled("d")])
    chunk = store.claim(NOW, 3, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        retry, *_ = outcomes(chunk.keys[:1], OutcomeKind.RETRY)
        others = outcomes(chunk.keys[1:2], OutcomeKind.FAILED) + outcomes(chunk.keys[2:])
        locked.close([replace(retry, next_try=NOW + 5), *others])
    assert kept(store) == rows_of(("a", NOW + 5), ("c", NOW + SECOND))

    store.reschedule("a", NOW + 9)
    store.store_many(
        [
            replace(
                labelled("c", NOW + 3, "other=1"),
                on_conflict=OnConflict.REPLACE,
                created=NOW + SECOND,
            )
        ]
    )
    assert kept(store) == [*rows_of(("a", NOW + 9)), ("c", NOW + 3, "other=1")]
    store.cancel("a")
    assert kept(store) == [("c", NOW + 3, "other=1")]


def test_labels_end_with_a_cancelled_saga_and_with_a_cancel_by_label(
    sql_store: SqlTimeoutStore,
) -> None:
    store = sql_store
    store.store_many(
        [labelled("a", saga="s"), timeout("b", saga="s"), labelled("c"), labelled("d", NOW, "e=f")]
    )

    assert sorted(store.cancel_saga("s")) == ["a", "b"]
    store.cancel_where(TimeoutFilter(labels=("task=t",)), sent_until=NOW)

    assert kept(store) == [("d", NOW, "e=f")]


@pytest.fixture(name="statements")
def noted_statements(sql_store: SqlTimeoutStore) -> Iterator[list[str]]:
    with statements(sql_store.context.database.engine) as seen:
        yield seen


def test_a_timeout_without_labels_needs_no_statement_about_labels(
    sql_store: SqlTimeoutStore, statements: list[str]
) -> None:
    store = sql_store
    store.store_many([timeout("a"), timeout("b", saga="s"), timeout("c"), timeout("d")])
    store.cancel_saga("s")
    store.cancel("c")
    store.reschedule("d", NOW - 1)
    chunk = store.claim(NOW, 3, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        [first, *_] = chunk.keys
        retried = replace(outcomes([first], OutcomeKind.RETRY)[0], next_try=NOW + 1)
        locked.close([retried, *outcomes(chunk.keys[1:])])
    store.list(TimeoutFilter())

    assert len(statements) > 5
    assert [one for one in statements if "timeout_labels" in one] == []


def test_malformed_labels_of_a_row_have_no_rows_and_do_not_stop_its_dispatch(
    sql_store: SqlTimeoutStore,
) -> None:
    store = sql_store
    made = timeout("a")
    broken = replace(made, message=with_headers(made.message, {headers.LABELS: '["no equals"]'}))
    store.store_many([broken])
    chunk = store.claim(NOW, 1, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes(chunk.keys))

    assert kept(store) == []


def test_rows_of_labels_go_with_a_bulk_run_and_its_undo(sql_store: SqlTimeoutStore) -> None:
    store = sql_store
    store.store_many([labelled(f"{n}", NOW + n) for n in range(3)])
    store.store_many([labelled("other", NOW, "task=other")])
    runs = Timeouts(store, lambda due: None).bulk
    shift = BulkChange(action=BulkAction.SHIFT, by=SECOND)
    cancel = BulkChange(action=BulkAction.CANCEL)
    other = ("other", NOW, "task=other")

    shifted = runs.apply(runs.plan(shift, labels={"task": "t"}).run.id)
    assert shifted.changed == 3
    assert kept(store) == sorted([*rows_of(*((f"{n}", NOW + SECOND + n) for n in range(3))), other])

    runs.undo(shifted.id)
    assert kept(store) == sorted([*rows_of(*((f"{n}", NOW + n) for n in range(3))), other])

    runs.apply(runs.plan(cancel, labels={"task": "t", "name": "1"}).run.id)
    assert kept(store) == sorted([*rows_of(("0", NOW), ("2", NOW + 2)), other])
    runs.apply(runs.plan(cancel).run.id)
    assert kept(store) == []


def test_rows_of_labels_go_with_parked_timeouts_and_come_back(sql_store: SqlTimeoutStore) -> None:
    store = sql_store
    store.store_many([labelled("a", NOW)])
    timeouts = Timeouts(store, lambda due: None)
    timeouts.pause("billing")
    chunk = store.claim(NOW, 10, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        assert locked.timeouts == []
        locked.close([])

    [pause] = timeouts.pauses()
    assert kept(store) == rows_of(("a", pause.place))
    assert [one.id for one in store.list(TimeoutFilter(labels=("task=t",)))] == ["a"]
    timeouts.resume("billing")

    assert kept(store) == rows_of(("a", NOW))


@pytest.mark.parametrize("which", [TimeoutFilter(labels=("task=t",)), TimeoutFilter(saga_id="s")])
def test_a_cancel_in_several_transactions_misses_no_timeout_that_moves_before_them(
    sql_store: SqlTimeoutStore, which: TimeoutFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = sql_store, MassCancel._run
    names = ["a", "b", "c", "d"]
    store.store_many(
        [labelled(name, NOW + at * SECOND, saga="s") for at, name in enumerate(names, 10)]
    )
    moved: list[object] = []

    def run_and_move(*given: Any, **named: Any) -> Any:
        part = run(*given, **named)
        if not moved:
            moved.append(store.reschedule("d", NOW + SECOND))
        return part

    monkeypatch.setattr(mass_cancel, "AT_ONCE", 3)
    monkeypatch.setattr(MassCancel, "_run", run_and_move)

    found = store.cancel_where(which, sent_until=NOW)

    assert sorted(one.timeout.id for one in found) == names
    assert store.count(TimeoutFilter()) == 0


@pytest.mark.parametrize("length", [255, 300])
def test_a_cancel_of_a_saga_takes_an_id_of_any_length(
    sql_store: SqlTimeoutStore, length: int
) -> None:
    saga = "\U0001f600" * length
    sql_store.store_many([timeout("of it", saga=saga[:255])])

    found = sql_store.cancel_where(TimeoutFilter(saga_id=saga), sent_until=NOW)

    assert [one.timeout.id for one in found] == (["of it"] if length == 255 else [])
