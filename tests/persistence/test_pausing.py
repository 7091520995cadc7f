"""A pause holds due timeouts back, everywhere and at once, and costs them nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event, select

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, dispatch, ids, outcomes, timeout
from timeoutmgr.contracts import CancelResult, Key, TimeoutFilter, TimeoutState
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.pauses import PausesDispatch
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import InvalidMessage, Unsupported
from timeoutmgr.message.instants import from_micros
from timeoutmgr.persistence import MemoryPersistence, SqlPersistence
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

BY = ChangedBy(channel="cli", actor="ann", reason="billing is down")
HOUR = 3_600 * SECOND


def face(store: Any) -> Timeouts:
    return Timeouts(store, lambda due: None)


def sent(store: Any, at: int = NOW) -> list[str]:
    """Claim and dispatch all that is due, as poller and dispatcher do."""
    found: list[str] = []
    while (chunk := store.claim(at, 100, "o")).keys:
        found += dispatch(store, chunk, at)
    return found


def test_from_the_commit_of_a_pause_on_no_process_sends_what_was_claimed(sql: Stores) -> None:
    here, elsewhere = sql(), sql()
    here.store_many([timeout("a"), timeout("b", destination="shipping")])
    chunk = here.claim(NOW, 10, "o")
    assert isinstance(elsewhere, PausesDispatch)

    assert elsewhere.pause("billing", None, BY)

    assert dispatch(here, chunk) == ["b"]
    assert sent(here) == []
    assert here.find("a") is not None


def test_an_atomic_dispatch_parks_as_well(sql: Stores) -> None:
    store: Any = sql(atomic=True)
    store.store_many([timeout("a"), timeout("b", destination="shipping")])
    store.pause("billing", None, BY)
    chunk = store.claim(NOW, 10, "o")

    with (
        store.context.database.begin() as transaction,
        store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked,
    ):
        assert [one.id for one in locked.timeouts] == ["b"]
        locked.close([])

    assert [one.place > NOW for one in store.pauses()] == [True]
    assert [one.parked.number for one in store.pauses()] == [1]


def test_a_parked_timeout_keeps_id_due_time_and_attempts(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a")])
    store.pause("billing", None, BY)
    assert sent(store) == []

    found = store.find("a")

    assert found is not None
    state, parked = found
    assert (state, parked.due, parked.attempts) == (TimeoutState.PENDING, NOW, 0)
    assert store.key_of("a") == parked.key


def test_no_claim_reads_parked_timeouts(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout(f"a{number:03}") for number in range(300)])
    store.pause("billing", None, BY)
    sent(store)
    store.store_many([timeout("b", destination="shipping")])

    chunk = store.claim(NOW, 100, "o")

    assert ids(chunk) == ["b"]
    assert dispatch(store, chunk) == ["b"]


def test_a_resume_sends_all_that_was_parked(sql: Stores) -> None:
    store: Any = sql()
    names = [f"a{number:04}" for number in range(1_100)]
    for start in range(0, 1_100, 550):
        store.store_many([timeout(name) for name in names[start : start + 550]])
    timeouts = face(store)
    timeouts.pause("billing", by=BY)
    assert sent(store) == []

    assert timeouts.resume("billing", by=BY) == 1_100

    assert sorted(sent(store)) == names
    assert timeouts.pauses() == []
    assert timeouts.resume("billing", by=BY) is None


LEAD = 10_000


def lock_ahead(store: Any, ahead: int = LEAD) -> list[str]:
    """Claim and lock what is due *ahead* of now, as poller and dispatcher do; return the ids."""
    chunk = store.claim(NOW, 10, "o", ahead=ahead)
    assert chunk.keys
    with store.lock_for_dispatch(chunk.token, chunk.keys, ahead=ahead) as locked:
        locked.close(outcomes([one.key for one in locked.timeouts]))
        return [one.id for one in locked.timeouts]


def test_a_timeout_that_is_parked_before_it_is_due_is_sent_once_after_a_resume(
    sql: Stores,
) -> None:
    store: Any = sql()
    store.store_many([timeout("a", NOW + LEAD // 2)])
    timeouts = face(store)
    timeouts.pause("billing", by=BY)
    assert lock_ahead(store) == []

    assert timeouts.resume("billing", by=BY) == 1

    assert store.claim(NOW, 10, "o").keys == ()
    sql.clock.at = NOW + LEAD
    assert dispatch(store, store.claim(NOW + LEAD, 10, "o"), NOW + LEAD) == ["a"]
    assert store.find("a") == (TimeoutState.DISPATCHED, None)


def test_a_pause_parks_what_is_locked_ahead_until_its_last_moment(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a", NOW - 1)])
    store.pause("billing", NOW + LEAD // 2, BY)

    assert lock_ahead(store) == []


def test_a_pause_that_ends_before_a_timeout_is_due_leaves_it_to_the_dispatcher(
    row_locking: Stores, persistence_of: Callable[..., SqlPersistence]
) -> None:
    shared = row_locking.persistence.database
    by_database: Any = persistence_of(shared, prefix="suite_").timeouts(
        row_locking.endpoint, row_locking.clock
    )
    end = by_database.now() + HOUR
    by_database.store_many([timeout("a", end + 1)])
    by_database.pause("billing", end, BY)

    assert lock_ahead(by_database, 2 * HOUR) == ["a"]

    assert by_database.find("a") == (TimeoutState.DISPATCHED, None)


def test_a_pause_of_all_holds_every_destination_until_its_end(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a"), timeout("b", destination="shipping")])
    face(store).pause(until=from_micros(NOW + HOUR), by=BY)
    assert sent(store) == []
    [pause] = store.pauses()
    assert (pause.destination, pause.until, pause.actor) == (None, NOW + HOUR, "ann")

    sql.clock.at = NOW + HOUR

    assert sorted(sent(store, NOW + HOUR)) == ["a", "b"]
    assert store.pauses() == []


def test_a_new_end_counts_for_what_is_parked_already(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a")])
    timeouts = face(store)
    assert timeouts.pause("billing", by=BY)
    sent(store)

    assert not timeouts.pause("billing", until=from_micros(NOW + HOUR), by=BY)

    assert sent(store) == []
    [pause] = timeouts.pauses()
    assert (pause.until, pause.parked.number) == (NOW + HOUR, 1)
    sql.clock.at = NOW + HOUR
    assert sent(store, NOW + HOUR) == ["a"]


def test_of_two_pauses_each_holds(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a"), timeout("b", destination="shipping")])
    timeouts = face(store)
    timeouts.pause("billing", by=BY)
    timeouts.pause(by=BY)
    sent(store)

    timeouts.resume(by=BY)
    assert sent(store) == ["b"]
    timeouts.resume("billing", by=BY)
    assert sent(store) == ["a"]


def test_a_resume_leaves_what_another_pause_with_the_same_end_holds(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a"), timeout("b", destination="shipping")])
    timeouts, end = face(store), from_micros(NOW + HOUR)
    for destination in ("billing", None):
        timeouts.pause(destination, until=end, by=BY)
    assert sent(store) == []

    assert timeouts.resume("billing", by=BY) == 0

    assert [(one.destination, one.parked.number) for one in timeouts.pauses()] == [(None, 2)]
    assert timeouts.resume(by=BY) == 2
    assert sorted(sent(store)) == ["a", "b"]


BEHIND_UTC = timezone(-timedelta(hours=1))


@pytest.mark.parametrize(
    "until", [timedelta.max, timedelta.min, datetime.max.replace(tzinfo=BEHIND_UTC)]
)
def test_a_pause_ends_within_the_calendar(sql: Stores, until: timedelta | datetime) -> None:
    store: Any = sql()

    with pytest.raises(InvalidMessage, match="outside the years 1 to 9999"):
        face(store).pause(until=until, by=BY)

    assert store.pauses() == []


def test_maintenance_ends_a_resume_that_was_interrupted(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a")])
    store.pause("billing", None, BY)
    sent(store)
    store.resume("billing", BY)  # and its process is killed before it returns anything
    assert sent(store) == []

    while store.run_maintenance():
        pass

    assert sent(store) == ["a"]
    assert store.pauses() == []


def test_a_parked_timeout_is_cancelled_and_rescheduled_as_any_other(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a"), timeout("b")])
    store.pause("billing", None, BY)
    sent(store)

    sql.clock.at += 61 * SECOND
    assert store.cancel("a") in (CancelResult.CANCELLED, CancelResult.MAYBE_SENT)
    store.reschedule("b", NOW + HOUR)
    face(store).resume("billing", by=BY)

    assert sent(store, NOW + 61 * SECOND) == []
    sql.clock.at = NOW + HOUR
    assert sent(store, NOW + HOUR) == ["b"]


def test_a_parked_timeout_is_cancelled_while_others_of_its_chunk_are_sent(
    row_locking: Stores,
) -> None:
    store: Any = row_locking()
    store.store_many([timeout("a"), timeout("b", destination="shipping")])
    chunk = store.claim(NOW, 10, "o")
    store.pause("billing", None, BY)

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        assert store.cancel("a") is CancelResult.CANCELLED
        locked.close(outcomes([one.key for one in locked.timeouts]))

    assert [one.id for one in locked.timeouts] == ["b"]
    assert store.count(TimeoutFilter()) == 0


@pytest.mark.parametrize("until", [None, from_micros(NOW + HOUR)])
def test_a_parked_timeout_that_is_rerouted_is_sent_at_once(sql: Stores, until: Any) -> None:
    store: Any = sql()
    store.store_many([timeout("a"), timeout("b"), timeout("c", due=NOW + HOUR)])
    woken: list[int] = []
    timeouts = Timeouts(store, woken.append)
    timeouts.pause("billing", until=until, by=BY)
    assert sent(store) == []

    done = timeouts.reroute("shipping", destination="billing")

    assert sorted(done.rerouted) == ["a", "b", "c"]
    assert len(woken) == 1
    assert sorted(sent(store)) == ["a", "b"]
    assert timeouts.resume("billing", by=BY) == 0
    assert store.key_of("c") == Key(NOW + HOUR, "c")


def test_a_parked_timeout_that_is_rerouted_is_parked_by_a_pause_of_its_new_queue(
    sql: Stores,
) -> None:
    store: Any = sql()
    store.store_many([timeout("a")])
    timeouts = face(store)
    timeouts.pause("billing", by=BY)
    assert sent(store) == []
    timeouts.pause("shipping", by=BY)

    timeouts.reroute("shipping", destination="billing")

    assert sent(store) == []
    timeouts.resume("billing", by=BY)
    assert sent(store) == []
    assert timeouts.resume("shipping", by=BY) == 1
    assert sent(store) == ["a"]


def test_a_pause_changes_the_status_of_no_other_timeout(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a", NOW - HOUR)])
    store.pause("billing", None, BY)
    sent(store)

    assert store.statistics().oldest_due is None  # held on purpose: nothing is late
    store.store_many([timeout("b", NOW - SECOND, destination="shipping")])
    assert store.statistics().oldest_due == NOW - SECOND
    assert store.count(TimeoutFilter()) == 2


def test_a_pause_cannot_end_in_the_past(sql: Stores) -> None:
    with pytest.raises(InvalidMessage, match="has passed"):
        face(sql()).pause("billing", until=from_micros(NOW) - timedelta(hours=1))


def test_a_store_in_memory_refuses_a_pause() -> None:
    with MemoryStore() as store, pytest.raises(Unsupported, match="cannot hold timeouts back"):
        face(store).pause("billing")


class MemoryStore:
    """A store in memory, for the time of a test."""

    def __enter__(self) -> Any:
        self._persistence = MemoryPersistence(accept_loss=True)
        return self._persistence.timeouts("sales", StoresClock())

    def __exit__(self, *_: object) -> None:
        self._persistence.close()


class StoresClock:
    """A clock that stands still."""

    def now(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0


def test_without_a_pause_a_dispatch_runs_no_further_statement(sql: Stores) -> None:
    store: Any = sql()
    store.store_many([timeout("a"), timeout("b", destination="shipping")])

    def statements() -> list[str]:
        ran: list[str] = []

        def note(_c: Any, _u: Any, statement: str, *_: Any) -> None:
            ran.append(statement)

        engine = store.context.database.engine
        chunk = store.claim(NOW, 1, "o")
        event.listen(engine, "before_cursor_execute", note)
        try:
            dispatch(store, chunk)
        finally:
            event.remove(engine, "before_cursor_execute", note)
        return ran

    without = statements()
    assert not any("pauses" in one for one in without if "SELECT" not in one)
    assert sum("pauses" in one for one in without) == 1  # within the statement that locks


def test_a_dispatcher_that_parks_now_is_awaited_by_the_resume(row_locking: Stores) -> None:
    here, there = row_locking(atomic=True), row_locking()
    assert isinstance(here, SqlTimeoutStore)
    assert isinstance(there, SqlTimeoutStore)
    here.store_many([timeout("a"), timeout("b", destination="shipping")])
    here.pause("billing", None, BY)
    chunk = here.claim(NOW, 10, "o")
    pauses = here.context.tables.pauses

    with (
        here.context.database.begin() as transaction,
        here.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked,
    ):
        # Skipped: the dispatcher that has parked "a" keeps the row of the pause until it commits.
        with there.context.database.begin() as other:
            free = select(pauses.c.destination).with_for_update(skip_locked=True)
            mine = pauses.c.endpoint == here.endpoint
            assert other.execute(free.where(mine)).all() == []
        locked.close([])
    face(there).resume("billing", by=BY)

    key = here.key_of("a")
    assert key == Key(NOW, "a")


def test_a_transaction_that_is_older_than_the_pause_sends_nothing_that_it_holds(
    row_locking: Stores,
) -> None:
    # The transactions of a database of ours read what is committed by each statement.
    store, elsewhere = row_locking(atomic=True), row_locking()
    assert isinstance(store, SqlTimeoutStore)
    assert isinstance(elsewhere, SqlTimeoutStore)
    store.store_many([timeout("a"), timeout("b", destination="shipping")])
    chunk = store.claim(NOW, 10, "o")
    pauses = select(store.context.tables.pauses)

    with store.context.database.begin() as transaction:
        transaction.execute(pauses).all()  # takes the snapshot, if the transaction has one
        elsewhere.pause("billing", None, BY)
        with store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked:
            assert [one.id for one in locked.timeouts] == ["b"]
            locked.close([])
