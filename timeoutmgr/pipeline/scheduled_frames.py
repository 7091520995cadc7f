"""``schedule`` for a program's own data frame, with its own column names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.pipeline.jobs.schedule import ScheduleReport
from timeoutmgr.pipeline.jobs.schedule import schedule as run
from timeoutmgr.pipeline.options import ScheduleOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def schedule(
    spark: "SparkSession",
    frame: "DataFrame",
    store: str,
    *,
    mapping: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> ScheduleReport:
    """Store the rows of *frame* as timeouts, each once; a repeat stores the missing rows.

    *mapping* has the names of columns in *frame*: ``{"due": "send_at"}``. *options* are fields of
    ``ScheduleOptions``, at least endpoint and dataset. Without ``run_id`` each call is a new run;
    then rows without a ``key`` are the same timeouts only if their contents are equal.
    """
    given = ScheduleOptions(store=store, columns=mapping or {}, **options)
    return run(spark, given, frame=frame, clock=clock or SystemClock())
