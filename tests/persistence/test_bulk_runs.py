"""A bulk run changes what its plan has found and nobody else has in hand, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from tests.persistence.conftest import Stores
from tests.persistence.explaining import statements
from tests.persistence.making import NOW, SECOND, dispatch, ids, rolled_back, timeout
from timeoutmgr.contracts import Key, Timeout, TimeoutFilter, TimeoutState
from timeoutmgr.contracts.audit import AuditOutcome, ChangedBy
from timeoutmgr.contracts.bulk_runs import PLAN_KEPT, BulkAction, BulkChange, BulkState
from timeoutmgr.endpoint.bulk_runs import BulkRuns
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import DestinationNotAllowed, InvalidMessage, Unsupported
from timeoutmgr.message.instants import from_micros
from timeoutmgr.persistence import MemoryPersistence
from timeoutmgr.persistence.sql import bulk_runs
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

HOUR: Final = 3_600 * SECOND
LATER: Final = NOW + 24 * HOUR
BY: Final = ChangedBy(channel="cli", actor="ann", reason="because")
SHIFT: Final = BulkChange(action=BulkAction.SHIFT, by=2 * HOUR)
CANCEL: Final = BulkChange(action=BulkAction.CANCEL)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run of few timeouts have several batches and pages."""
    monkeypatch.setattr(bulk_runs, "BATCH", 3)
    monkeypatch.setattr(bulk_runs, "_PAGE", 6)


def runs_of(store: Any, refuses: Any = lambda _to: None) -> BulkRuns:
    return Timeouts(store, lambda due: None, require_destination=refuses).bulk


def stored(store: Any, number: int, due: int = LATER, **more: Any) -> list[Timeout]:
    made = [timeout(f"t{n:03}", due + n * SECOND, **more) for n in range(number)]
    store.store_many(made)
    return made


def pending(store: Any) -> dict[str, int]:
    return {one.id: one.due for one in store.list(TimeoutFilter(), limit=10_000)}


def test_a_plan_counts_shows_and_changes_nothing(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 25)

    plan = runs_of(store).plan(SHIFT, destination="billing", by=BY)

    assert (plan.run.state, plan.run.selected) == (BulkState.PLANNED, 25)
    assert (plan.run.first_due, plan.run.last_due) == (made[0].due, made[-1].due)
    assert list(plan.samples) == made[:20]
    assert pending(store) == {one.id: one.due for one in made}
    [row] = store.audit()
    assert (row.dry_run, row.expected, row.changed) == (1, 25, 0)


def test_a_shift_moves_each_match_once_and_tells_its_beginning_and_its_end(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 10)
    other = timeout("other", LATER, destination="shipping")
    store.store_many([other])
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, destination="billing", by=BY).run.id

    done = runs.apply(run_id, by=BY)

    assert (done.state, done.changed, done.left) == (BulkState.COMPLETED, 10, 0)
    assert pending(store) == {
        **{one.id: one.due + 2 * HOUR for one in made},
        other.id: other.due,
    }
    outcomes = [(row.action, row.outcome, row.changed) for row in store.audit(run_id=run_id)]
    assert outcomes == [
        ("shift", AuditOutcome.DONE, 0),
        ("shift", AuditOutcome.STARTED, None),
        ("shift", AuditOutcome.DONE, 10),
    ]


def test_a_run_that_is_done_is_returned_as_it_is_by_the_call_that_did_it(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 3)
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id

    done = runs.apply(run_id, by=BY)
    assert runs.apply(run_id, by=BY) == done
    assert len(store.audit(run_id=run_id)) == 3  # a plan, a beginning and an end
    undone = runs.undo(run_id, by=BY)
    assert runs.undo(run_id, by=BY) == undone

    assert (done.state, undone.state) == (BulkState.COMPLETED, BulkState.UNDONE)
    assert pending(store) == {one.id: one.due for one in made}
    with pytest.raises(InvalidMessage, match="is undone and cannot be applied"):
        runs.apply(run_id, by=BY)


def test_what_is_stored_or_changed_after_the_plan_stays_out(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 6)
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id

    store.store_many([timeout("new", LATER)])
    store.reschedule("t001", LATER + 7)
    store.reschedule("t002", made[2].due)  # to the same time: it was changed all the same
    store.reroute([made[3].key], "shipping")
    store.cancel("t004")
    done = runs.apply(run_id, by=BY)

    assert (done.changed, done.left) == (2, 4)
    found = pending(store)
    assert found["new"] == LATER
    assert found["t001"] == LATER + 7
    assert found["t000"] == made[0].due + 2 * HOUR
    assert found["t003"] == made[3].due
    assert found["t005"] == made[5].due + 2 * HOUR


def test_a_run_keeps_the_size_of_its_batches_whatever_a_later_version_has(
    sql: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = sql()
    stored(store, 10)
    spread = BulkChange(action=BulkAction.SPREAD, start=LATER + HOUR, end=LATER + 2 * HOUR)
    runs = runs_of(store)
    run_id = runs.plan(spread, by=BY).run.id

    monkeypatch.setattr(bulk_runs, "BATCH", 2)
    runs.apply(run_id, by=BY)

    assert sorted(pending(store).values()) == [LATER + HOUR + n * HOUR // 10 for n in range(10)]


def test_a_batch_that_was_passed_by_is_changed_at_the_end(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 10)
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id
    store.begin_bulk(run_id, BY)

    with rolled_back(store.context.database) as connection:
        store._bulk._step(connection, run_id)
    done = runs.apply(run_id, by=BY)

    assert done.changed == 10


def test_a_timeout_in_the_hands_of_a_dispatcher_is_left_and_not_awaited(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a"), timeout("b", LATER)])
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id
    chunk = store.claim(NOW, 1, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        done = runs.apply(run_id, by=BY)
        assert [one.id for one in locked.timeouts] == ["a"]

    assert (done.changed, done.left) == (1, 1)
    assert pending(store) == {"a": NOW, "b": LATER + 2 * HOUR}


def test_a_shift_is_undone_except_for_what_changed_since(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 8)
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id
    runs.apply(run_id, by=BY)
    store.cancel("t001")
    store.reschedule("t002", LATER + 7)
    store.reschedule("t003", made[3].due + 2 * HOUR)

    done = runs.undo(run_id, by=BY)

    assert (done.state, done.undone) == (BulkState.UNDONE, 5)
    expected = {one.id: one.due for one in made if one.id != "t001"}
    assert pending(store) == {**expected, "t002": LATER + 7, "t003": made[3].due + 2 * HOUR}


def test_an_undo_leaves_what_the_run_has_left(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a"), timeout("b", LATER)])
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id
    with store.lock_for_dispatch("", [Key(NOW, "a")]) as locked:
        assert [one.id for one in locked.timeouts] == ["a"]
        assert runs.apply(run_id, by=BY).left == 1
    # To where the run would have moved it, and with the version that it would have then.
    store.reschedule("a", NOW + 2 * HOUR)

    assert runs.undo(run_id, by=BY).undone == 1
    assert pending(store) == {"a": NOW + 2 * HOUR, "b": LATER}


def test_a_shift_leaves_the_place_of_a_retry_and_its_undo_restores_it(sql: Stores) -> None:
    from timeoutmgr.contracts import Outcome, OutcomeKind

    store: Any = sql()
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 1, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        retry = Outcome(
            key=chunk.keys[0], kind=OutcomeKind.RETRY, at=NOW, next_try=NOW + 60 * SECOND
        )
        locked.close([retry])
    waiting = store.find("a")
    runs = runs_of(store)
    run_id = runs.plan(SHIFT, by=BY).run.id

    runs.apply(run_id, by=BY)
    [shifted] = store.list(TimeoutFilter())
    assert (shifted.due, shifted.next_try, shifted.attempts) == (NOW + 2 * HOUR, 0, 1)
    runs.undo(run_id, by=BY)

    assert store.find("a") == waiting


def test_a_retry_tries_what_waits_at_once_and_keeps_its_attempts(sql: Stores) -> None:
    from timeoutmgr.contracts import Outcome, OutcomeKind

    store: Any = sql()
    store.store_many([timeout("a"), timeout("b", LATER)])
    chunk = store.claim(NOW, 1, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        retry = Outcome(key=chunk.keys[0], kind=OutcomeKind.RETRY, at=NOW, next_try=NOW + HOUR)
        locked.close([retry])
    runs = runs_of(store)

    done = runs.apply(runs.plan(BulkChange(action=BulkAction.RETRY), by=BY).run.id, by=BY)

    assert (done.selected, done.changed) == (1, 1)
    chunk = store.claim(NOW, 10, "o")
    assert ids(chunk) == ["a"]
    found = store.find("a")
    assert found is not None
    assert (found[1].due, found[1].attempts) == (NOW, 1)


def test_a_spread_has_even_steps_in_the_order_of_due_times(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 8)
    change = BulkChange(action=BulkAction.SPREAD, start=LATER + HOUR, end=LATER + HOUR + 80)
    runs = runs_of(store)
    run_id = runs.plan(change, by=BY).run.id

    runs.apply(run_id, by=BY)

    assert pending(store) == {f"t{n:03}": LATER + HOUR + 10 * n for n in range(8)}
    runs.undo(run_id, by=BY)
    assert pending(store) == {f"t{n:03}": LATER + n * SECOND for n in range(8)}


def test_a_cancel_is_for_good_and_cannot_be_undone(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 4)
    runs = runs_of(store)
    run_id = runs.plan(CANCEL, ids=["t001", "t002", "unknown"], by=BY).run.id
    assert [key.id for key in runs.keys(run_id)] == ["t001", "t002"]

    done = runs.apply(run_id, by=BY)

    assert (done.selected, done.changed) == (2, 2)
    assert store.find("t001") == (TimeoutState.CANCELLED, None)
    assert set(pending(store)) == {"t000", "t003"}
    channels = [one.channel for one in store.history("t001") if one.event == "cancelled"]
    assert channels == [f"bulk run {run_id}"]
    with pytest.raises(InvalidMessage, match="cannot be undone"):
        runs.undo(run_id, by=BY)


def test_send_now_has_the_poller_woken_and_the_timeouts_sent(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 4)
    wakes: list[int] = []
    runs = Timeouts(store, wakes.append).bulk

    runs.apply(runs.plan(BulkChange(action=BulkAction.SEND_NOW), by=BY).run.id, by=BY)

    assert wakes == [NOW, NOW]
    chunk = store.claim(NOW, 10, "o")
    assert sorted(dispatch(store, chunk)) == ["t000", "t001", "t002", "t003"]


def test_a_reroute_changes_destinations_and_leaves_the_rest(sql: Stores) -> None:
    store: Any = sql()
    made = stored(store, 4)
    store.reroute([made[0].key], "shipping")
    change = BulkChange(action=BulkAction.REROUTE, destination="shipping")
    runs = runs_of(store)

    done = runs.apply(runs.plan(change, by=BY).run.id, by=BY)

    assert (done.selected, done.changed) == (3, 3)
    assert store.list(TimeoutFilter()) == [replace(one, destination="shipping") for one in made]


def test_a_denied_reroute_selects_nothing_and_is_kept(sql: Stores) -> None:
    store: Any = sql()

    def refuse(to: str) -> None:
        raise DestinationNotAllowed(f"{to} belongs to another endpoint")

    change = BulkChange(action=BulkAction.REROUTE, destination="theirs")
    with pytest.raises(DestinationNotAllowed):
        runs_of(store, refuse).plan(change, by=BY)

    assert store.bulk_runs() == []
    assert [(row.action, row.outcome) for row in store.audit()] == [("reroute", "denied")]


def test_a_list_of_runs_has_as_many_as_its_limit_says_the_newest_first(sql: Stores) -> None:
    runs = runs_of(sql())
    made = []
    for _number in range(3):
        made.append(runs.plan(CANCEL, by=BY).run.id)
        sql.clock.at += 1

    assert [[one.id for one in runs.list(limit=most)] for most in (0, 2)] == [[], made[:0:-1]]
    with pytest.raises(InvalidMessage, match="a limit is a whole number from 0, got -1"):
        runs.list(limit=-1)


def test_a_list_of_runs_fetches_no_more_runs_than_its_limit(sql: Stores) -> None:
    store: Any = sql()
    runs = runs_of(store)
    for _number in range(3):
        runs.plan(CANCEL, by=BY)

    with statements(store.context.database.engine) as seen:
        assert len(runs.list(limit=2)) == 2

    assert [" LIMIT " in each for each in seen if "FROM suite_runs" in each] == [True]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 5])
def test_a_name_that_no_database_takes_is_refused(sql: Stores, name: Any) -> None:
    timeouts = Timeouts(sql(), lambda _due: None)
    runs = timeouts.bulk

    for ask in (
        *(runs.get, runs.apply, runs.undo, lambda run_id: [*runs.keys(run_id)]),
        *(timeouts.resume, lambda run_id: timeouts.audit(run_id=run_id)),
    ):
        with pytest.raises(InvalidMessage, match=r"has NUL or half a|is a text, got 5"):
            ask(name)


def test_a_limit_takes_the_earliest(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 20)
    runs = runs_of(store)

    run = runs.plan(CANCEL, limit=7, by=BY).run
    runs.apply(run.id, by=BY)

    assert run.selected == 7
    assert sorted(pending(store)) == [f"t{n:03}" for n in range(7, 20)]


def test_two_processes_share_a_run(row_locking: Stores) -> None:
    here, there = row_locking(), row_locking()
    assert isinstance(here, SqlTimeoutStore)
    assert isinstance(there, SqlTimeoutStore)
    made = stored(here, 9)
    run_id = runs_of(here).plan(SHIFT, by=BY).run.id
    here.begin_bulk(run_id, BY)

    steps = [here.bulk_step(run_id), there.bulk_step(run_id), here.bulk_step(run_id)]
    assert [step.changed for step in steps if step] == [3, 3, 3]
    assert there.bulk_step(run_id) is None
    assert there.end_bulk(run_id, BY).state is BulkState.COMPLETED
    assert here.end_bulk(run_id, BY).state is BulkState.COMPLETED

    assert pending(here) == {one.id: one.due + 2 * HOUR for one in made}
    outcomes = sorted(row.outcome for row in here.audit(run_id=run_id))
    assert outcomes == ["done", "done", "started"]  # the plan, the end, and one beginning


def test_a_plan_is_applied_within_a_day(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 4)
    runs = runs_of(store)
    run_id = runs.plan(CANCEL, by=BY).run.id
    sql.clock.at += PLAN_KEPT + 1

    with pytest.raises(InvalidMessage, match="older than a day"):
        runs.apply(run_id, by=BY)
    while store.purge():
        pass

    assert list(runs.keys(run_id)) == []
    assert len(pending(store)) == 4


def test_a_run_of_another_endpoint_is_not_found(sql: Stores) -> None:
    store: Any = sql()
    stored(store, 1)
    run_id = runs_of(store).plan(CANCEL, by=BY).run.id
    other = runs_of(sql(endpoint=sql.endpoint + "2"))

    assert other.get(run_id) is None
    with pytest.raises(InvalidMessage, match="there is no bulk run"):
        other.apply(run_id, by=BY)


@pytest.mark.parametrize(
    "values",
    [
        {"action": BulkAction.SHIFT},
        {"action": BulkAction.CANCEL, "by": 1},
        {"action": BulkAction.SPREAD, "start": 2, "end": 1},
    ],
)
def test_a_change_with_wrong_values_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        BulkChange(**values)


def test_a_store_in_memory_refuses_bulk_runs() -> None:
    store = MemoryPersistence(accept_loss=True).timeouts("sales", _Standing())
    with pytest.raises(Unsupported, match="has no bulk runs"):
        runs_of(store).plan(CANCEL)


class _Standing:
    """A clock that stands still."""

    def now(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0


# --- against a dictionary: changed = frozen ∩ not in other hands ------------------------------


@dataclass(frozen=True)
class Event:
    """Something that happens to a timeout between the plan and the run."""

    kind: str
    number: int


EVENTS: Final = st.lists(
    st.builds(
        Event,
        kind=st.sampled_from(["cancel", "reschedule", "same", "reroute", "send", "hold", "store"]),
        number=st.integers(0, 11),
    ),
    max_size=8,
)
CHANGES: Final = st.sampled_from(
    [
        SHIFT,
        CANCEL,
        BulkChange(action=BulkAction.MOVE, to=LATER + HOUR),
        BulkChange(action=BulkAction.SPREAD, start=LATER, end=LATER + HOUR),
        BulkChange(action=BulkAction.SEND_NOW),
        BulkChange(action=BulkAction.REROUTE, destination="elsewhere"),
    ]
)
SELECTIONS: Final = st.sampled_from(
    [
        {},
        {"destination": "billing"},
        {"saga_id": "s"},
        {"ids": ["t1", "t3", "t8", "t11", "nothing"]},
        {"due_before": from_micros(NOW + 5)},
    ]
)


class Model:
    """Pending timeouts in a dictionary, by the rules of a bulk run."""

    def __init__(self) -> None:
        self.due: dict[str, int] = {}
        self.to: dict[str, str] = {}
        self.saga: dict[str, str | None] = {}
        self.touched: set[str] = set()
        self.held: set[str] = set()

    def add(self, one: Timeout) -> None:
        self.due[one.id] = one.due
        self.to[one.id] = one.destination
        self.saga[one.id] = one.saga_id

    def frozen(self, selection: dict[str, Any], change: BulkChange) -> list[str]:
        before = selection.get("due_before")
        return sorted(
            (
                name
                for name, due in self.due.items()
                if selection.get("destination") in (None, self.to[name])
                and selection.get("saga_id") in (None, self.saga[name])
                and name in selection.get("ids", self.due)
                and (before is None or from_micros(due) < before)
                and change.destination != self.to[name]
            ),
            key=lambda name: (self.due[name], name),
        )

    def apply(self, change: BulkChange, frozen: list[str], first: dict[str, int]) -> set[str]:
        changed = {n for n in frozen if n in self.due} - self.touched - self.held
        for rank, name in enumerate(frozen):
            if name not in changed:
                continue
            if change.action is BulkAction.CANCEL:
                del self.due[name]
            elif change.action is BulkAction.REROUTE:
                self.to[name] = change.destination or ""
            else:
                self.due[name] = change.new_due(first[name], rank, len(frozen), NOW)
        return changed


@contextmanager
def happening(store: Any, model: Model, events: list[Event]) -> Iterator[None]:
    """Let *events* happen to store and model; what is held stays held in the body."""
    with ExitStack() as stack:
        for number, each in enumerate(events):
            _happen(store, model, each, number, stack)
        yield


def _happen(store: Any, model: Model, each: Event, number: int, stack: ExitStack) -> None:
    name = f"t{each.number}"
    if each.kind == "store":
        new = timeout(f"new{number}", NOW + each.number, saga="s")
        store.store_many([new])
        model.add(new)
        return
    if name not in model.due or name in model.held:
        return
    due = model.due[name]
    if each.kind in ("send", "hold") and due > NOW:
        return
    model.touched.add(name)
    match each.kind:
        case "cancel":
            store.cancel(name)
            del model.due[name]
        case "reschedule":
            model.due[name] = LATER + number
            store.reschedule(name, LATER + number)
        case "same":
            store.reschedule(name, due)
        case "reroute":
            store.reroute([Key(due, name)], f"q{number}")
            model.to[name] = f"q{number}"
        case "send":
            with store.lock_for_dispatch("", [Key(due, name)]) as locked:
                from tests.persistence.making import outcomes

                locked.close(outcomes([Key(due, name)]))
            del model.due[name]
        case _:
            model.touched.discard(name)
            held = stack.enter_context(store.lock_for_dispatch("", [Key(due, name)]))
            assert [one.id for one in held.timeouts] == [name]
            model.held.add(name)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(events=EVENTS, change=CHANGES, selection=SELECTIONS)
def test_a_run_changes_the_frozen_timeouts_that_are_not_in_other_hands(
    kind: str,
    sql_of: Any,
    unique: str,
    events: list[Event],
    change: BulkChange,
    selection: dict[str, Any],
) -> None:
    persistence = sql_of(kind)
    _empty(persistence, unique)
    store = Stores(persistence, unique)()
    model = Model()
    timeouts = [
        replace(
            timeout(f"t{number}", NOW - 6 + number, saga="s" if number % 2 else None),
            destination="shipping" if number % 3 == 0 else "billing",
        )
        for number in range(12)
    ]
    store.store_many(timeouts)
    for one in timeouts:
        model.add(one)
    runs = runs_of(store)

    run_id = runs.plan(change, by=BY, **selection).run.id
    frozen = model.frozen(selection, change)
    assert [key.id for key in runs.keys(run_id)] == frozen
    first = {name: model.due[name] for name in frozen}
    with happening(store, model, events):
        done = runs.apply(run_id, by=BY)
        changed = model.apply(change, frozen, first)

    assert (done.changed, done.left) == (len(changed), len(frozen) - len(changed))
    assert pending(store) == model.due
    assert {one.id: one.destination for one in store.list(TimeoutFilter())} == {
        name: model.to[name] for name in model.due
    }
    if change.action.is_undoable:
        runs.undo(run_id, by=BY)
        assert {n: d for n, d in pending(store).items() if n in changed} == {
            name: first[name] for name in changed
        }


def _empty(persistence: Any, endpoint: str) -> None:
    tables = persistence.timeouts(endpoint, _Standing()).context.tables
    with persistence.database.begin() as connection:
        for table in (tables.timeouts, tables.keys, tables.claims, tables.history):
            connection.execute(delete(table).where(table.c.endpoint == endpoint))
