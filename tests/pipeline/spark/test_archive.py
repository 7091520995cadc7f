from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f
from sqlalchemy import select, update

from tests.pipeline.archives import publish, rows_of, write_events
from tests.pipeline.rows import count
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import from_micros, to_micros
from timeoutmgr.pipeline.errors import ArchiveMismatch, RunConflict
from timeoutmgr.pipeline.jobs.archive import ArchiveReport, archive
from timeoutmgr.pipeline.jobs.archived import Archive
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState, exclusive_lock
from timeoutmgr.pipeline.options import ArchiveOptions
from timeoutmgr.pipeline.stores import Store, identity
from timeoutmgr.pipeline.views import HISTORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 60
STAGES = ["writing", "verifying", "publishing", "published", "removing batch 0", "removing batch 1"]


class Killed(Exception):
    """The error that ends the run like a crash."""


@pytest.fixture(params=["postgres", "sqlite"])
def filled(request: pytest.FixtureRequest, store_of: Any) -> Store:
    """A store with 60 old events, of two endpoints and three days, and a new event."""
    store: Store = store_of(request.param)
    write_events(store, range(ROWS))
    write_events(store, [999], at=to_micros(datetime.now(UTC)))
    return store


def dying_at(stage: str) -> Callable[[str], None]:
    def dies(text: str) -> None:
        if text == stage:
            raise Killed

    return dies


def ids(store: Store) -> set[str]:
    with store.database.read() as connection:
        return set(connection.execute(select(store.tables.history.c.id)).scalars())


def run(spark: SparkSession, store: Store, to: Path, **options: Any) -> ArchiveReport:
    progress = options.pop("progress", lambda _text: None)
    given: dict[str, Any] = {
        "store": store.name,
        "to": to,
        "older_than": timedelta(days=30),
        "batch": 25,
    }
    made = ArchiveOptions(**(given | options))
    return archive(spark, made, clock=SystemClock(), progress=progress)


def archived(folder: Path) -> list[str]:
    """Return the ids in the files that count, without Spark: many a test asks."""
    files = [folder / name for one in Archive(folder).manifests() for name in one.files]
    tables = [pq.ParquetFile(one).read(["id"]) for one in files]
    return sorted(id_ for table in tables for id_ in table["id"].to_pylist())


@pytest.mark.usefixtures("compiled")
def test_old_history_is_archived_by_endpoint_and_day_and_leaves_the_store(
    spark: SparkSession, filled: Store, tmp_path: Path
) -> None:
    report = run(spark, filled, tmp_path / "a")
    again = run(spark, filled, tmp_path / "a")

    files = list((tmp_path / "a").rglob("*.parquet"))
    lake = Archive(tmp_path / "a")
    read = lake.read(spark, lake.manifests(), ["id"]).collect()
    assert (report.rows, report.removed, report.files) == (ROWS, ROWS, 6)
    assert (again.rows, again.removed) == (0, 0)
    assert ids(filled) == {"id999"}
    assert archived(tmp_path / "a") == sorted(f"id{n}" for n in range(ROWS))
    assert sorted(row["id"] for row in read) == archived(tmp_path / "a")
    assert len({(one.parent.parent.name, one.parent.name) for one in files}) == len(files) == 6
    assert sum(pq.read_metadata(one).num_rows for one in files) == ROWS


@pytest.mark.parametrize("stage", STAGES)
def test_the_next_run_repairs_a_run_that_died_at_any_point(
    spark: SparkSession, sqlite: Store, tmp_path: Path, stage: str
) -> None:
    write_events(sqlite, range(ROWS))

    with pytest.raises(Killed):
        run(spark, sqlite, tmp_path, progress=dying_at(stage), run_id="dead")
    in_both = count(sqlite, "history") + len(archived(tmp_path))
    seen = [*archived(tmp_path), *ids(sqlite)]
    report = run(spark, sqlite, tmp_path)

    counted = STAGES.index(stage) >= STAGES.index("published")
    assert set(seen) == {f"id{n}" for n in range(ROWS)}  # no row is missing at any moment
    assert in_both >= ROWS
    assert report.resumed == (("dead",) if counted else ())
    assert report.swept == (() if counted else ("dead",))
    assert ids(sqlite) == set()
    assert archived(tmp_path) == sorted(f"id{n}" for n in range(ROWS))
    assert JobLedger(sqlite).runs("archive", JobRunState.RUNNING) == []


@pytest.mark.parametrize("stage", ["published", "never"])
def test_a_run_that_counts_is_not_written_over_by_another_of_its_id(
    spark: SparkSession, sqlite: Store, tmp_path: Path, stage: str
) -> None:
    write_events(sqlite, range(ROWS))
    with suppress(Killed):
        run(spark, sqlite, tmp_path, progress=dying_at(stage), run_id="nightly")

    with pytest.raises(RunConflict, match="give another run id"):
        run(spark, sqlite, tmp_path, run_id="nightly")

    assert ids(sqlite) == set()
    assert archived(tmp_path) == sorted(f"id{n}" for n in range(ROWS))


def test_a_run_that_died_is_written_anew_under_its_id(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    write_events(sqlite, range(ROWS))
    with pytest.raises(Killed):
        run(spark, sqlite, tmp_path, progress=dying_at("verifying"), run_id="nightly")

    report = run(spark, sqlite, tmp_path, run_id="nightly")

    assert (report.rows, report.removed) == (ROWS, ROWS)
    assert archived(tmp_path) == sorted(f"id{n}" for n in range(ROWS))


def test_rows_kept_in_the_store_are_not_archived_twice(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    write_events(sqlite, range(10))

    first = run(spark, sqlite, tmp_path, purge=False)
    write_events(sqlite, range(10, 15))
    second = run(spark, sqlite, tmp_path, purge=False)

    assert (first.rows, first.removed, second.rows) == (10, 0, 5)
    assert count(sqlite, "history") == 15
    assert len(archived(tmp_path)) == 15


def test_a_row_with_the_sequence_of_an_archived_row_is_not_in_the_archive(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    write_events(sqlite, range(4))
    lake = Archive(tmp_path)
    publish(lake, "kept", identity(sqlite), rows_of(sqlite))
    same = [(sequence, id_, from_micros(at)) for sequence, id_, at in rows_of(sqlite)]
    (first, _, at), (second, id_, _) = same[:2]
    again = [(first, "another", at), (second, id_, at + timedelta(days=60))]
    rows = spark.createDataFrame([*same, *again], "sequence BIGINT, id STRING, at TIMESTAMP")

    left = lake.and_not_in_it(spark, rows, lake.manifests())
    by_time = lake.and_not_in_it(spark, rows.drop("id"), lake.manifests())

    found = left.select("sequence", "id").collect()
    assert sorted((row[0], row[1]) for row in found) == [(first, "another"), (second, id_)]
    assert [row["sequence"] for row in by_time.collect()] == [second]  # as lateness asks


def test_rows_to_keep_stay_though_their_run_died(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    write_events(sqlite, range(10))

    with pytest.raises(Killed):
        run(spark, sqlite, tmp_path, purge=False, progress=dying_at("published"))
    report = run(spark, sqlite, tmp_path, purge=False)

    assert (report.rows, report.removed) == (0, 0)
    assert count(sqlite, "history") == 10


def test_kept_rows_leave_the_store_with_the_first_run_that_keeps_nothing(
    spark: SparkSession, filled: Store, tmp_path: Path
) -> None:
    kept = run(spark, filled, tmp_path, purge=False, run_id="kept")
    with pytest.raises(Killed):
        run(spark, filled, tmp_path, progress=dying_at("removing batch 1"))
    half = len(ids(filled))
    report = run(spark, filled, tmp_path)
    again = run(spark, filled, tmp_path)

    assert (kept.rows, kept.removed) == (ROWS, 0)
    assert 1 < half < ROWS
    assert (report.rows, report.resumed) == (0, ("kept",))
    assert (again.removed, again.resumed) == (0, ())
    assert ids(filled) == {"id999"}
    assert archived(tmp_path) == sorted(f"id{n}" for n in range(ROWS))


def test_kept_rows_stay_while_they_are_younger_than_asked_for(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    write_events(sqlite, range(10), at=to_micros(datetime.now(UTC) - timedelta(days=40)))
    run(spark, sqlite, tmp_path, purge=False)

    report = run(spark, sqlite, tmp_path, older_than=timedelta(days=50))

    assert (report.rows, report.removed, report.resumed) == (0, 0, ())
    assert count(sqlite, "history") == 10


def test_all_that_a_manifest_counts_is_synced_before_it_counts(
    spark: SparkSession, sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_events(sqlite, range(10))
    synced: list[Path] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        assert path == tmp_path / "manifests" or not list(tmp_path.glob("manifests/*.json"))
        synced.append(path)
        sync(descriptor)

    # Only a power cut would show a missing sync.
    monkeypatch.setattr(os, "fsync", note)
    run(spark, sqlite, tmp_path)

    files = set(tmp_path.rglob("*.parquet"))
    assert files
    assert files | {one.parent for one in files} <= set(synced)


def test_two_runs_do_not_archive_one_store_at_once(
    spark: SparkSession, store_of: Any, tmp_path: Path
) -> None:
    for kind in ("sqlite", "postgres", "mysql"):
        store = store_of(kind)
        options = ArchiveOptions(store=store.name, to=tmp_path, older_than=timedelta(days=30))
        with (
            exclusive_lock(store, f"archive {identity(store)}"),
            pytest.raises(RunConflict, match="wait until it has ended"),
        ):
            archive(spark, options, clock=SystemClock())


def test_a_row_that_is_committed_late_is_not_removed_unseen(
    spark: SparkSession, postgres: Store, tmp_path: Path
) -> None:
    write_events(postgres, range(10))

    def late(text: str) -> None:
        if text == "verifying":  # the snapshot is over; its time is old
            write_events(postgres, [77])

    run(spark, postgres, tmp_path, progress=late)

    assert ids(postgres) == {"id77"}


def test_files_that_differ_from_the_read_rows_remove_nothing(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    write_events(sqlite, range(10))

    def loses_a_file(text: str) -> None:
        if text == "verifying":
            next(tmp_path.rglob("*.parquet")).unlink()

    with pytest.raises(ArchiveMismatch, match="nothing was removed"):
        run(spark, sqlite, tmp_path, progress=loses_a_file)

    assert count(sqlite, "history") == 10
    assert archived(tmp_path) == []


def test_an_altered_value_is_noticed(spark: SparkSession, sqlite: Store, tmp_path: Path) -> None:
    write_events(sqlite, range(10))
    history = sqlite.tables.history

    report = run(spark, sqlite, tmp_path, purge=False)
    before = Archive(tmp_path).manifests()[0].checksum
    with sqlite.database.begin() as connection:
        connection.execute(update(history).where(history.c.id == "id3").values(attempt=1))
    other = run(spark, sqlite, tmp_path / "other", purge=False)

    assert report.rows == other.rows == 10
    assert Archive(tmp_path / "other").manifests()[0].checksum != before


def test_the_checksum_is_the_sum_of_all_rows_digests(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    write_events(sqlite, range(ROWS))
    run(spark, sqlite, tmp_path)

    lake = Archive(tmp_path)
    digests = lake.read(spark, lake.manifests()).select(f.xxhash64(*HISTORY.names)).collect()

    assert lake.manifests()[0].checksum == str(sum(row[0] for row in digests))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"older_than": timedelta(seconds=59)}, "at least a minute"),
        ({"batch": 0}, "1 to 100000"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"store": "s", "to": Path(), "older_than": timedelta(days=1)}

    with pytest.raises(ConfigurationError, match=sentence):
        ArchiveOptions(**(given | options))
