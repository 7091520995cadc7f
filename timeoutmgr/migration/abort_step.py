"""The step of an abort: an open batch is put where each of its timeouts is to be from now on."""

from __future__ import annotations

from dataclasses import replace

from timeoutmgr.contracts import Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.migration.moving import send
from timeoutmgr.migration.parts import Parts
from timeoutmgr.migration.runs import Batch, Run
from timeoutmgr.migration.states import BatchState


def finish_sending(parts: Parts, run: Run, batch: Batch) -> Batch:
    """Send *batch* to its end, for a target that cannot say what it has.

    What may be in a queue cannot be called back. To restore it in the source would leave it in
    both; sent once more, all of it is at the target, some of it perhaps twice under one id.
    """
    done = send(parts, run, batch)
    reach("migration.finished")
    return done


def known_as_hidden(parts: Parts, run: Run, batch: Batch) -> Batch:
    """Return *batch*, written down as hidden where a crash came before that."""
    if batch.state is not BatchState.PENDING or parts.source.hides_with_the_ledger:
        return batch
    items = parts.source.read(run.id, batch)
    if not items:
        return batch
    hidden = replace(batch, state=BatchState.HIDDEN, taken=len(items))
    parts.ledger.move_batch(run.id, hidden)
    reach("migration.found_hidden")
    return hidden


def put_back(parts: Parts, run: Run, batch: Batch) -> Batch:
    """Unhide what the target does not have, and remove what it has; the run is shut there."""
    items = parts.source.read(run.id, batch)
    there: set[str] = set()
    if batch.state is BatchState.SENDING and parts.target.knows_what_it_has:
        there = parts.target.present([item.timeout.id for item in items])
    # Of what was taken: a source of others' may have some of it back since a crash.
    back = batch.taken - len(there)
    returned = replace(batch, state=BatchState.RETURNED, new=len(there), returned=back)

    def also(transaction: Transaction | None, _count: int) -> None:
        parts.ledger.move_batch(run.id, returned, transaction)

    parts.source.restore(run.id, batch, items, there, also)
    reach("migration.returned")
    return returned
