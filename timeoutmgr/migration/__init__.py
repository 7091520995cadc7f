"""Moving pending timeouts from one place to another: durable, resumable, each in one place.

The state machine and its ports; nothing here knows a database or a broker. A run is a plan
of batches in a ledger; each process that reaches source, target and ledger may move the next batch.
"""

from timeoutmgr.migration.loops import Participants
from timeoutmgr.migration.ports import MigrationLedger, MigrationPlaces, Source, Target
from timeoutmgr.migration.run import Preview, Report, begin, preview, report
from timeoutmgr.migration.runs import (
    Batch,
    BatchState,
    Delivered,
    Item,
    KeyRange,
    MigrationRun,
    MigrationRunState,
    Problem,
    Survey,
    Terms,
    Window,
)

__all__ = [
    "Batch",
    "BatchState",
    "Delivered",
    "Item",
    "KeyRange",
    "MigrationLedger",
    "MigrationPlaces",
    "MigrationRun",
    "MigrationRunState",
    "Participants",
    "Preview",
    "Problem",
    "Report",
    "Source",
    "Survey",
    "Target",
    "Terms",
    "Window",
    "begin",
    "preview",
    "report",
]
