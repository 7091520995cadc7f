"""Claim a batch before it is moved: two processes never move a batch at the same time.

A store would insert each id once nevertheless; a queue would get the batch twice.
"""

from __future__ import annotations

from typing import Final

from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationRefused
from timeoutmgr.migration.ports import StepInputs
from timeoutmgr.migration.runs import Batch, MigrationRun

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
