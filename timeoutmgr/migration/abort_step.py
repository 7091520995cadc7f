"""The step of an abort: an open batch is put where each of its timeouts is to be from now on."""

from __future__ import annotations

from dataclasses import replace

from timeoutmgr.contracts import Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.migration.batch_step import send
from timeoutmgr.migration.ports import StepInputs
from timeoutmgr.migration.runs import Batch, MigrationRun
from timeoutmgr.migration.states import BatchState


def finish_sending(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Send *batch* to its end, for a target that cannot list its messages.

    A message cannot be recalled from a queue. Restored in the source, it would be in both places.
    Sent once more, the whole batch is at the target, a part of it perhaps twice under one id.
    """
    done = send(parts, run, batch)
    reach("migration.finished")
    return done


def known_as_hidden(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Return *batch*, written down as hidden where a crash came before that."""
    if batch.state is not BatchState.PENDING or parts.source.hides_atomically:
        return batch
    items = parts.source.read(run.id, batch)
    if not items:
        return batch
    hidden = replace(batch, state=BatchState.HIDDEN, collected=len(items))
    parts.ledger.move_batch(run.id, hidden)
    reach("migration.found_hidden")
    return hidden


def put_back(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Unhide the timeouts that the target lacks, and remove the others; the run is shut there."""
    items = parts.source.read(run.id, batch)
    there: set[str] = set()
    if batch.state is BatchState.SENDING and parts.target.knows_what_it_has:
        there = parts.target.present([item.timeout.id for item in items])
    # Counted from the batch: a foreign source may have got a part back before a crash.
    back = batch.collected - len(there)
    returned = replace(batch, state=BatchState.RETURNED, new=len(there), returned=back)

    def write(transaction: Transaction | None, _count: int) -> None:
        parts.ledger.move_batch(run.id, returned, transaction)

    parts.source.restore(run.id, batch, items, there, write)
    reach("migration.returned")
    return returned
