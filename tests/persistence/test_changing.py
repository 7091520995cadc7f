"""Of a change and a dispatch at once exactly one wins, and both know."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, dispatch, ids, outcomes, rolled_back, timeout
from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    OutcomeKind,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.persistence import SqlPersistence

ALL = TimeoutFilter()


def test_a_pending_timeout_is_cancelled_for_good(store: TimeoutStore) -> None:
    store.store_many([timeout("a", NOW + 1)])

    results = [store.cancel("a"), store.cancel("a")]

    assert results == [CancelResult.CANCELLED, CancelResult.CANCELLED]
    assert store.count(ALL) == 0
    assert store.find("a") == (TimeoutState.CANCELLED, None)


@pytest.mark.parametrize("kind", [OutcomeKind.DISPATCHED, OutcomeKind.FAILED])
def test_a_change_after_dispatch_or_failure_is_too_late(
    store: TimeoutStore, kind: OutcomeKind
) -> None:
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 1, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes(chunk.keys, kind))

    assert store.cancel("a") is CancelResult.TOO_LATE
    assert store.reschedule("a", NOW) is ChangeResult.TOO_LATE


def test_a_change_of_a_locked_row_is_too_late(store: TimeoutStore) -> None:
    store.store_many([timeout("a", saga="s")])
    chunk = store.claim(NOW, 1, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        results = [store.cancel("a"), store.reschedule("a", NOW + 1), store.cancel_saga("s")]
        locked.close(outcomes(chunk.keys))

    assert results == [CancelResult.TOO_LATE, ChangeResult.TOO_LATE, []]
    assert store.find("a") == (TimeoutState.DISPATCHED, None)


def test_an_unknown_id_will_be_cancelled_until_its_message_comes(store: TimeoutStore) -> None:
    assert store.reschedule("a", NOW) is ChangeResult.UNKNOWN
    assert [store.cancel("a") for _ in range(2)] == [CancelResult.WILL_BE_CANCELLED] * 2
    store.store_many([timeout("a")])
    assert store.cancel("a") is CancelResult.CANCELLED
    assert store.reschedule("a", NOW) is ChangeResult.UNKNOWN


def test_a_claim_that_lapsed_leaves_maybe_sent(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 1, "o")
    manager = store.lock_for_dispatch(chunk.token, chunk.keys)
    if stores.persistence.capabilities.name == "sqlite":
        manager.__enter__()  # and never left, as if the dispatcher were killed
    stores.clock.at += 60 * SECOND
    store.release(store.claim(stores.clock.at, 1, "o").token)

    assert store.cancel("a") is CancelResult.MAYBE_SENT
    assert store.cancel("b") is CancelResult.CANCELLED


def test_a_cancel_amid_an_unlocked_claim_is_as_exact_as_the_store(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout("a"), timeout("b", NOW + 1)])
    store.claim(NOW, 1, "o")

    # With row locks a claim does not say whether it was taken; SQLite's fence does.
    row_locks = sql.persistence.capabilities.row_locks
    expected = CancelResult.MAYBE_SENT if row_locks else CancelResult.CANCELLED
    assert store.cancel("a") is expected
    assert store.cancel("b") is CancelResult.CANCELLED


def test_a_rescheduled_timeout_goes_out_at_its_new_time_only(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("a"), timeout("b", NOW + SECOND)])

    later, sooner = store.reschedule("a", NOW + 2), store.reschedule("b", NOW - 1)
    first = store.claim(NOW, 5, "o")
    stores.clock.at = NOW + 2
    second = store.claim(NOW + 2, 5, "o")

    assert [later, sooner] == [ChangeResult.CHANGED, ChangeResult.CHANGED]
    assert [ids(first), ids(second)] == [["b"], ["a"]]
    assert first.next_due == NOW + 2
    assert dispatch(store, second) == ["a"]


def test_a_saga_is_cancelled_with_all_its_timeouts(store: TimeoutStore) -> None:
    store.store_many([timeout("a", saga="s"), timeout("b", saga="s"), timeout("c", saga="S")])

    assert sorted(store.cancel_saga("s")) == ["a", "b"]
    assert list(store.cancel_saga("s")) == []
    assert [one.id for one in store.list(ALL)] == ["c"]


def test_a_sagas_cancel_leaves_timeouts_that_were_sent_after_it(store: TimeoutStore) -> None:
    before, after = timeout("a", saga="s"), timeout("b", saga="s")
    store.store_many([replace(before, created=NOW), replace(after, created=NOW + 1)])

    assert list(store.cancel_saga("s", sent_until=NOW)) == ["a"]
    assert [one.id for one in store.list(ALL)] == ["b"]


def test_in_a_transaction_a_sagas_cancel_comes_and_goes_with_it(sql: Stores) -> None:
    store, persistence = sql(), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout("a", saga="s")])

    with rolled_back(persistence.database) as transaction:
        assert list(store.cancel_saga("s", transaction=transaction)) == ["a"]

    assert store.find("a") == (TimeoutState.PENDING, timeout("a", saga="s"))


def test_concurrent_cancels_and_dispatches_agree_on_the_outcome(stores: Stores) -> None:
    store = stores(atomic=True)
    names = [f"{n:03}" for n in range(200)]
    store.store_many([timeout(name) for name in names])
    sent: list[str] = []
    results: dict[str, CancelResult] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(3)

    def run(work: object) -> None:
        assert callable(work)
        try:
            start.wait()
            work()
        except BaseException as error:
            errors.append(error)

    def send() -> None:
        while (chunk := store.claim(NOW, 7, "o")).keys:
            sent.extend(dispatch(store, chunk))

    def cancel() -> None:
        results.update((name, store.cancel(name)) for name in reversed(names))

    def move() -> None:
        for name in names[::5]:
            store.reschedule(name, NOW - 7)

    threads = [threading.Thread(target=run, args=(work,)) for work in (send, cancel, move)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    send_rest = store.claim(NOW, 500, "o")
    sent += dispatch(store, send_rest) if send_rest.keys else []

    assert errors == []
    cancelled = [name for name, result in results.items() if result is CancelResult.CANCELLED]
    assert set(results.values()) <= {CancelResult.CANCELLED, CancelResult.TOO_LATE}
    assert sorted(sent + cancelled) == names


def test_a_saga_is_cancelled_by_few_statements(sql: Stores) -> None:
    assert isinstance(sql.persistence, SqlPersistence)
    store, database = sql(), sql.persistence.database
    for start in range(0, 1_200, 400):
        names = range(start, start + 400)
        store.store_many([timeout(f"{n:04}", NOW + n * SECOND, saga="s") for n in names])
    store.store_many([timeout("other", NOW, saga="t")])
    ran: list[str] = []

    def note(_c: Any, _u: Any, statement: str, *_: Any) -> None:
        ran.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        cancelled = store.cancel_saga("s")
    finally:
        event.remove(database.engine, "before_cursor_execute", note)

    assert len(cancelled) == 1_200
    assert len(ran) <= 3 * 16  # three times five hundred at most; a statement per row ran thousands
    assert [one.id for one in store.list(TimeoutFilter())] == ["other"]
    assert store.find("0007") == (TimeoutState.CANCELLED, None)


def test_a_sagas_cancel_passes_by_rows_that_a_dispatcher_has_locked(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout(f"{n}", NOW + n, saga="s") for n in range(3)])
    chunk = store.claim(NOW, 1, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        assert sorted(store.cancel_saga("s")) == ["1", "2"]
        locked.close(outcomes(chunk.keys))

    assert store.find("0") == (TimeoutState.DISPATCHED, None)
