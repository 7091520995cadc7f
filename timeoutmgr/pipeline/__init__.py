"""The data pipeline: stored timeouts and their history as Spark data frames, and the jobs on them.

Needs the extra: ``pip install 'timeoutmgr[spark]'``. Nothing else of timeoutmgr imports it, and
only what runs on Spark imports pyspark.

::

    with spark_session() as spark, snapshot("main") as moment:
        pending = moment.read(spark, "pending", columns=["destination", "due"])
"""

from timeoutmgr.pipeline.errors import (
    ArchiveDiffers,
    ContentDiffers,
    PipelineUnavailable,
    RunInTheWay,
    SnapshotGone,
    TooManyRejects,
    WrongColumns,
)
from timeoutmgr.pipeline.session import SessionOptions, require_spark, spark_session  # isort: split

require_spark()

from timeoutmgr.pipeline.frames import read_timeouts, register, write_timeouts
from timeoutmgr.pipeline.snapshots import Snapshot, snapshot

__all__ = [
    "ArchiveDiffers",
    "ContentDiffers",
    "PipelineUnavailable",
    "RunInTheWay",
    "SessionOptions",
    "Snapshot",
    "SnapshotGone",
    "TooManyRejects",
    "WrongColumns",
    "read_timeouts",
    "register",
    "snapshot",
    "spark_session",
    "write_timeouts",
]
