"""Where a run and each of its batches stand, and which steps lead on. Pure.

::

    run    planned → running → completed
              ├────────┴─────► aborting → aborted
              └──────────────────────────────┘ (nothing was hidden yet)

    batch  pending → hidden → sending → done
                        └────────┴────► returned

``hidden`` means that the source's poller does not see the batch any more and that surely nothing of
it was sent. ``sending`` is committed before the first is sent: the target may have any of it.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class MigrationRunState(StrEnum):
    """Where a run stands."""

    PLANNED = "planned"
    RUNNING = "running"
    COMPLETED = "completed"
    ABORTING = "aborting"
    ABORTED = "aborted"

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self in (MigrationRunState.COMPLETED, MigrationRunState.ABORTED)


class BatchState(StrEnum):
    """Where a batch stands."""

    PENDING = "pending"
    HIDDEN = "hidden"
    SENDING = "sending"
    DONE = "done"
    RETURNED = "returned"

    @property
    def is_open(self) -> bool:
        """Whether the batch is neither here nor there."""
        return self in (BatchState.HIDDEN, BatchState.SENDING)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self in (BatchState.DONE, BatchState.RETURNED)


_RUN: Final = MappingProxyType(
    {
        MigrationRunState.PLANNED: {
            MigrationRunState.RUNNING,
            MigrationRunState.ABORTING,
            MigrationRunState.ABORTED,
        },
        MigrationRunState.RUNNING: {MigrationRunState.COMPLETED, MigrationRunState.ABORTING},
        MigrationRunState.ABORTING: {MigrationRunState.ABORTED},
        MigrationRunState.COMPLETED: set[MigrationRunState](),
        MigrationRunState.ABORTED: set[MigrationRunState](),
    }
)
_BATCH: Final = MappingProxyType(
    {
        BatchState.PENDING: {BatchState.HIDDEN},
        BatchState.HIDDEN: {BatchState.SENDING, BatchState.RETURNED},
        BatchState.SENDING: {BatchState.DONE, BatchState.RETURNED},
        BatchState.DONE: set[BatchState](),
        BatchState.RETURNED: set[BatchState](),
    }
)


def run_may_become(now: MigrationRunState, then: MigrationRunState) -> bool:
    """Return whether a run may go from *now* to *then*; to stay is to have been there already."""
    return then is now or then in _RUN[now]


def batch_may_become(now: BatchState, then: BatchState) -> bool:
    """Return whether a batch may go from *now* to *then*; to stay is to have been there already."""
    return then is now or then in _BATCH[now]
