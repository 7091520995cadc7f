"""A plan checks what it is given, counts each timeout once, and keeps its keys for the undo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event

from tests.persistence.conftest import Stores
from tests.persistence.explaining import statements
from tests.persistence.making import NOW, SECOND, timeout
from tests.persistence.test_bulk_runs import (
    BY,
    CANCEL,
    HOUR,
    LATER,
    SHIFT,
    pending,
    runs_of,
    stored,
)
from timeoutmgr.contracts import Timeout, TimeoutFilter
from timeoutmgr.contracts.audit import AUDITED_BYTES
from timeoutmgr.contracts.bulk_runs import (
    BulkAction,
    BulkChange,
    BulkState,
    KeepsBulkRuns,
)
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.message import with_headers
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.persistence.sql import bulk_runs, queries
from timeoutmgr.persistence.sql.maintenance import StoreMaintenance

DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run of few timeouts have several batches and pages."""
    monkeypatch.setattr(bulk_runs, "BATCH", 3)
    monkeypatch.setattr(bulk_runs, "_PAGE", 6)


def purge(store: Any) -> None:
    while store.purge():
        pass


# --- what a plan is given ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"action": BulkAction.SHIFT, "by": 0.5}, "shift needs by as a whole number .* got 0.5"),
        ({"action": BulkAction.SHIFT, "by": True}, "shift needs by .* got True"),
        ({"action": BulkAction.SHIFT, "by": timedelta(hours=2)}, "BulkChange.shift takes"),
        ({"action": BulkAction.MOVE, "to": "tomorrow"}, "move needs to .* got 'tomorrow'"),
        ({"action": BulkAction.SPREAD, "start": 1.0, "end": 2}, "spread needs start .* got 1.0"),
        ({"action": BulkAction.SPREAD, "start": 1, "end": "2"}, "spread needs end .* got '2'"),
        ({"action": BulkAction.REROUTE, "destination": 5}, "the name of a queue"),
        ({"action": "retry"}, "a BulkAction, got 'retry'"),
    ],
)
def test_a_change_with_values_of_another_type_is_refused(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidMessage, match=message):
        BulkChange(**values)


def test_a_change_is_made_of_the_times_of_python() -> None:
    berlin = datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    epoch_seconds = 1_893_456_000

    assert BulkChange.shift(timedelta(minutes=-1)).by == -60 * SECOND
    assert BulkChange.move(berlin).to == epoch_seconds * SECOND
    spread = BulkChange.spread(berlin, berlin + timedelta(seconds=1))
    assert (spread.start, spread.end) == (epoch_seconds * SECOND, (epoch_seconds + 1) * SECOND)


def test_a_change_of_a_time_without_zone_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="has no time zone"):
        BulkChange.move(datetime(2030, 1, 1))


def test_a_run_that_an_earlier_version_kept_with_another_value_is_listed() -> None:
    kept = BulkChange.from_document({"action": "shift", "by": 0.5})

    assert (kept.action, kept.by, kept.document()) == (
        BulkAction.SHIFT,
        0.5,
        {"action": "shift", "by": 0.5},
    )
    assert BulkChange.from_document(SHIFT.document()) == SHIFT


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limit": -1}, "a limit is a whole number from 0, got -1"),
        ({"limit": 1.5}, "a limit is a whole number from 0, got 1.5"),
        ({"ids": ["t000"], "destination": "shipping"}, "got ids and destination"),
        ({"ids": ["t000"], "labels": {"a": "b"}, "saga_id": "s"}, "ids and labels, saga_id"),
        ({"ids": "t000"}, "a list of ids, got 't000'"),
        ({"ids": None}, "a list of ids, got None"),
        ({"ids": ["t000"], "saga_id": None}, "got ids and saga_id"),
        ({"saga_id": None}, "saga_id is None, .* give a value, or leave saga_id out"),
        ({"saga_id": "s", "id_prefix": ""}, "id_prefix is ''"),
        ({"due_from": None}, "due_from is None"),
        ({"labels": {}}, "labels is {}"),
        ({"labels": {"a": "b", "c": []}}, "label 'c' has no value"),
        ({"change": BulkChange(action=BulkAction.MOVE, to=2**63)}, "the years 1 to 9999"),
        ({"change": BulkChange(action=BulkAction.SPREAD, start=0, end=2**58)}, "1 to 9999"),
    ],
)
def test_a_plan_that_cannot_be_as_its_caller_means_it_is_refused(
    sqlite: Stores, given: dict[str, Any], message: str
) -> None:
    store: Any = sqlite()
    stored(store, 3)

    with pytest.raises(InvalidMessage, match=message):
        runs_of(store).plan(**{"change": CANCEL, "by": BY, **given})

    assert store.bulk_runs() == []


def test_a_plan_of_ids_has_each_timeout_once_by_whichever_id(
    sql: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_TOGETHER", 3)
    store: Any = sql()
    id_of = partial(timeout_id, store.endpoint)
    first, second, cancelled, last = (id_of(f"m{number}") for number in range(4))
    # Two messages that bear ids of timeouts: the id of a known timeout, and of none.
    hidden, nested = id_of(last), id_of(id_of("unknown"))
    names = [first, second, cancelled, last, hidden, nested, "plain", "left"]
    store.store_many([timeout(name, LATER + n) for n, name in enumerate(names)])
    store.cancel(cancelled)

    given = ["m0", "m1", "m2", "m9", second, last, id_of("unknown"), "plain"]
    plan = runs_of(store).plan(CANCEL, ids=given, by=BY)

    assert [one.id for one in plan.samples] == [first, second, last, nested, "plain"]


def test_a_plan_of_ids_misses_no_timeout_that_moves_meanwhile(
    sql: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_TOGETHER", 1)
    store: Any = sql()
    made = stored(store, 4)
    moved: list[str] = []

    def move_the_next(_c: Any, _k: Any, statement: str, *_: Any) -> None:
        if "UNION ALL" in statement and len(moved) < len(made):
            moved.append(made[len(moved)].id)
            for one in moved[:1] + moved[-1:]:
                store.reschedule(one, LATER + HOUR + len(moved))

    engine = store.context.database.engine
    event.listen(engine, "before_cursor_execute", move_the_next)
    plan = runs_of(store).plan(CANCEL, ids=[one.id for one in made], by=BY)
    event.remove(engine, "before_cursor_execute", move_the_next)

    assert len(moved) == 4
    assert plan.run.selected == 4


def test_a_plan_of_many_ids_has_as_many_statements_as_a_plan_of_one(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 1)
    runs, counted = runs_of(store), []
    runs.plan(CANCEL, ids=["t000"], by=BY)

    for names in (["t000"], ["t000", *(f"unknown {number}" for number in range(49))]):
        with statements(store.context.database.engine) as found:
            runs.plan(CANCEL, ids=names, by=BY)
        counted.append(len(found))

    assert 0 < counted[1] == counted[0]


def test_a_selection_that_is_too_long_for_the_audit_is_refused_before_the_plan(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 3)
    runs = runs_of(store)
    ids = ["é" * 250 + f"{number:03}" for number in range(100)]

    with pytest.raises(InvalidMessage, match=r"selection of this cancel has 100,\d+ bytes"):
        runs.plan(CANCEL, saga_id="x" * 100_000, by=BY)
    with pytest.raises(InvalidMessage, match="a message id is text of 1 to 200 characters"):
        runs.plan(CANCEL, ids=ids, by=BY)

    assert store.bulk_runs() == []


def test_a_reason_is_kept_whole_or_refused(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 3)
    runs = runs_of(store)
    longest = replace(BY, reason="é" * (AUDITED_BYTES // 2))

    run_id = runs.plan(CANCEL, by=longest).run.id
    with pytest.raises(InvalidMessage, match="the reason of this apply has 60,002 bytes"):
        runs.apply(run_id, by=replace(BY, reason="é" * (AUDITED_BYTES // 2 + 1)))

    assert [row.reason for row in store.audit()] == [longest.reason]
    assert store.verify_audit({}).faults == []


def test_a_header_whose_name_ends_like_the_header_of_types_is_no_type(stores: Stores) -> None:
    store = stores()
    name = headers.ENCLOSED_MESSAGE_TYPES
    given = {
        "only": {name: "F.G"},
        "behind": {"a": "b", name: "F.G, Assembly"},
        "quoted": {f'zz"{name}': "F.G"},
        "comma": {f'zz,"{name}': "F.G"},
        "brace": {"a": "b", f'{{"{name}': "F.G"},
        "longer": {f"My.{name}": "F.G"},
        "value": {"a": f'"{name}":"F.G"'},
    }
    store.store_many([_with(timeout(key), value) for key, value in given.items()])

    found = store.list(TimeoutFilter(message_type="F.G"))

    assert [one.id for one in found] == ["behind", "only"]


def _with(one: Timeout, given: dict[str, str]) -> Timeout:
    return replace(one, message=with_headers(one.message, given))


# --- what moves while a plan is made ----------------------------------------------------------


def planned_while(store: Any, change: BulkChange, move: Callable[[], None]) -> Any:
    """Plan *change* of all; *move* is called once, behind the first page."""
    moves = [move]
    store._bulk._rest = lambda _seconds: moves.pop()() if moves else None
    return runs_of(store).plan(change, by=BY).run


def test_a_timeout_that_moves_ahead_of_a_plan_is_selected_once(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 20)

    def move() -> None:
        # A whole batch, and a part of the next.
        for number in range(4):
            store.reschedule(f"t{number:03}", LATER + HOUR + number)

    run = planned_while(store, SHIFT, move)

    runs = runs_of(store)
    assert (run.selected, run.first_due, run.last_due) == (20, made[4].due, LATER + HOUR + 3)
    expected = [f"t{number:03}" for number in (*range(4, 20), *range(4))]
    assert [key.id for key in runs.keys(run.id)] == expected
    assert [one.action for one in store.audit()][-1] == "shift"
    assert store.audit()[-1].expected == 20
    done = runs.apply(run.id, by=BY)
    assert (done.changed, done.left) == (20, 0)
    undone = runs.undo(run.id, by=BY)
    assert (undone.state, undone.undone) == (BulkState.UNDONE, 20)


def test_a_plan_shows_a_timeout_that_moves_ahead_once(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 8)
    moves = [lambda: store.reschedule("t000", LATER + HOUR)]
    store._bulk._rest = lambda _seconds: moves.pop()() if moves else None

    plan = runs_of(store).plan(SHIFT, by=BY)

    assert sorted(one.id for one in plan.samples) == [f"t{number:03}" for number in range(8)]


def test_the_steps_of_a_spread_stay_even_if_timeouts_move_ahead_of_its_plan(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 20)
    start = LATER + 10 * HOUR
    spread = BulkChange(action=BulkAction.SPREAD, start=start, end=start + 20 * SECOND)

    def move() -> None:
        for number in range(4):
            store.reschedule(f"t{number:03}", LATER + HOUR + number)

    runs_of(store).apply(planned_while(store, spread, move).id, by=BY)

    assert sorted(pending(store).values()) == [start + n * SECOND for n in range(20)]


# --- how long the keys are kept ---------------------------------------------------------------


def test_an_undo_without_its_keys_is_refused_and_the_run_stays_completed(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 8, NOW + 90 * DAY)
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id
    runs.apply(run_id, by=BY)
    sql.clock.at += 31 * DAY
    purge(store)

    with pytest.raises(InvalidMessage, match="history_retention"):
        runs.undo(run_id, by=BY)

    found = runs.get(run_id)
    assert found is not None
    assert (found.state, found.undone) == (BulkState.COMPLETED, 0)
    assert pending(store) == {one.id: one.due + 2 * HOUR for one in made}


def test_an_undo_whose_keys_are_partly_removed_is_refused(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 8, NOW + 90 * DAY)
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id
    runs.apply(run_id, by=BY)
    sql.clock.at += 31 * DAY
    store.purge()
    assert len(list(runs.keys(run_id))) < 8

    with pytest.raises(InvalidMessage, match="were removed"):
        runs.undo(run_id, by=BY)


def test_an_undo_that_was_interrupted_keeps_its_keys(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 8, NOW + 90 * DAY)
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id
    runs.apply(run_id, by=BY)
    store.begin_bulk(run_id, BY, undo=True)
    store.bulk_step(run_id)
    sql.clock.at += 31 * DAY

    purge(store)

    assert runs.undo(run_id, by=BY).undone == 8
    assert pending(store) == {one.id: one.due for one in made}
    sql.clock.at += 31 * DAY
    purge(store)
    assert list(runs.keys(run_id)) == []


def test_an_undo_that_begins_beside_a_purge_has_all_of_its_keys(
    row_locking: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = row_locking(), row_locking()
    assert isinstance(there, KeepsBulkRuns)
    stored(here, 8, NOW + 90 * DAY)
    run_id = runs_of(here).plan(SHIFT, by=BY).run.id
    runs_of(here).apply(run_id, by=BY)
    row_locking.clock.at += 31 * DAY
    locks = StoreMaintenance._locks_run

    def begun_before(*given: Any) -> bool:
        there.begin_bulk(run_id, BY, undo=True)
        return locks(*given)

    monkeypatch.setattr(StoreMaintenance, "_locks_run", begun_before)
    purge(here)

    assert runs_of(here).undo(run_id, by=BY).undone == 8


@pytest.mark.parametrize("years", [-3_000, 9_000])
def test_a_shift_out_of_the_calendar_is_refused(sql: Stores, years: int) -> None:
    store: Any = sql()
    made = stored(store, 3)
    runs = runs_of(store)

    with pytest.raises(InvalidMessage, match="due outside of the years 1 to 9999"):
        runs.plan(BulkChange(action=BulkAction.SHIFT, by=years * 365 * DAY), by=BY)

    assert set(pending(store).values()) == {one.due for one in made}
    assert {run.state for run in store.bulk_runs()} == {BulkState.PLANNING}
