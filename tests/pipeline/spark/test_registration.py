"""Several Spark sessions of one process, each of which registers the data source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession as ActiveSession

from tests.pipeline.rows import batch, row
from timeoutmgr.pipeline import register
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.writers.loader import Loader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def second(spark: SparkSession) -> SparkSession:
    """Another session beside *spark*, which stays the active session of the thread."""
    made = spark.newSession()
    made.conf.set("spark.sql.session.timeZone", "UTC")
    return made


def test_a_second_session_of_a_process_is_registered_too(
    spark: SparkSession, second: SparkSession, sqlite: Store
) -> None:
    register(spark)

    register(second)
    register(second)
    register(spark)

    for session in (spark, second):
        frame = session.read.format("timeouts").option("store", sqlite.name).load()
        assert frame.count() == 0


def test_the_active_session_stays_active(spark: SparkSession, second: SparkSession) -> None:
    before = ActiveSession.active()

    register(second)

    assert ActiveSession.active() is before


def test_an_active_session_is_put_back_after_a_refusal(
    spark: SparkSession, second: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timeoutmgr.pipeline.source import TimeoutsDataSource

    monkeypatch.setattr(TimeoutsDataSource, "name", classmethod(lambda _cls: "parquet"))

    with pytest.raises(AnalysisException, match="DATA_SOURCE_ALREADY_EXISTS"):
        register(second)

    jvm_sessions = type(spark)._get_j_spark_session_class(spark._jvm)
    assert jvm_sessions.getActiveSession().get().equals(spark._jsparkSession)


def test_a_query_in_a_session_of_ours_reads_only_the_rows_that_it_filters(
    spark: SparkSession, sqlite: Store
) -> None:
    Loader(sqlite).load([batch([row(1), row(2, destination="mail")])])
    rows = spark.read.format("timeouts").option("store", sqlite.name).load()

    mail = rows.where("destination = 'mail'").select("message_id", "body")

    assert mail.toArrow()["message_id"].to_pylist() == ["m2"]
    jvm: Any = spark._jvm
    formatted = jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    assert "EqualTo(destination,mail)" in mail._jdf.queryExecution().explainString(formatted)
