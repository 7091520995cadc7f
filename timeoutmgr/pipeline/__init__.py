"""The data pipeline: stored timeouts and their history as Spark data frames, and the jobs on them.

Needs the extra: ``pip install 'timeoutmgr[spark]'``. Nothing else of timeoutmgr imports it, and
only what runs on Spark imports pyspark.

::

    with spark_session() as spark, snapshot("main") as moment:
        pending = moment.read(spark, "pending", columns=["destination", "due"])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.pipeline.errors import (
    ArchiveDiffers,
    ContentDiffers,
    PipelineUnavailable,
    RunInTheWay,
    SnapshotGone,
    TooManyRejects,
    WrongColumns,
)
from timeoutmgr.pipeline.session import SessionOptions, require_spark, spark_session

if TYPE_CHECKING:
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

_OF_SPARK: Final = {
    **dict.fromkeys(("read_timeouts", "register", "write_timeouts"), "frames"),
    **dict.fromkeys(("Snapshot", "snapshot"), "snapshots"),
}
"""Names that need the extra, and in which module they are: forecast does without."""


def __getattr__(name: str) -> Any:
    """Return a name that needs Spark; raise PipelineUnavailable where the extra is missing."""
    if name not in _OF_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_spark()
    return getattr(import_module(f"{__name__}.{_OF_SPARK[name]}"), name)
