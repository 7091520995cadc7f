"""Getting a batch into one's own hands: no two may be at one at once.

A store would take it once all the same; a queue would get it twice.
"""

from __future__ import annotations

from typing import Final

from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationRefused
from timeoutmgr.migration.parts import Parts
from timeoutmgr.migration.runs import Batch, Run

_LOOK_EVERY: Final = 0.25
_LOOKS: Final = 240


def in_hand(parts: Parts, run: Run, batch: Batch) -> Batch:
    """Return *batch* as it is now, claimed; wait for whoever has it and lives.

    That is a worker whose own runner has died: it ends its batch and gets no other. Raises
    MigrationRefused where it does not end.
    """
    for _look in range(_LOOKS):
        found = parts.ledger.claim(run, batch.no, parts.runner)
        if found is not None:
            reach("migration.claimed")
            return found
        parts.pause(_LOOK_EVERY)
    raise MigrationRefused(
        f"batch {batch.no} of run {run.id} is in the hands of another process",
        ["a worker that was not ended with its runner; wait for it, or end it, then run again"],
    )


def next_in_hand(parts: Parts, run: Run) -> Batch | None:
    """Return the first batch that is left to be done, claimed; None where there is none."""
    found = parts.ledger.claim_next(run, parts.runner)
    if found is not None:
        reach("migration.claimed")
    return found
