"""The data pipeline: stored timeouts and their history as Spark data frames, and jobs on them.

Needs the extra: ``pip install 'timeoutmgr[spark]'``. Of the other packages, only the command line
imports the pipeline; only modules that run on Spark import pyspark.

::

    with spark_session() as spark, snapshot("main") as moment:
        pending = moment.read(spark, "pending", columns=["destination", "due"])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.pipeline.errors import (
    ArchiveMismatch,
    ContentDiffers,
    PipelineUnavailable,
    RunConflict,
    SnapshotEnded,
    TooManyRejects,
    WrongColumns,
)
from timeoutmgr.pipeline.registration import register, spark_session
from timeoutmgr.pipeline.spark.session import SessionOptions, require_spark

if TYPE_CHECKING:
    from timeoutmgr.pipeline.frames import plan_change, read_timeouts, write_timeouts
    from timeoutmgr.pipeline.scheduled_frames import schedule
    from timeoutmgr.pipeline.snapshots import Snapshot, snapshot

__all__ = [
    "ArchiveMismatch",
    "ContentDiffers",
    "PipelineUnavailable",
    "RunConflict",
    "SessionOptions",
    "Snapshot",
    "SnapshotEnded",
    "TooManyRejects",
    "WrongColumns",
    "plan_change",
    "read_timeouts",
    "register",
    "schedule",
    "snapshot",
    "spark_session",
    "write_timeouts",
]

_OF_SPARK: Final = {
    **dict.fromkeys(("plan_change", "read_timeouts", "write_timeouts"), "frames"),
    **dict.fromkeys(("Snapshot", "snapshot"), "snapshots"),
    "schedule": "scheduled_frames",
}
"""Names that need the extra, with their modules: forecast needs none of them."""


def __getattr__(name: str) -> Any:
    """Return a name that needs Spark; raise PipelineUnavailable if the extra is missing."""
    if name not in _OF_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_spark()
    return getattr(import_module(f"{__name__}.{_OF_SPARK[name]}"), name)
