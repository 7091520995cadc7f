"""Moving pending timeouts from one place to another: durable, resumable, each in one place.

The state machine and its ports; nothing here knows a database, a broker or Spark. A run is a plan
of batches in a ledger; each process that reaches source, target and ledger may move the next batch.
"""

from timeoutmgr.migration.loops import Participants
from timeoutmgr.migration.plan import Preview, begin, preview
from timeoutmgr.migration.ports import MigrationLedger, MigrationPlaces, Source, Target
from timeoutmgr.migration.report import Report, report
from timeoutmgr.migration.runs import (
    Batch,
    Delivered,
    Item,
    KeyRange,
    MigrationRun,
    Problem,
    Survey,
    Terms,
)
from timeoutmgr.migration.states import BatchState, MigrationRunState
from timeoutmgr.migration.window import Window

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
