from __future__ import annotations

import logging
from pathlib import Path

import py4j
import pyspark
import pytest

from timeoutmgr.pipeline.spark.startup import unpacked_home

INSTALLED = Path(pyspark.__file__).parent


def test_the_unpacked_home_has_the_installed_packages_under_the_names_of_the_archives(
    tmp_path: Path,
) -> None:
    home = unpacked_home(tmp_path)

    assert home is not None
    archives = {one.name: one.stem.split("-")[0] for one in INSTALLED.glob("python/lib/*.zip")}
    assert sorted(archives.values()) == ["py4j", "pyspark"]
    inside = {
        name: (home / "python" / "lib" / archive / name).resolve()
        for archive, name in archives.items()
    }
    assert inside == {"pyspark": INSTALLED, "py4j": Path(str(py4j.__file__)).parent}
    assert (home / "bin" / "spark-submit").samefile(INSTALLED / "bin" / "spark-submit")
    assert (home / "jars").samefile(INSTALLED / "jars")


def test_a_spark_of_another_layout_keeps_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "site" / "pyspark"
    (elsewhere / "jars").mkdir(parents=True)
    (elsewhere / "bin").mkdir()
    monkeypatch.setattr(pyspark, "__file__", str(elsewhere / "__init__.py"))

    assert unpacked_home(tmp_path) is None
    assert not (tmp_path / "spark").exists()


def test_spark_keeps_its_home_and_logs_it_if_a_folder_cannot_be_created(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spark").touch()

    with caplog.at_level(logging.INFO, "timeoutmgr.pipeline.spark.startup"):
        assert unpacked_home(tmp_path) is None

    assert "from Spark's archives" in caplog.text
