"""The audit: a row commits with its change, and an edited or missing row is found."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import delete, update

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, rolled_back, timeout
from tests.support.forks import ended_in_a_child
from timeoutmgr.contracts import CancelResult, LockedSchedule
from timeoutmgr.contracts.audit import AuditOutcome, ChangedBy
from timeoutmgr.endpoint.attempts import audited_in
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import (
    DestinationNotAllowed,
    InvalidMessage,
    TransportUnavailable,
    Unsupported,
)
from timeoutmgr.persistence import MemoryPersistence
from timeoutmgr.persistence.sql.store import SqlTimeoutStore
from timeoutmgr.recurrence.changes import pause, remove, resume

BY = ChangedBy(channel="cli", actor="ann", role="operator", reason="because")


def face(store: Any, refuses: Any = lambda _to: None) -> Timeouts:
    return Timeouts(store, lambda due: None, require_destination=refuses)


def sql_store(sql: Stores) -> SqlTimeoutStore:
    store = sql()
    assert isinstance(store, SqlTimeoutStore)
    return store


def test_each_change_leaves_exactly_one_row(sql: Stores) -> None:
    store = sql_store(sql)
    store.store_many([timeout("a"), timeout("b"), timeout("c", saga="s"), timeout("d")])
    timeouts = face(store)

    timeouts.cancel("a", channel="cli")
    timeouts.reschedule("b", delay=5)
    timeouts.send_now("b")
    timeouts.cancel_saga("s")
    timeouts.reroute("shipping", destination="billing")
    timeouts.pause("shipping", by=BY)
    timeouts.resume("shipping", by=BY)

    rows = timeouts.audit()
    assert [(row.action, row.changed) for row in rows] == [
        *(("cancel", 1), ("reschedule", 1), ("send-now", 1), ("cancel-saga", 1)),
        *(("reroute", 2), ("pause", None), ("resume", 1)),
    ]
    assert rows[0].channel == "cli"
    assert "@" in rows[0].actor
    assert (rows[5].actor, rows[5].role, rows[5].reason) == ("ann", "operator", "because")
    assert timeouts.verify_audit().faults == []


def test_parent_and_forked_child_write_chains_of_their_own(sql: Stores) -> None:
    store = sql_store(sql)
    store.store_many([timeout("a"), timeout("b"), timeout("c")])
    assert store.cancel("a") is CancelResult.CANCELLED

    failed = ended_in_a_child(lambda: store.cancel("b") is not CancelResult.CANCELLED)

    assert not failed
    assert store.cancel("c") is CancelResult.CANCELLED
    assert len(store.audit()) == 3
    assert store.verify_audit({}).faults == []


@pytest.mark.parametrize("reason", ["é" * 40_000, "a\0b", "\ud800"])
def test_a_reason_that_a_database_refuses_is_refused_before_the_change(
    sql: Stores, reason: str
) -> None:
    store = sql_store(sql)
    store.store_many([timeout("a")])
    timeouts, by = face(store), ChangedBy(channel="cli", reason=reason)

    with pytest.raises(InvalidMessage, match="the reason of this pause"):
        timeouts.pause("shipping", by=by)
    with pytest.raises(InvalidMessage, match="the reason of this cancel"):
        timeouts.cancel("a", by=by)

    assert (timeouts.pauses(), timeouts.audit()) == ([], [])
    assert [one.id for one in timeouts.list()] == ["a"]


def test_a_change_that_is_undone_leaves_no_row(sql: Stores) -> None:
    store = sql_store(sql)
    store.store_many([timeout("a", saga="s")])

    with rolled_back(store.context.database) as transaction:
        store.cancel_saga("s", transaction=transaction)
    store.cancel_saga("s")

    assert [row.changed for row in store.audit()] == [1]
    assert store.verify_audit({}).faults == []


def test_a_change_of_a_schedule_commits_with_its_row(sql: Stores) -> None:
    store = sql_store(sql)

    def fail(locked: LockedSchedule) -> None:
        pause(locked, "cli")
        raise InvalidMessage("the change is undone")

    with pytest.raises(InvalidMessage):
        store.change_schedule("daily", fail)
    undone = store.audit()
    store.change_schedule("daily", lambda locked: pause(locked, "cli"))
    store.change_schedule("daily", lambda locked: resume(locked, "cli"))
    store.change_schedule("daily", lambda locked: resume(locked, "cli"))  # changes nothing
    store.change_schedule("daily", lambda locked: remove(locked, "cli"))

    assert undone == []
    assert [(row.action, row.selection, row.channel) for row in store.audit()] == [
        (f"{action}-recurring", '{"name":"daily"}', "cli")
        for action in ("pause", "resume", "remove")
    ]


def test_a_denied_and_a_failed_attempt_are_kept(sql: Stores) -> None:
    store = sql_store(sql)

    def refuse(to: str) -> None:
        raise DestinationNotAllowed(f"{to} belongs to another endpoint")

    with pytest.raises(DestinationNotAllowed):
        face(store, refuse).reroute("theirs")
    with pytest.raises(InvalidMessage):
        face(store).reschedule("a")

    rows = store.audit()
    assert [(row.action, row.outcome) for row in rows] == [
        ("reroute", AuditOutcome.DENIED),
        ("reschedule", AuditOutcome.FAILED),
    ]
    assert "theirs" in rows[0].selection


def test_the_failure_of_a_change_of_queues_belongs_to_its_begin(sql: Stores) -> None:
    store = sql_store(sql)

    with (
        pytest.raises(TransportUnavailable),
        audited_in(store, "purge", ChangedBy(channel="api"), {"queues": ["sales"]}),
    ):
        raise TransportUnavailable("away")

    begun, ended = store.audit()
    assert (begun.outcome, ended.outcome) == (AuditOutcome.STARTED, AuditOutcome.FAILED)
    assert store.audit(run_id=begun.run_id) == [begun, ended]


def test_a_change_that_changes_nothing_says_so(sql: Stores) -> None:
    store = sql_store(sql)

    face(store).reschedule("a", delay=1)

    [row] = store.audit()
    assert row.changed == 0
    assert '"result":"unknown"' in row.selection


def test_a_clear_by_message_names_its_message_and_only_if_it_changes(sql: Stores) -> None:
    from timeoutmgr.contracts.sagas import SagaClear

    store = sql_store(sql)
    store.store_many([timeout("a", saga="s")])
    orders = [
        SagaClear(saga_id="s", order_id=name, sent=NOW + SECOND, channel=f"queue, message {name}")
        for name in ("1", "2")
    ]

    for order in orders:
        store.clear_saga(order)

    assert [row.channel for row in store.audit()] == ["queue, message 1"]


def test_an_edited_row_is_found(sql: Stores) -> None:
    store = _with_rows(sql)
    audit = store.context.tables.audit

    _execute(store, update(audit).where(_mine(store), audit.c.number == 1).values(actor="mallory"))

    faults = store.verify_audit({}).faults
    assert [fault.partition(", ")[2] for fault in faults] == ["row 1: it was edited"]


def test_a_removed_row_is_found(sql: Stores) -> None:
    store = _with_rows(sql)
    audit = store.context.tables.audit

    _execute(store, delete(audit).where(_mine(store), audit.c.number == 1))

    [fault] = store.verify_audit({}).faults
    assert fault.endswith("row 2: 1 rows before it are gone")


def test_a_cut_end_is_found_by_a_head_that_was_kept_elsewhere(sql: Stores) -> None:
    store = _with_rows(sql)
    heads = store.verify_audit({}).heads
    audit = store.context.tables.audit

    _execute(store, delete(audit).where(_mine(store), audit.c.number == 3))

    assert store.verify_audit({}).faults == []
    [fault] = store.verify_audit(heads).faults
    assert fault.endswith("row 3, a given head, is gone")


@pytest.mark.parametrize("heads", [{"x": 1}, {"x": ("first", "a hash")}, {"x": (1,)}, ["x"]])
def test_heads_that_are_no_pairs_are_refused(sql: Stores, heads: Any) -> None:
    with pytest.raises(InvalidMessage, match="the number and the hash of a chain's last row"):
        face(sql_store(sql)).verify_audit(heads)


def test_a_chain_that_is_removed_whole_is_missed_by_the_next_chain(sql: Stores) -> None:
    first = _with_rows(sql)
    sql.clock.at += 1
    second = sql_store(sql)
    second.cancel("x")  # another process: a chain of its own
    chains = {row.chain: row.number for row in first.audit()}
    audit = first.context.tables.audit
    [removed] = [chain for chain, number in chains.items() if number == 3]

    _execute(first, delete(audit).where(_mine(first), audit.c.chain == removed))

    [fault] = first.verify_audit({}).faults
    assert fault.endswith("the row before its first is gone")


def test_writers_at_once_do_not_wait_for_each_other_and_leave_whole_chains(sql: Stores) -> None:
    store = sql_store(sql)
    start = threading.Barrier(4)

    def cancel(writer: int) -> None:
        start.wait()
        for number in range(25):
            store.cancel(f"{writer}-{number}")

    threads = [threading.Thread(target=cancel, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    verdict = store.verify_audit({})
    assert (verdict.rows, verdict.faults) == (100, [])
    assert len(verdict.heads) <= 8  # a chain for each writer, and for an undone try


def test_a_negative_number_of_rows_is_refused(sql: Stores) -> None:
    with pytest.raises(InvalidMessage, match="a limit is a whole number from 0, got -1"):
        face(sql_store(sql)).audit(limit=-1)


def test_a_store_in_memory_says_that_it_keeps_no_audit() -> None:
    persistence = MemoryPersistence(accept_loss=True)
    store = persistence.timeouts("sales", _StandingClock())
    with pytest.raises(Unsupported, match="keeps none"):
        face(store).audit()


class _StandingClock:
    def now(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0


def _with_rows(sql: Stores) -> SqlTimeoutStore:
    store = sql_store(sql)
    for name in "abcd":
        store.cancel(name)
    return store


def _mine(store: SqlTimeoutStore) -> Any:
    return store.context.tables.audit.c.endpoint == store.endpoint


def _execute(store: SqlTimeoutStore, statement: Any) -> None:
    store.context.database.run(lambda connection: connection.execute(statement))
