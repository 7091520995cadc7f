"""Moving pending timeouts from one place to another: durable, resumable, each in one place.

The state machine and its ports; nothing here knows a database, a broker or Spark. A run is a plan
of batches in a ledger; whoever can reach source, target and ledger may move the next batch.
"""

from timeoutmgr.migration.parts import Parts
from timeoutmgr.migration.ports import Ledger, MigrationPlaces, Source, Target
from timeoutmgr.migration.preparing import Preview, begin, preview
from timeoutmgr.migration.report import Report, report
from timeoutmgr.migration.running import abort, migrate
from timeoutmgr.migration.runs import Batch, Delivered, Item, Problem, Range, Run, Survey, Terms
from timeoutmgr.migration.states import BatchState, RunState
from timeoutmgr.migration.window import Window

__all__ = [
    "Batch",
    "BatchState",
    "Delivered",
    "Item",
    "Ledger",
    "MigrationPlaces",
    "Parts",
    "Preview",
    "Problem",
    "Range",
    "Report",
    "Run",
    "RunState",
    "Source",
    "Survey",
    "Target",
    "Terms",
    "Window",
    "abort",
    "begin",
    "migrate",
    "preview",
    "report",
]
