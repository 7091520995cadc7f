from __future__ import annotations

import gc
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.quiet import held_back
from timeoutmgr.pipeline.session import SessionOptions, settings_of, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_times_are_utc_and_workers_run_this_python(spark: SparkSession) -> None:
    instant = datetime(2030, 3, 31, 1, 30, tzinfo=UTC)
    frame = spark.createDataFrame([(instant.isoformat(),)], "text STRING")
    python = f.udf(lambda _text: sys.executable, useArrow=False)

    found = frame.select(
        f.col("text").cast("timestamp").alias("at"),
        f.date_format(f.col("text").cast("timestamp"), "HH:mm").alias("shown"),
        python("text").alias("python"),
    ).toArrow()

    assert found.to_pylist() == [{"at": instant, "shown": "01:30", "python": sys.executable}]


def test_workers_begin_with_what_they_need_and_never_look_through_it_for_garbage(
    spark: SparkSession,
) -> None:
    def look(_number: int) -> str:
        return f"{'timeoutmgr.pipeline.source' in sys.modules} {gc.get_freeze_count() > 10_000}"

    found = spark.range(1).select(f.udf(look, useArrow=False)("id")).collect()

    assert found[0][0] == "True True"


def test_a_session_that_is_there_is_lent_and_not_stopped(spark: SparkSession) -> None:
    with spark_session() as lent:
        assert lent.range(1).count() == 1

    assert spark.range(1).count() == 1


def test_local_runs_listen_on_the_loopback_alone(tmp_path: Path) -> None:
    local = settings_of(SessionOptions(local_dir=tmp_path), tmp_path / "scratch")
    cluster = settings_of(SessionOptions(master="spark://host:7077"), tmp_path)

    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.ui.enabled"] == "false"
    assert local["spark.local.dir"] == str(tmp_path)
    assert local["spark.sql.warehouse.dir"].startswith(str(tmp_path / "scratch"))
    assert "spark.driver.bindAddress" not in cluster
    assert settings_of(SessionOptions(configuration={"a": "b"}), tmp_path)["a"] == "b"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"remote": "localhost:15002"}, "sc://host:port"),
        ({"partitions": 0}, "must be positive"),
        ({"local_dir": Path("/no/such/folder")}, "a folder that exists"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        SessionOptions(**options)


def test_a_java_that_is_not_there_ends_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
    before = dict(os.environ)

    with (
        pytest.raises(PipelineUnavailable, match="does not run"),
        spark_session(SessionOptions(java_home=tmp_path)),
    ):
        pass

    assert dict(os.environ) == before


def test_what_is_held_back_is_told_when_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with held_back():
            os.write(2, b"the reason\n")
            raise ValueError("wrong")

    with held_back():
        os.write(2, b"noise\n")
    quiet = capfd.readouterr().err
    with pytest.raises(ValueError, match="wrong"):
        fail()

    assert quiet == ""
    assert capfd.readouterr().err == "the reason\n"
