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

    Where this process has one already, that is lent as it is, and not stopped.

    Raises PipelineUnavailable where Spark, Java or the server is missing.
    """
    with bare_session(options or SessionOptions()) as spark:
        register(spark)
        yield spark


def register(spark: "SparkSession") -> None:
    """Make ``spark.read.format("timeouts")`` and the like work in *spark*; twice is fine.

    Each session of a process is registered by itself. Filters of queries are pushed down to the
    store if *spark* allows it, as sessions of ours do.

    Spark asks the session that is active in this thread whether the name is taken. If another
    session of the process is active, and knows the source, Spark would refuse the name.
    """
    from timeoutmgr.pipeline.source import FilteringDataSource, TimeoutsDataSource

    pushes = spark.conf.get(PUSHDOWN, "false") == "true"
    with _active(spark):
        spark.dataSource.register(FilteringDataSource if pushes else TimeoutsDataSource)


@contextmanager
def _active(spark: "SparkSession") -> Iterator[None]:
    """Have *spark* be the active session of this thread meanwhile."""
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
