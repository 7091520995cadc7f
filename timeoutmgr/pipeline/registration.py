"""Registration of the data sources in Spark sessions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from timeoutmgr.pipeline.spark.session import PUSHDOWN, SessionOptions, bare_session, is_inside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSIONS: Final = "org.apache.spark.sql.classic.SparkSession"


@contextmanager
def spark_session(options: SessionOptions | None = None) -> Iterator["SparkSession"]:
    """Yield a session with the data source ``timeouts`` registered; stop it at the end.

    If this process already has a session, yield that session as it is, and do not stop it.

    Raises PipelineUnavailable if Spark, Java or the server is missing.
    """
    with bare_session(options or SessionOptions()) as spark:
        register(spark)
        yield spark


def register(spark: "SparkSession") -> None:
    """Register the data source ``timeouts`` in *spark*, for reads and writes; idempotent.

    Each session of a process needs its own registration. Filters of queries are pushed down to the
    store if *spark* allows it, as sessions from ``spark_session`` do.

    Spark checks the name in the session that is active in this thread. If another session of the
    process were active, and knew the source, Spark would refuse the name.
    """
    from timeoutmgr.pipeline.source import FilteringDataSource, TimeoutsDataSource

    pushes = spark.conf.get(PUSHDOWN, "false") == "true"
    with _active(spark):
        spark.dataSource.register(FilteringDataSource if pushes else TimeoutsDataSource)


@contextmanager
def _active(spark: "SparkSession") -> Iterator[None]:
    """Make *spark* the active session of this thread in the block."""
    if not is_inside(spark):  # its server has a session for each client
        yield
        return
    sessions = getattr(spark.sparkContext._jvm, _SESSIONS)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
