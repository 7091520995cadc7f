from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import py4j
import pyspark
import pytest
from pyspark.errors import utils as errors
from pyspark.sql import functions as f

from tests.pipeline.spark.conftest import QUICK_START
from timeoutmgr.contracts.reports import Level
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline import read_timeouts, register
from timeoutmgr.pipeline.doctor import examine
from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.registration import spark_session
from timeoutmgr.pipeline.spark.java import find_java
from timeoutmgr.pipeline.spark.session import READ_BY, SessionOptions, settings_of
from timeoutmgr.pipeline.spark.startup import held_back
from timeoutmgr.pipeline.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SOCKET = "spark.python.unix.domain.socket"


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


def test_workers_import_the_same_files_as_their_driver(spark: SparkSession) -> None:
    def imported(_number: int) -> list[str]:
        return [str(sys.modules[name].__file__) for name in ("pyspark", "py4j")]

    found = spark.range(1).select(f.udf(imported, "ARRAY<STRING>", useArrow=False)("id")).first()

    assert found is not None
    # No archive has files in it: Python keeps no compiled code of an archive.
    assert [Path(name).resolve() for name in found[0]] == [
        Path(str(one.__file__)).resolve(strict=True) for one in (pyspark, py4j)
    ]


def test_no_column_is_asked_where_in_the_source_it_was_named(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(_depth: int) -> str:
        raise AssertionError("each time, this takes longer than to make the column")

    # As in a process that has named no column yet, with the settings that the session has.
    monkeypatch.setattr(errors, "_enable_debugging_cache", None)
    monkeypatch.setattr(errors, "_capture_call_site", asked)

    assert spark.range(1).select((f.col("id") + 1).alias("next")).first() == (1,)


def test_a_session_that_is_there_is_lent_and_not_stopped(spark: SparkSession) -> None:
    with spark_session() as lent:
        assert lent.range(1).count() == 1

    assert spark.range(1).count() == 1


@pytest.fixture
def strange_python(spark: SparkSession) -> Iterator[None]:
    """To the workers, their driver is another Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonVer", "2.7")
        yield
    register(spark)


@pytest.mark.usefixtures("strange_python")
def test_the_doctor_tells_why_workers_fail_beside_all_else(sqlite: Store) -> None:
    found = {one.check: one for one in examine(SessionOptions(), sqlite.name)}

    assert {"pyspark", "pyarrow", "room", "java", "spark", "workers", "store"} <= found.keys()
    assert found["spark"].level is Level.OK
    for check in ("workers", "store"):
        assert found[check].level is Level.FAIL
        assert "Python in worker has different version" in found[check].text
        assert "Traceback" not in found[check].text
    assert "spark.pyspark.python" in found["workers"].remedy


SUBMITTED = """
from timeoutmgr.pipeline import spark_session

with spark_session() as spark:
    context = spark.sparkContext
    print("runs at", context.master, context.appName, spark.conf.get("spark.sql.session.timeZone"))
    print("workers answer", context.parallelize(range(3), 1).map(int).sum())
"""


def test_settings_of_spark_submit_count(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SUBMITTED)
    submit = Path(str(pyspark.__file__)).parent / "bin" / "spark-submit"
    given = ("--master", "local[1]", "--name", "ours", "--conf", "spark.ui.enabled=false")
    environ = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAVA_TOOL_OPTIONS": " ".join(QUICK_START),  # it is a short job
    }

    ended = subprocess.run(
        [submit, *given, script], env=environ, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert "runs at local[1] ours UTC" in ended.stdout
    assert "workers answer 3" in ended.stdout


@pytest.mark.parametrize(
    ("options", "master"),
    [
        ({}, "local[*,3]"),
        ({"master": "yarn"}, "yarn"),
        ({"configuration": {"spark.master": "spark://host:7077"}}, "spark://host:7077"),
        ({"master": "yarn", "configuration": {"spark.master": "local[1]"}}, "yarn"),
        ({"remote": "sc://host"}, "sc://host"),
    ],
)
def test_a_master_is_set_only_where_none_was(options: dict[str, Any], master: str) -> None:
    made = SessionOptions(**options)

    assert made.runs_at == master
    assert made.is_local == master.startswith("local")


def test_local_runs_listen_on_the_loopback_alone(tmp_path: Path) -> None:
    local = settings_of(SessionOptions(local_dir=tmp_path), tmp_path / "scratch")
    cluster = settings_of(SessionOptions(master="spark://host:7077"), tmp_path)

    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.ui.enabled"] == "false"
    assert local["spark.local.dir"] == str(tmp_path)
    assert local["spark.sql.warehouse.dir"].startswith(str(tmp_path / "scratch"))
    assert "spark.driver.bindAddress" not in cluster
    assert settings_of(SessionOptions(configuration={"a": "b"}), tmp_path)["a"] == "b"


def test_workers_send_rows_through_a_socket_in_a_folder_of_the_run(spark: SparkSession) -> None:
    def kinds(_id: int) -> list[str]:
        """Return the kinds of the sockets that a worker has open."""
        opened = [link for link in Path("/proc/self/fd").iterdir() if link.is_socket()]
        found = [socket.socket(fileno=os.dup(int(link.name))) for link in opened]
        return sorted({one.family.name for one in found})

    seen = spark.range(1).select(f.udf(kinds, "ARRAY<STRING>", useArrow=False)("id")).first()

    assert seen is not None
    assert seen[0] == ["AF_UNIX"]
    assert Path(str(spark.conf.get(f"{SOCKET}.dir"))).stat().st_mode & 0o077 == 0


def test_a_folder_whose_name_is_too_long_for_a_socket_has_none(tmp_path: Path) -> None:
    here, cluster = SessionOptions(), SessionOptions(master="spark://host:7077")

    assert settings_of(here, Path("/tmp/scratch"))[f"{SOCKET}.dir"] == "/tmp/scratch"
    assert f"{SOCKET}.enabled" not in settings_of(here, tmp_path / ("long" * 20))
    assert f"{SOCKET}.enabled" not in settings_of(cluster, Path("/tmp/scratch"))


def test_workers_that_read_and_workers_that_compute_are_forked_from_one_process(
    spark: SparkSession, sqlite: Store
) -> None:
    read_timeouts(spark, sqlite).collect()
    spark.range(1).select(f.udf(lambda _id: 1, "INT", useArrow=False)("id")).collect()

    jvm: Any = spark.sparkContext._jvm
    java = jvm.java.lang.ProcessHandle.current().pid()
    forked_from = [name for name in commands_below(java) if "\0pyspark.worker\0" in name]
    assert len(forked_from) == 1


def commands_below(parent: int) -> Iterator[str]:
    """Yield the command line of each child of a process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if f"PPid:\t{parent}\n" in (folder / "status").read_text():
                yield (folder / "cmdline").read_text()


def test_a_cluster_cuts_shuffles_as_it_is_used_to(tmp_path: Path) -> None:
    names = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.advisoryPartitionSizeInBytes")
    more = {name: "7" for name in names}

    here = settings_of(SessionOptions(), tmp_path)
    cluster = settings_of(SessionOptions(master="spark://host:7077"), tmp_path)
    asked = settings_of(SessionOptions(configuration=more), tmp_path)
    by_option = settings_of(SessionOptions(master="spark://host:7077", partitions=5), tmp_path)

    assert (by_option[names[0]], by_option[READ_BY]) == ("5", "5")
    assert READ_BY not in here
    assert {here[name] for name in names} == {"32", "16m"}
    assert not set(names) & set(cluster)
    assert {asked[name] for name in names} == {"7"}


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


def test_held_back_output_is_shown_on_failure(capfd: pytest.CaptureFixture[str]) -> None:
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
