"""The step: one batch, from wherever a crash has left it."""

from __future__ import annotations

from dataclasses import replace

from timeoutmgr.contracts import Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration.ports import StepInputs
from timeoutmgr.migration.runs import Batch, MigrationRun
from timeoutmgr.migration.states import BatchState


def move(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Move *batch* on until it is done; return it with its counts.

    Raises MigrationFailed where counts do not agree: the batch then stays as it is, hidden, to be
    resumed or aborted.
    """
    if batch.state is BatchState.DONE:
        return batch
    if batch.state is BatchState.PENDING:
        batch = hide(parts, run, batch)
    return send(parts, run, batch)


def hide(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Take *batch* out of the source poller's sight."""
    hidden = replace(batch, state=BatchState.HIDDEN)

    def write(transaction: Transaction | None, count: int) -> None:
        nonlocal hidden
        hidden = replace(hidden, collected=count)
        parts.ledger.move_batch(run.id, hidden, transaction)

    parts.source.hide(run.id, batch, run.terms.window, write)
    reach("migration.hidden")
    return hidden


def send(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Deliver a hidden *batch*, and remove it from the source."""
    items = parts.source.read(run.id, batch)
    _agree(run, batch, "hidden", batch.collected, "read", len(items))
    if batch.state is BatchState.HIDDEN:
        batch = replace(batch, state=BatchState.SENDING)
        parts.ledger.move_batch(run.id, batch)
        reach("migration.sending")
    elif not parts.target.knows_what_it_has:
        # The process before may have sent all of the batch.
        batch = replace(batch, repeated=len(items))
    delivered = parts.target.deliver(run.id, batch, items)
    reach("migration.delivered")
    _agree(run, batch, "sent", len(items), "at the target", delivered.total)
    done = replace(batch, state=BatchState.DONE, new=delivered.new, known=delivered.known)

    def write(transaction: Transaction | None, count: int) -> None:
        _agree(run, done, "sent", len(items), "removed", count)
        parts.ledger.move_batch(run.id, done, transaction)

    parts.source.remove(run.id, batch, items, write)
    reach("migration.removed")
    return done


def _agree(run: MigrationRun, batch: Batch, one: str, first: int, other: str, second: int) -> None:
    if first != second:
        raise MigrationFailed(
            f"run {run.id}, batch {batch.no}: {first} timeouts were {one} and {second} {other}; "
            "nothing was removed from the source. Find the other process that changes them, then "
            "run again, or abort"
        )
