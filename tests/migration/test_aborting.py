"""An aborted run leaves each timeout in one place, and a late worker moves none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.migration.conftest import HOUR, Move, names, pending, some
from tests.persistence.making import NOW
from timeoutmgr.contracts import TimeoutState
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.migration import Batch, BatchState, MigrationRunState
from timeoutmgr.migration.batch_step import hide, send


@pytest.mark.behaviour(134)
def test_an_abort_puts_back_only_timeouts_that_are_not_at_the_target(moves: Move) -> None:
    moves.source.store_many(some(9))
    parts = moves.parts()
    run = moves.begin(parts)
    batches = [*parts.ledger.batches(run.id)]
    send(parts, run, hide(parts, run, batches[0]))
    halfway = hide(parts, run, batches[1])
    items = parts.source.read(run.id, halfway)
    parts.ledger.move_batch(run.id, _with_state(halfway, BatchState.SENDING))
    parts.target.deliver(run.id, halfway, items[:1])
    parts.close()

    report = moves.abort()

    assert names(pending(moves.target)) == ["t000", "t001", "t002", "t003"]
    assert names(pending(moves.source)) == ["t004", "t005", "t006", "t007", "t008"]
    assert (report.collected, report.new, report.returned, report.verified) == (6, 4, 2, True)
    moves.clock.at = NOW + 2 * HOUR
    assert len(moves.source.claim(moves.clock.at, 10, "poller").keys) == 5  # visible again
    assert moves.source.find("t003") == (TimeoutState.MIGRATED, None)


def test_after_an_abort_the_target_takes_nothing_from_a_late_process(moves: Move) -> None:
    moves.source.store_many(some(3))
    late = moves.parts()
    run = moves.begin(late)
    [batch] = late.ledger.batches(run.id)
    hidden = hide(late, run, batch)
    items = late.source.read(run.id, hidden)
    late.ledger.move_batch(run.id, _with_state(hidden, BatchState.SENDING))
    late.ledger.release(late.runner)  # its life is lost, and it does not know
    moves.abort()

    with pytest.raises(MigrationFailed, match="is shut"):
        late.target.deliver(run.id, hidden, items)

    assert pending(moves.target) == []
    assert names(pending(moves.source)) == ["t000", "t001", "t002"]
    with pytest.raises(MigrationFailed, match="cannot become"):
        late.ledger.move_batch(run.id, _with_state(hidden, BatchState.DONE))


def test_a_run_that_is_being_aborted_is_not_continued(move: Move) -> None:
    move.source.store_many(some(3))
    parts = move.parts()
    run = move.begin(parts)
    parts.ledger.move_run(run.id, MigrationRunState.ABORTING)
    parts.close()

    with pytest.raises(MigrationRefused, match="is being aborted"):
        move.run()

    move.abort()
    assert move.parts().ledger.open_run() is None


def _with_state(batch: Batch, state: BatchState) -> Batch:
    return replace(batch, state=state)
