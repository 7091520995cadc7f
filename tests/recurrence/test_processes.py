"""Any number of processes, in any order of their steps, give each occurrence one run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select

from tests.recurrence.fleet import NOON, Fleet, Process
from timeoutmgr.contracts import LockedSchedule, Persistence, TimeoutState
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import to_micros
from timeoutmgr.persistence import MemoryPersistence, SqlPersistence, SqlTimeoutStore
from timeoutmgr.recurrence.occurrences import parse
from timeoutmgr.testing.faultproxy import FaultProxy

moves = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from((1, 59, 60, 61, 240, 600))),
        st.tuples(st.just("step"), st.integers(0, 2)),
        st.tuples(st.just("dispatch"), st.just(0)),
        st.tuples(st.sampled_from(("pause", "resume")), st.integers(0, 2)),
    ),
    max_size=40,
)


def _in_memory(name: str = "sales") -> Fleet:
    memory: Persistence = MemoryPersistence(accept_loss=True)
    return Fleet(name, lambda: memory)


class History:
    """What a fleet has sent, and which occurrences a pause overlaps."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.processes = [fleet.process("1 minute", catch_up="all") for _ in range(3)]
        self.sent: list[str] = []

    def do(self, move: tuple[str, int]) -> None:
        """Do one move of one process."""
        kind, number = move
        if kind == "wait":
            self.fleet.clock.advance(number)
        elif kind == "dispatch":
            self.sent += self.fleet.dispatch()
        elif kind == "step":
            self.processes[number].step()
        else:
            getattr(self.processes[number].recurring, kind)("tick")


@settings(max_examples=150)
@given(moves=moves)
def test_with_the_policy_all_each_occurrence_runs_once_whatever_happens(
    moves: list[tuple[str, int]],
) -> None:
    """Pauses, resumes, waits, late dispatches: no run twice, none lost, no run early."""
    fleet = _in_memory()
    with fleet.closing:
        history = History(fleet)
        history.processes[0].step()
        for move in moves:
            history.do(move)
        history.processes[1].recurring.resume("tick")
        history.processes[2].step()
        history.sent += fleet.dispatch()
        end = fleet.clock.now()

    occurrences = parse("1 minute")
    expected, at = 0, occurrences.after(to_micros(NOON))
    while at is not None and at <= end:
        expected, at = expected + 1, occurrences.after(at)
    assert max(Counter(history.sent).values(), default=1) == 1
    assert len(history.sent) == expected


@pytest.mark.parametrize("policy", ["one", "none"])
@settings(max_examples=100)
@given(moves=moves)
def test_with_the_other_policies_no_occurrence_runs_twice(
    policy: str, moves: list[tuple[str, int]]
) -> None:
    fleet = _in_memory()
    with fleet.closing:
        history = History(fleet)
        history.processes = [fleet.process("1 minute", catch_up=policy) for _ in range(3)]
        for move in moves:
            history.do(move)

    assert max(Counter(history.sent).values(), default=1) == 1


def test_processes_that_step_at_the_same_time_store_one_run(sql_fleet: Fleet) -> None:
    """Threads with a store of their own each, as processes have; all steps begin at once."""
    processes = [sql_fleet.process("1 minute") for _ in range(4)]
    sent: list[str] = []

    for minute in range(6):
        sql_fleet.move_to(1, 12, minute)
        _at_once(processes)
        assert len(sql_fleet.pending()) == (1 if minute == 0 else 2)
        sent += sql_fleet.dispatch()

    assert sent == [f"01 12:0{minute}" for minute in range(1, 6)]


def test_a_new_schedule_is_begun_by_one_of_many_processes(sql_fleet: Fleet) -> None:
    processes = [sql_fleet.process("1 hour") for _ in range(4)]

    _at_once(processes)

    assert sql_fleet.pending() == ["01 13:00"]
    assert [len(one.woken) for one in processes].count(1) == 1


def test_pauses_and_steps_at_the_same_time_leave_no_run_of_a_paused_schedule(
    sql_fleet: Fleet,
) -> None:
    one, other = sql_fleet.process("1 minute"), sql_fleet.process("1 minute")
    one.step()
    for minute in range(1, 6):
        sql_fleet.move_to(1, 12, minute)

        _together([one.step, lambda: other.recurring.pause("tick")])
        runs = [each for each in sql_fleet.pending() if each > f"01 12:0{minute}"]
        assert runs == []

        _together([one.step, lambda: other.recurring.resume("tick")])
        one.step()
        runs = [each for each in sql_fleet.pending() if each > f"01 12:0{minute}"]
        assert runs == [f"01 12:0{minute + 1}"]


def test_a_process_that_stops_inside_a_change_loses_its_lock(
    unique: str,
    sql_persistence: Callable[[str], SqlPersistence],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timeoutmgr.persistence.sql.schedules.PATIENCE", "200ms")
    fleet = Fleet(unique, lambda: sql_persistence("postgres"))
    with fleet.closing:
        stopped, other = fleet.process("1 hour"), fleet.process("1 hour")
        is_inside, goes_on = threading.Event(), threading.Event()

        def stand_still(locked: LockedSchedule) -> None:
            is_inside.set()
            goes_on.wait()
            locked.write(locked.record)

        def change() -> None:
            store: Any = stopped.endpoint._parts.features.store
            with pytest.raises(StorageUnavailable):
                store.change_schedule("tick", stand_still)

        thread = threading.Thread(target=change)
        thread.start()
        is_inside.wait()

        other.step()

        goes_on.set()
        thread.join()
        assert fleet.pending() == ["01 13:00"]


def test_a_failure_of_the_change_leaves_all_as_it_was(
    sql_fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = sql_fleet.process("1 hour")

    def fail(point: str) -> None:
        if point == "recurring.changed":
            raise RuntimeError(point)

    monkeypatch.setattr("timeoutmgr.persistence.sql.schedules.reach", fail)
    process.step()
    monkeypatch.undo()

    assert "could not store the next run of 'tick': recurring.changed" in caplog.text
    assert sql_fleet.pending() == []
    assert process.recurring.list()[0].next is None
    process.step()
    assert sql_fleet.pending() == ["01 13:00"]


def test_a_run_of_another_store_is_the_same_timeout(
    unique: str, sql_persistence: Callable[[str], SqlPersistence]
) -> None:
    """A run that was moved to a new store, with its schedule unknown there, is not stored twice."""
    with closing(sql_persistence("sqlite")) as persistence:
        old, new = _in_memory(unique), Fleet(unique, lambda: persistence)
        with old.closing, new.closing:
            old.process("1 hour").step()
            [moved] = old.timeouts()
            new.store.store_many([moved])

            new.process("1 hour").step()

            assert [run.id for run in new.timeouts()] == [moved.id]
            found = new.store.find(moved.id)
            assert found is not None
            assert found[0] is TimeoutState.PENDING


def _at_once(processes: list[Process]) -> None:
    _together([process.step for process in processes])


def _together(calls: list[Callable[[], object]]) -> None:
    barrier, errors = threading.Barrier(len(calls)), []

    def run(call: Callable[[], object]) -> None:
        barrier.wait()
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.fixture
def mysql_fleet(unique: str, sql_persistence: Callable[[str], SqlPersistence]) -> Iterator[Fleet]:
    fleet = Fleet(unique, lambda: sql_persistence("mysql"))
    with fleet.closing:
        yield fleet


def test_a_schedule_that_another_transaction_locks_holds_up_no_other_schedule(
    mysql_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutmgr.database.engine._CONFLICT_TRIES", 1)
    config = mysql_fleet.configuration()
    config.recurring("locked", "Locked", {}, every="1 hour")
    config.recurring("tick", "Tick", {}, every="1 hour")
    process = mysql_fleet.of(config)
    process.step()
    mysql_fleet.move_to(1, 13)
    store = mysql_fleet.store
    assert isinstance(store, SqlTimeoutStore)
    database, table = store.context.database, store.context.tables.recurring
    lock = select(table).where(table.c.endpoint == mysql_fleet.name, table.c.name == "locked")

    waits: list[str] = []

    def see(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "innodb_lock_wait_timeout" in statement:
            waits.append(statement.rpartition(" ")[2])

    event.listen(database.engine, "before_cursor_execute", see)
    with database.begin() as other:
        other.execute(lock.with_for_update())
        with pytest.raises(StorageUnavailable, match="Lock wait timeout"):
            process.step()
        assert mysql_fleet.pending() == ["01 13:00", "01 13:00", "01 14:00"]
    event.remove(database.engine, "before_cursor_execute", see)
    assert waits == ["1", "DEFAULT"] * 2

    process.step()
    assert mysql_fleet.pending() == ["01 13:00", "01 13:00", "01 14:00", "01 14:00"]


def test_a_connection_that_ends_while_it_waits_for_a_schedule_is_an_outage(
    mysql_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutmgr.database.engine._CONFLICT_TRIES", 1)
    process = mysql_fleet.process("1 hour")
    store = mysql_fleet.store
    assert isinstance(store, SqlTimeoutStore)
    engine = store.context.database.engine

    def end(connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "FOR UPDATE" in statement:
            with engine.connect() as other:
                other.exec_driver_sql(f"KILL {connection.connection.driver_connection.thread_id()}")

    event.listen(engine, "before_cursor_execute", end)
    with pytest.raises(StorageUnavailable):
        process.step()
    event.remove(engine, "before_cursor_execute", end)

    process.step()
    assert mysql_fleet.pending() == ["01 13:00"]


def test_an_outage_during_a_step_is_waited_for_once(
    unique: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    with FaultProxy.before(postgres_url) as proxy:
        persistence = SqlPersistence(proxy.url(postgres_url), prefix="outage_")
        persistence.install()
        fleet = Fleet(unique, lambda: persistence)
        config = fleet.configuration()
        for name in ("first", "second", "third"):
            config.recurring(name, "Tick", {}, every="1 hour")
        process, change = fleet.of(config), SqlTimeoutStore.change_schedule

        def cut_off(store: SqlTimeoutStore, name: str, *given: Any) -> Any:
            calls.append(name)
            proxy.refuse()
            proxy.reset()
            return change(store, name, *given)

        monkeypatch.setattr(SqlTimeoutStore, "change_schedule", cut_off)
        with pytest.raises(StorageUnavailable):
            process.step()
        proxy.heal()
        fleet.closing.close()
    assert calls == ["first"]
