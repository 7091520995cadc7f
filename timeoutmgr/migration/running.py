"""The loops around the steps: all batches of a run, and all that an abort puts back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration.claiming import in_hand
from timeoutmgr.migration.moving import move
from timeoutmgr.migration.parts import Parts
from timeoutmgr.migration.report import Report, report
from timeoutmgr.migration.returning import finish_sending, known_as_hidden, put_back
from timeoutmgr.migration.runs import Batch, Run
from timeoutmgr.migration.states import BatchState, RunState

OnBatch = Callable[[Batch], None]


def migrate(parts: Parts, run: Run, on_batch: OnBatch = lambda _batch: None) -> Report:
    """Move every batch that is not done; verify, and save the report.

    Can be interrupted anywhere, and begun again with the same run.
    """
    for batch in parts.ledger.batches(run.id):
        if batch.state is not BatchState.DONE:
            on_batch(move(parts, run, in_hand(parts, run, batch)))
    made = report(parts.ledger, run, RunState.COMPLETED)
    left = parts.source.hidden(run.id)
    if left or not made.verified:
        raise MigrationFailed(
            f"run {run.id}: {left} timeouts are still hidden, and of {made.taken} taken {made.new} "
            f"arrived and {made.known} were known; run again, or abort"
        )
    parts.target.shut(run.id)
    reach("migration.shut")
    parts.ledger.move_run(run.id, RunState.COMPLETED, report=made.document())
    reach("migration.completed")
    return made


def abort(parts: Parts, run: Run, on_batch: OnBatch = lambda _batch: None) -> Report:
    """Put back what is neither here nor there; what is at the target stays there.

    Can be interrupted anywhere, and begun again.
    """
    parts.ledger.move_run(run.id, RunState.ABORTING)
    reach("migration.aborting")
    if not parts.target.knows_what_it_has:
        for batch in _taken_over(parts, run):
            if batch.state is BatchState.SENDING:
                on_batch(finish_sending(parts, run, batch))
    parts.target.shut(run.id)
    reach("migration.shut_for_good")
    for batch in _taken_over(parts, run):
        found = known_as_hidden(parts, run, batch)
        if found.state.is_open:
            on_batch(put_back(parts, run, found))
    left = parts.source.hidden(run.id)
    if left:
        raise MigrationFailed(f"run {run.id}: {left} timeouts are still hidden; abort again")
    made = report(parts.ledger, run, RunState.ABORTED)
    parts.ledger.move_run(run.id, RunState.ABORTED, report=made.document())
    reach("migration.aborted")
    return made


def _taken_over(parts: Parts, run: Run) -> Iterator[Batch]:
    """Yield the run's batches, those that others had in hand once they have let go of them.

    Nobody can claim one any more who does not work at the run.
    """
    held = parts.ledger.in_hand(run.id)
    for batch in parts.ledger.batches(run.id):
        yield in_hand(parts, run, batch) if batch.state.is_open or batch.no in held else batch
