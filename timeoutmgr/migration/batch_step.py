"""The step: move one batch, from any state in which a crash left it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from timeoutmgr.contracts import Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.migration.ports import StepInputs
from timeoutmgr.migration.runs import Batch, BatchState, Item, MigrationRun

logger = logging.getLogger(__name__)

# --- claim a batch before moving it, so that two processes never move it at the same time ---------
# A store would still insert each id only once; a queue would get the batch twice.

_RETRY_EVERY: Final = 0.25
_MOST_TRIES: Final = 240


def claim_batch(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Claim *batch* and return its current state; wait while its owner is alive.

    Such an owner is a worker whose runner died: it finishes its batch and gets no other. Raises
    MigrationRefused if the worker does not end its batch.
    """
    for _attempt in range(_MOST_TRIES):
        found = parts.ledger.claim(run, batch.no, parts.runner)
        if found is not None:
            reach("migration.claimed")
            return found
        parts.pause(_RETRY_EVERY)
    raise MigrationRefused(
        f"batch {batch.no} of run {run.id} is claimed by another process",
        ["a worker that was not ended with its runner; wait for it, or end it, then run again"],
    )


def claim_next_batch(parts: StepInputs, run: MigrationRun) -> Batch | None:
    """Claim and return the first batch that is not done; None if there is none."""
    found = parts.ledger.claim_next(run, parts.runner)
    if found is not None:
        reach("migration.claimed")
    return found


def move(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Move *batch* until it is done; return it with its counts.

    Raises MigrationFailed if counts do not agree: the batch then stays hidden, to be resumed or
    aborted.
    """
    if batch.state is BatchState.DONE:
        return batch
    if batch.state is BatchState.PENDING:
        batch = hide(parts, run, batch)
    return send(parts, run, batch)


def hide(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Hide *batch* from the source's poller."""
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
        # A previous process may have sent the whole batch.
        batch = replace(batch, repeated=len(items))
    delivered = parts.target.deliver(run.id, batch, items)
    reach("migration.delivered")
    new, known, used = delivered.new, delivered.known, len(delivered.used)
    _agree(run, batch, "sent", len(items), "at the target", delivered.total + used)
    done = replace(batch, state=BatchState.DONE, new=new, known=known, returned=used)
    _remove(parts, run, done, items, delivered.used)
    reach("migration.removed")
    return done


def _remove(
    parts: StepInputs, run: MigrationRun, done: Batch, items: Sequence[Item], used: frozenset[str]
) -> None:
    """Remove *items* from the source, and unhide there the timeouts of *used* ids."""
    checked = ("refused", len(used), "returned") if used else ("sent", len(items), "removed")

    def write(transaction: Transaction | None, count: int) -> None:
        _agree(run, done, *checked, count)
        parts.ledger.move_batch(run.id, done, transaction)

    if not used:
        parts.source.remove(run.id, done, items, write)
        return
    logger.warning(
        "migration run %s leaves %d timeouts at the source, the target has other content under "
        "their ids, such as %.80r",
        *(run.id, len(used), min(used)),
        extra={"event": "timeouts_not_moved", "endpoint": run.terms.endpoint},
    )
    moved = {item.timeout.id for item in items} - used
    parts.source.restore(run.id, done, items, moved, write)


def _agree(run: MigrationRun, batch: Batch, one: str, first: int, other: str, second: int) -> None:
    if first != second:
        raise MigrationFailed(
            f"run {run.id}, batch {batch.no}: {first} timeouts were {one} and {second} {other}; "
            "nothing was removed from the source. Find the other process that changes them, then "
            "run again, or abort"
        )


# --- the step of an abort: put each timeout of an open batch where it belongs from now on ---------


def finish_sending(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Send the whole *batch*, for a target that cannot list its messages.

    A message cannot be recalled from a queue: restored in the source, it would be in both places.
    After another send the whole batch is at the target, perhaps partly twice under one id.
    """
    done = send(parts, run, batch)
    reach("migration.finished")
    return done


def known_as_hidden(parts: StepInputs, run: MigrationRun, batch: Batch) -> Batch:
    """Return *batch*, recorded as hidden if a crash prevented that."""
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
    """Unhide the timeouts that the target lacks, remove the rest; the target has shut the run."""
    items = parts.source.read(run.id, batch)
    there: set[str] = set()
    if batch.state is BatchState.SENDING and parts.target.knows_what_it_has:
        timeouts = [item.timeout for item in items]
        used = {timeouts[place].id for place in parts.target.conflicts(timeouts)}
        there = parts.target.present([one.id for one in timeouts]) - used
    # Count from the batch: a foreign source may have got back a part of it before a crash.
    back = batch.collected - len(there)
    returned = replace(batch, state=BatchState.RETURNED, new=len(there), returned=back)

    def write(transaction: Transaction | None, _count: int) -> None:
        parts.ledger.move_batch(run.id, returned, transaction)

    parts.source.restore(run.id, batch, items, there, write)
    reach("migration.returned")
    return returned
