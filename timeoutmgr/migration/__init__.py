"""Move pending timeouts to another place: durably, resumably, and each in one place only.

This package has the state machine and its ports, without any database or broker. A run is a plan of
batches in a ledger; any process that reaches source, target and ledger may move the next batch.
"""

from timeoutmgr.migration.loops import Participants as Participants
from timeoutmgr.migration.ports import MigrationLedger as MigrationLedger
from timeoutmgr.migration.ports import MigrationPlaces as MigrationPlaces
from timeoutmgr.migration.ports import Source as Source
from timeoutmgr.migration.ports import Target as Target
from timeoutmgr.migration.run import Preview as Preview
from timeoutmgr.migration.run import Report as Report
from timeoutmgr.migration.run import begin as begin
from timeoutmgr.migration.run import preview as preview
from timeoutmgr.migration.run import report as report
from timeoutmgr.migration.runs import Batch as Batch
from timeoutmgr.migration.runs import BatchState as BatchState
from timeoutmgr.migration.runs import Delivered as Delivered
from timeoutmgr.migration.runs import Item as Item
from timeoutmgr.migration.runs import KeyRange as KeyRange
from timeoutmgr.migration.runs import MigrationRun as MigrationRun
from timeoutmgr.migration.runs import MigrationRunState as MigrationRunState
from timeoutmgr.migration.runs import Problem as Problem
from timeoutmgr.migration.runs import Survey as Survey
from timeoutmgr.migration.runs import Terms as Terms
from timeoutmgr.migration.runs import Window as Window
