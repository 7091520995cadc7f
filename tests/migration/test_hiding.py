"""A hidden batch is neither claimed nor changed; all other timeouts are dispatched meanwhile."""

from __future__ import annotations

import pytest

from tests.migration.conftest import HOUR, Move, names, pending, some
from tests.persistence.making import NOW, dispatch, ids, timeout
from timeoutmgr.contracts import CancelResult, ChangeResult, TimeoutState
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.pauses import PausesDispatch
from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration.batch_step import hide, send


@pytest.mark.behaviour(132)
def test_a_hidden_batch_is_never_claimed_and_other_timeouts_are(moves: Move) -> None:
    moves.source.store_many(some(5))
    parts = moves.parts()
    run = moves.begin(parts)
    first, second = parts.ledger.batches(run.id)

    hide(parts, run, first)

    moves.clock.at = NOW + 2 * HOUR  # all are due, and none is moved yet
    chunk = moves.source.claim(moves.clock.at, 10, "poller")
    assert ids(chunk) == ["t003", "t004"]
    assert dispatch(moves.source, chunk, moves.clock.at) == ["t003", "t004"]
    assert names(pending(moves.source)) == ["t000", "t001", "t002"]  # hidden is not out of sight
    assert moves.source.statistics().pending == 3
    [_, untouched] = parts.ledger.batches(run.id)
    assert untouched == second
    parts.close()
    moves.abort()


def test_on_its_way_and_after_it_a_timeout_cannot_be_cancelled_or_moved_here(moves: Move) -> None:
    moves.source.store_many(some(3))
    parts = moves.parts()
    run = moves.begin(parts)
    [batch] = parts.ledger.batches(run.id)

    hidden = hide(parts, run, batch)
    before = [moves.source.cancel("t000"), moves.source.reschedule("t001", NOW + HOUR)]
    saga = moves.source.cancel_saga("saga 2")
    assert before == [CancelResult.TOO_LATE, ChangeResult.TOO_LATE]
    assert saga == []

    send(parts, run, hidden)
    after = [moves.source.cancel("t000"), moves.source.reschedule("t001", NOW + HOUR)]

    assert after == before
    assert moves.source.find("t000") == (TimeoutState.MIGRATED, None)
    assert moves.target.cancel("t000") is CancelResult.CANCELLED
    parts.close()


def test_a_cancel_or_an_insert_before_its_batch_is_not_missed(moves: Move) -> None:
    moves.source.store_many(some(6))
    parts = moves.parts()
    run = moves.begin(parts)

    moves.source.cancel("t004")
    moves.source.store_many([timeout("new", NOW + HOUR + 1)])  # into the range of the first batch
    parts.close()
    report = moves.run()

    assert names(pending(moves.target)) == ["t000", "new", "t001", "t002", "t003", "t005"]
    assert (report.planned, report.collected, report.verified) == (6, 6, True)
    assert report.run == run.id


def test_a_pause_that_begins_during_a_run_stops_it_until_the_resume(moves: Move) -> None:
    moves.source.store_many(some(3))
    parts = moves.parts()
    run = moves.begin(parts)
    by, store = ChangedBy(channel="cli"), moves.source
    assert isinstance(store, PausesDispatch)
    store.pause("billing", NOW + HOUR, by)

    with pytest.raises(MigrationFailed, match="dispatch to billing is paused; resume it first"):
        parts.migrate(run)

    parts.close()
    store.resume("billing", by)
    while not store.unpark().is_last:
        pass
    assert moves.run().new == 3


def test_an_overdue_batch_of_an_interrupted_run_goes_on_all_the_same(move: Move) -> None:
    move.source.store_many(some(3))
    parts = move.parts()
    run = move.begin(parts)
    [batch] = parts.ledger.batches(run.id)
    hide(parts, run, batch)
    parts.close()
    move.clock.at = NOW + 2 * HOUR

    move.run()

    assert ids(move.target.claim(move.clock.at, 10, "poller")) == ["t000", "t001", "t002"]
