"""The step: one batch, from wherever a crash has left it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from timeoutmgr.contracts import Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.migration.ports import StepInputs
from timeoutmgr.migration.runs import Batch, BatchState, MigrationRun

# --- claim a batch before it is moved: two processes never move a batch at the same time ------
# A store would insert each id once nevertheless; a queue would get the batch twice.

_RETRY_EVERY: Final = 0.25
_MOST_TRIES: Final = 240


def claim_batch(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Return *batch* as it is now, claimed; wait for its owner while that is alive.

    The owner is a worker whose runner has died: it ends its batch and gets no other. Raises
    MigrationRefused if the worker does not end its batch.
    """
    for _attempt in range(_MOST_TRIES):
        found = parts.ledger.claim(run, batch.no, parts.runner)
        if found is not None:
            reach("migration.claimed")
            return found
        parts.pause(_RETRY_EVERY)
    raise MigrationRefused(
        f"batch {batch.no} of run {run.id} is in the hands of another process",
        ["a worker that was not ended with its runner; wait for it, or end it, then run again"],
    )


def claim_next_batch(parts: StepInputs, run: MigrationRun) -> Batch | None:
    """Return the first batch that is left to be done, claimed; None where there is none."""
    found = parts.ledger.claim_next(run, parts.runner)
    if found is not None:
        reach("migration.claimed")
    return found


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


# --- the step of an abort: an open batch is put where each of its timeouts is to be from now on ---


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
