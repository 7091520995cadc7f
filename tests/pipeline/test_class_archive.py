from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.spark.conftest import QUICK_START
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.spark.class_archive import ClassArchive, class_archive, kept_archive
from timeoutmgr.pipeline.spark.java import Java, find_java
from timeoutmgr.pipeline.spark.session import SessionOptions, settings_of

# A small program in Spark's jars: it writes the command line that starts the class which is named.
LAUNCHER = "org.apache.spark.launcher.Main"
JAVA = Java(Path("/jdk"), 17, "as asked for", "17.0.1 of one maker")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path)}


def kept(archive: ClassArchive) -> ClassArchive:
    archive.folder.mkdir(parents=True)
    archive.file.write_bytes(b"classes")
    return archive


def test_no_archive_is_used_before_one_was_made(environ: dict[str, str]) -> None:
    assert kept_archive(JAVA, environ) is None

    made = kept(class_archive(JAVA, environ))

    assert kept_archive(JAVA, environ) == made


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda java: replace(java, build="17.0.1 of another"), id="build"),
        pytest.param(lambda java: replace(java, home=Path("/other")), id="home"),
    ],
)
def test_another_java_gets_no_archive_of_this_one(
    environ: dict[str, str], other: Callable[[Java], Java]
) -> None:
    kept(class_archive(JAVA, environ))

    assert kept_archive(other(JAVA), environ) is None


def test_the_archive_is_given_to_java_before_the_flags_of_a_short_job(
    environ: dict[str, str], tmp_path: Path
) -> None:
    flags = kept(class_archive(JAVA, environ)).flags()
    settings = settings_of(SessionOptions(is_short=True), tmp_path, flags)

    given = settings["spark.driver.defaultJavaOptions"].split()
    assert given[: len(flags)] == flags
    assert given[len(flags) :] == ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    assert "spark.driver.defaultJavaOptions" not in settings_of(SessionOptions(), tmp_path)


def test_a_java_without_an_archive_of_its_own_classes_gets_one(
    environ: dict[str, str], tmp_path: Path
) -> None:
    # The Java of the wheel is linked without.
    archive = class_archive(find_java(environ={"PATH": ""}, cache=tmp_path / "java"), environ)

    archive.begin()

    assert archive.base.is_file()
    assert f"-XX:SharedArchiveFile={archive.base}" in archive.recording_flags()
    assert (archive.home / "jars").is_dir()


def test_an_archive_that_java_did_not_write_is_an_error(environ: dict[str, str]) -> None:
    with pytest.raises(PipelineUnavailable, match="Java 17 in /jdk wrote no class archive"):
        class_archive(JAVA, environ).end()


def test_the_archive_of_the_build_before_is_removed(environ: dict[str, str]) -> None:
    before = kept(class_archive(replace(JAVA, build="17.0.0"), environ))
    archive = class_archive(JAVA, environ)
    archive.folder.mkdir()
    archive.written.write_bytes(b"classes")

    archive.end()

    assert archive.is_there
    assert not before.is_there


def test_a_folder_that_an_option_of_java_cannot_name_is_refused_and_never_used() -> None:
    environ = {"XDG_CACHE_HOME": "/a folder"}

    with pytest.raises(ConfigurationError, match="no space, quote or colon in it: /a folder/"):
        class_archive(JAVA, environ)
    assert kept_archive(JAVA, environ) is None


def test_a_cache_that_cannot_be_written_is_refused_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder, for root either")

    with pytest.raises(PipelineUnavailable, match="set XDG_CACHE_HOME"):
        class_archive(JAVA, {"XDG_CACHE_HOME": str(tmp_path / "file")}).begin()


def test_classes_that_were_recorded_come_from_the_archive(environ: dict[str, str]) -> None:
    archive = class_archive(find_java(), environ)
    archive.begin()
    run_with(archive, archive.recording_flags())
    archive.end()

    loaded = run_with(archive, [*archive.flags(), "-Xlog:class+load:stdout"])

    lines = [line for line in loaded.splitlines() if f"{LAUNCHER} " in line]
    assert len(lines) == 1
    assert "source: shared objects file (top)" in lines[0]


def run_with(archive: ClassArchive, flags: list[str]) -> str:
    """Start a Java with the jars of Spark as a job does; return what it says."""
    java = archive.java.home / "bin" / "java"
    jars = f"{archive.home}/jars/*"
    ran = subprocess.run(
        [java, *flags, *QUICK_START, "-cp", jars, LAUNCHER, "org.apache.spark.deploy.SparkSubmit"],
        env={"SPARK_HOME": str(archive.home), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
