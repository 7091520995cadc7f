"""One dispatcher at a time has a timeout in hand, until it says how it ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from tests.persistence.conftest import Stores
from tests.persistence.making import (
    NOW,
    SECOND,
    SetClock,
    dispatch,
    ids,
    outcomes,
    rolled_back,
    timeout,
)
from tests.support.waiting import eventually
from timeoutmgr.contracts import (
    CancelResult,
    Key,
    Outcome,
    OutcomeKind,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.persistence import SqlPersistence

ALL = TimeoutFilter()


def test_locked_rows_are_whole_and_in_order(store: TimeoutStore) -> None:
    stored = [timeout("b"), timeout("a"), timeout("c", NOW - 1)]
    store.store_many(stored)
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        assert list(locked.timeouts) == [stored[2], stored[1], stored[0]]


def test_dispatched_and_failed_timeouts_are_removed_for_good(store: TimeoutStore) -> None:
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes(chunk.keys[:1]) + outcomes(chunk.keys[1:], OutcomeKind.FAILED))

    assert store.count(ALL) == 0
    assert store.find("a") == (TimeoutState.DISPATCHED, None)
    assert store.find("b") == (TimeoutState.FAILED, None)
    assert store.statistics().claimed == 0


def test_a_row_without_an_outcome_stays_and_can_be_claimed(store: TimeoutStore) -> None:
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes(chunk.keys[:1]))

    assert ids(store.claim(NOW, 10, "o")) == ["b"]


def test_a_locked_row_is_left_out_for_other_dispatchers(store: TimeoutStore) -> None:
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        with store.lock_for_dispatch(chunk.token, chunk.keys) as other:
            assert list(other.timeouts) == []
        with store.lock_for_dispatch("", chunk.keys[:1]) as other:
            assert list(other.timeouts) == []
        locked.close(outcomes(chunk.keys))

    assert store.count(ALL) == 0


def test_keys_that_are_removed_moved_or_not_due_are_left_out(store: TimeoutStore) -> None:
    store.store_many([timeout(name) for name in "abc"])
    chunk = store.claim(NOW, 10, "o")
    store.cancel("a")
    store.reschedule("b", NOW - 5)

    with store.lock_for_dispatch(chunk.token, [*chunk.keys, Key(NOW + 1, "d")]) as locked:
        assert [one.id for one in locked.timeouts] == ["c"]
        locked.close(outcomes([one.key for one in locked.timeouts]))

    assert [one.id for one in store.list(ALL)] == ["b"]


def test_a_control_message_with_an_id_alone_claims_on_the_spot(
    store: TimeoutStore, clock: SetClock
) -> None:
    store.store_many([timeout("a", NOW + 1), timeout("b")])
    key = store.key_of("a")
    assert key == Key(NOW + 1, "a")

    with store.lock_for_dispatch("", [key]) as locked:
        early = list(locked.timeouts)
        locked.close([])
    clock.at = NOW + 1
    with store.lock_for_dispatch("", [key]) as locked:
        locked.close(outcomes([one.key for one in locked.timeouts]))

    assert early == []
    assert store.find("a") == (TimeoutState.DISPATCHED, None)
    assert ids(store.claim(NOW + 1, 9, "o")) == ["b"]


def test_a_control_message_that_comes_again_finds_nothing(store: TimeoutStore) -> None:
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 10, "o")
    dispatch(store, chunk)

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        assert list(locked.timeouts) == []
        locked.close([])


def test_leaving_without_close_gives_back_and_says_maybe_sent(store: TimeoutStore) -> None:
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 10, "o")

    with pytest.raises(ZeroDivisionError), store.lock_for_dispatch(chunk.token, chunk.keys):
        raise ZeroDivisionError
    again = store.claim(NOW, 10, "o")
    store.release(again.token)

    assert ids(again) == ["a", "b"]
    assert store.cancel("a") is CancelResult.MAYBE_SENT
    assert store.cancel("a") is CancelResult.MAYBE_SENT
    assert store.reschedule("b", NOW + 1) == "maybe_sent"


def test_closing_twice_is_an_error(store: TimeoutStore) -> None:
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes(chunk.keys))
        with pytest.raises(RuntimeError):
            locked.close([])


def test_an_attempt_is_counted_and_nothing_else_changes(
    store: TimeoutStore, clock: SetClock
) -> None:
    store.store_many([timeout("a")])
    for attempt in range(3):
        chunk = store.claim(clock.at, 10, "o")
        clock.at += SECOND
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            assert [one.attempts for one in locked.timeouts] == [attempt]
            retry = outcomes(chunk.keys, OutcomeKind.RETRY)
            locked.close([replace(one, next_try=clock.at) for one in retry])

    assert store.list(ALL) == [replace(timeout("a"), attempts=3, next_try=clock.at)]


def test_in_a_transaction_taking_comes_and_goes_with_it(sql: Stores) -> None:
    store, persistence = sql(atomic=True), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout("a")])

    with rolled_back(persistence.database) as transaction:
        chunk = store.claim(NOW, 1, "o", transaction=transaction)
        with store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked:
            locked.close(outcomes(chunk.keys))
    undone = store.find("a")
    with persistence.database.begin() as transaction:
        chunk = store.claim(NOW, 1, "o", transaction=transaction)
        with store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked:
            locked.close(outcomes(chunk.keys))

    assert undone == (TimeoutState.PENDING, timeout("a"))
    assert store.find("a") == (TimeoutState.DISPATCHED, None)


def test_a_lapsed_claim_is_not_replaced_while_its_rows_are_locked(row_locking: Stores) -> None:
    store = row_locking()
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys[:1]) as locked:
        row_locking.clock.at += 120 * SECOND
        meanwhile = store.claim(row_locking.clock.at, 10, "p")
        locked.close(outcomes(chunk.keys[:1]))

    assert meanwhile.keys == ()
    assert ids(store.claim(row_locking.clock.at, 10, "p")) == ["b"]


def test_on_sqlite_a_lapsed_claim_cannot_be_locked_any_more(sqlite: Stores) -> None:
    store = sqlite()
    store.store_many([timeout("a")])
    old = store.claim(NOW, 10, "o")
    sqlite.clock.at += 120 * SECOND
    new = store.claim(sqlite.clock.at, 10, "p")

    assert dispatch(store, old) == []
    assert dispatch(store, new) == ["a"]


def test_on_sqlite_sent_is_sent_even_if_the_claim_lapsed_meanwhile(sqlite: Stores) -> None:
    store = sqlite()
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        sqlite.clock.at += 120 * SECOND
        later = store.claim(sqlite.clock.at, 10, "p")
        store.reschedule("b", NOW + 999 * SECOND)
        locked.close(outcomes(chunk.keys))

    assert ids(later) == ["a", "b"]
    assert dispatch(store, later) == []
    assert [one.id for one in store.list(ALL)] == ["b"]
    assert store.find("a") == (TimeoutState.DISPATCHED, None)


def test_where_dispatch_is_atomic_nothing_is_maybe_sent(sql: Stores) -> None:
    store, persistence = sql(atomic=True), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 10, "o")
    with (
        rolled_back(persistence.database) as transaction,
        store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked,
    ):
        assert len(locked.timeouts) == 1
    sql.clock.at += 120 * SECOND
    store.claim(sql.clock.at, 10, "o")

    assert store.cancel("a") is CancelResult.CANCELLED


def test_a_control_message_without_its_claim_still_leaves_a_trace(row_locking: Stores) -> None:
    store = row_locking()
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 10, "o")
    store.release(chunk.token)

    with (
        store.lock_for_dispatch(chunk.token, chunk.keys[:1]) as locked,
        store.lock_for_dispatch("", chunk.keys[1:]),
    ):
        claimed = store.statistics().claimed
        locked.close([])

    assert claimed == 2
    assert store.statistics().claimed == 0
    assert store.cancel("a") is CancelResult.CANCELLED
    assert store.cancel("b") is CancelResult.MAYBE_SENT


def test_a_dispatcher_that_is_passed_by_leaves_the_claim_to_its_holder(
    row_locking: Stores,
) -> None:
    first, second = row_locking(), row_locking()
    first.store_many([timeout("a")])
    chunk = first.claim(NOW, 10, "o")

    with first.lock_for_dispatch(chunk.token, chunk.keys) as holder:
        with second.lock_for_dispatch(chunk.token, chunk.keys) as late:
            assert not late.timeouts
            late.close([])
        again = second.claim(NOW, 10, "p")
        holder.close(outcomes(chunk.keys))

    assert again.keys == ()


def test_a_dispatcher_may_lock_two_chunks_and_ask_for_one_chunk_twice(
    store: TimeoutStore,
) -> None:
    # It would wait for itself if looking up the second, or the first again, waited for anything.
    store.store_many([timeout(name) for name in "abcdef"])
    one, other = store.claim(NOW, 3, "o"), store.claim(NOW, 3, "o")

    with store.lock_for_dispatch(one.token, one.keys) as first:
        with store.lock_for_dispatch(one.token, one.keys) as again:
            again.close([])
        with store.lock_for_dispatch(other.token, other.keys) as second:
            first.close(outcomes(one.keys))
            second.close(outcomes(other.keys))

    assert [len(each.timeouts) for each in (first, again, second)] == [3, 0, 3]
    assert store.count(TimeoutFilter()) == 0


def test_the_claim_outlives_a_chunk_with_a_row_that_another_has_locked(row_locking: Stores) -> None:
    store, persistence = row_locking(), row_locking.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout("a"), timeout("b")])
    chunk = store.claim(NOW, 10, "o")
    lock = text(
        "SELECT id FROM suite_timeouts WHERE endpoint = :endpoint AND due = :due AND id = 'a' "
        "FOR UPDATE"
    )

    with rolled_back(persistence.database) as change:
        change.execute(lock, {"endpoint": store.endpoint, "due": NOW})
        sent = dispatch(store, chunk)
        meanwhile = store.claim(NOW, 10, "o")

    assert sent == ["b"]
    assert meanwhile.keys == ()
    assert dispatch(store, store.claim(NOW, 10, "o")) == ["a"]


def test_a_claim_on_a_row_that_a_change_held_ends_with_the_change(row_locking: Stores) -> None:
    store, persistence = row_locking(), row_locking.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 10, "o")
    lock = text("SELECT id FROM suite_timeouts WHERE due = :due FOR UPDATE")

    with rolled_back(persistence.database) as change:
        change.execute(lock, {"due": NOW})
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            assert not locked.timeouts
            locked.close([])
        meanwhile = store.claim(NOW, 10, "o")

    assert meanwhile.keys == ()
    assert dispatch(store, store.claim(NOW, 10, "o")) == ["a"]


def test_a_close_with_different_outcomes_waits_for_keys_in_the_order_of_ids(
    sql_of: Callable[[str], SqlPersistence], unique: str
) -> None:
    persistence = sql_of("postgres")  # elsewhere no change locks a key before its row
    store = persistence.timeouts(unique, SetClock())
    store.store_many([timeout("a"), timeout("b")])
    chunk, kinds = store.claim(NOW, 10, "o"), {"a": OutcomeKind.FAILED, "b": OutcomeKind.DISPATCHED}
    key = text(
        "SELECT id FROM suite_timeout_keys WHERE endpoint = :endpoint AND id = :id FOR UPDATE"
    )
    waiting = text(
        "SELECT 1 FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    )

    def close() -> None:
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(
                [Outcome(key=one.key, kind=kinds[one.id], at=NOW) for one in locked.timeouts]
            )

    with ThreadPoolExecutor(1) as pool:
        with rolled_back(persistence.database) as change:
            change.execute(key, {"endpoint": unique, "id": "a"})
            closed = pool.submit(close)
            eventually(lambda: change.execute(waiting).first(), "the close waits for the change")
            change.execute(key, {"endpoint": unique, "id": "b"})
        closed.result()

    assert store.count(ALL) == 0


def test_an_unconfirmed_timeout_is_maybe_sent(store: TimeoutStore) -> None:
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        [key] = chunk.keys
        locked.close(
            [
                Outcome(
                    key=key, kind=OutcomeKind.RETRY, at=NOW, next_try=NOW + SECOND, maybe_sent=True
                )
            ]
        )

    assert store.cancel("a") is CancelResult.MAYBE_SENT


def test_a_release_in_doubt_leaves_a_dispatcher_at_work(store: TimeoutStore) -> None:
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        store.release(chunk.token, maybe_sent=True)
        again = store.claim(NOW, 10, "p")
        locked.close(outcomes(chunk.keys))

    assert again.keys == ()


def test_a_row_that_a_release_in_doubt_frees_is_maybe_sent(row_locking: Stores) -> None:
    store = row_locking()
    store.store_many([timeout("a")])

    store.release(store.claim(NOW, 10, "o").token, maybe_sent=True)

    assert ids(store.claim(NOW, 10, "p")) == ["a"]
    assert store.cancel("a") is CancelResult.MAYBE_SENT
