"""A job on few rows is told from a job on many before Spark starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.persistence.making import timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.pipeline import SessionOptions, volume
from timeoutmgr.pipeline.spark.session import settings_of
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.volume import FEW_BYTES, is_little


@pytest.fixture
def store(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with two timeouts, which have a row of history each."""
    with closing(SqlPersistence(sqlite_url, settings=SqlSettings(history="full"))) as persistence:
        persistence.install()
        persistence.timeouts("sales", SystemClock()).store_many([timeout("a"), timeout("b")])
    monkeypatch.setenv("TIMEOUTMGR_STORE_SALES", sqlite_url)
    opened = open_store("sales")
    with closing(opened.persistence):
        yield opened


def test_few_rows_in_each_table_are_little(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume, "FEW_ROWS", 2)
    assert is_little([store], [])

    monkeypatch.setattr(volume, "FEW_ROWS", 1)
    assert not is_little([store], [])


def test_a_history_alone_can_be_much(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.database.begin() as connection:
        connection.execute(store.tables.timeouts.delete())
    monkeypatch.setattr(volume, "FEW_ROWS", 1)

    assert not is_little([store], [])


@pytest.mark.parametrize("place", ["{}", "{}/rows.csv", "delta:{}"])
def test_files_of_few_bytes_are_little(place: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    with rows.open("wb") as file:
        file.truncate(FEW_BYTES)  # without a byte on the disk
    assert is_little([], [place.format(tmp_path)])

    with rows.open("ab") as file:
        file.truncate(FEW_BYTES + 1)
    assert not is_little([], [place.format(tmp_path)])


@pytest.mark.parametrize(
    "place", ["s3://lake/history", "table:lake.sent", "iceberg:a.b.c", "*.csv"]
)
def test_an_input_that_is_no_file_here_may_be_much(place: str) -> None:
    assert not is_little([], [place])


def test_files_that_another_process_removes_may_have_been_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(path: Path) -> int:
        path.unlink()
        return os.path.getsize(path)

    (tmp_path / "rows.csv").touch()
    monkeypatch.setattr(volume, "os", SimpleNamespace(path=SimpleNamespace(getsize=removed)))

    assert not is_little([], [str(tmp_path)])
    assert not is_little([], ["a" * 1_000])


def test_only_a_short_job_of_this_machine_is_compiled_quickly(tmp_path: Path) -> None:
    name = "spark.driver.defaultJavaOptions"

    assert "TieredStopAtLevel=1" in settings_of(SessionOptions(is_short=True), tmp_path)[name]
    assert name not in settings_of(SessionOptions(), tmp_path)
    assert name not in settings_of(SessionOptions(is_short=True, master="yarn"), tmp_path)
