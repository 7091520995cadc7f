"""The owner of a run, and the rows that it removes from its store; without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from sqlalchemy import delete, text

from tests.pipeline.archives import DAY, publish, rows_of, write_events
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.archive import KIND, ArchiveRuns, RemovedRows, archive
from timeoutmgr.pipeline.jobs.archived import Archive
from timeoutmgr.pipeline.jobs.run_context import silent
from timeoutmgr.pipeline.jobs.stream import StreamRuns
from timeoutmgr.pipeline.ledger import JobLedger, JobRun, JobRunState
from timeoutmgr.pipeline.options import ArchiveOptions
from timeoutmgr.pipeline.stores import Store, identity
from timeoutmgr.pipeline.views import HISTORY
from timeoutmgr.pipeline.writers.archive_files import ArchiveFilesWriter, WrittenFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NIGHT = "2024-03-01"
NOW = to_micros(DAY + timedelta(days=99))
NO_SPARK = cast("SparkSession", None)


def of(store: Store, folder: Path) -> ArchiveRuns:
    return ArchiveRuns(store, Archive(folder), JobLedger(store))


@pytest.fixture
def east(store_of: Callable[[str], Store], tmp_path: Path) -> ArchiveRuns:
    """The runs of a store with four events."""
    store = store_of("sqlite")
    write_events(store, range(4))
    return of(store, tmp_path / "lake")


@pytest.fixture
def west(store_of: Callable[[str], Store], tmp_path: Path) -> ArchiveRuns:
    """The runs of another store, with six events, in the same folder."""
    store = store_of("sqlite")
    write_events(store, range(10, 16))
    return of(store, tmp_path / "lake")


def begun_before(
    runs: ArchiveRuns, state: JobRunState = JobRunState.RUNNING, **terms: Any
) -> JobRun:
    """Return the run NIGHT with the ledger rows of a version without claims."""
    given = {"to": str(runs.target.folder), "batch": 3, "purge": True} | terms
    runs.ledger.begin(NIGHT, KIND, given)
    runs.ledger.move(NIGHT, state)
    run = runs.ledger.find(NIGHT)
    assert run is not None
    return run


def publish_all(runs: ArchiveRuns) -> None:
    """Have all rows of the store count, as rows that the run NIGHT wrote."""
    publish(runs.target, NIGHT, identity(runs.store), rows_of(runs.store))


def of_two_days() -> pa.RecordBatch:
    """Return an event of each of two days, as a task gets them to write."""
    days = pa.array([DAY, DAY + timedelta(days=1)], pa.timestamp("us", tz="UTC"))
    columns = {name: pa.nulls(2, HISTORY.field(name).type) for name in HISTORY.names}
    columns |= {"sequence": pa.array([1, 2]), "at": days, "event_date": days.cast(pa.date32())}
    return pa.RecordBatch.from_pydict(columns | {"endpoint": pa.array(["sales"] * 2)})


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("state", [JobRunState.RUNNING, JobRunState.PUBLISHED])
def test_a_dead_run_is_not_confused_with_a_run_of_its_id_in_another_store(
    east: ArchiveRuns, west: ArchiveRuns, state: JobRunState
) -> None:
    begun_before(west, state)
    publish_all(east)

    swept = west.sweep(but="next")

    assert swept == [NIGHT]
    assert west.left_in_store(NOW) == []
    assert len(rows_of(west.store)) == 6
    assert list(west.target.rows(NIGHT)) == rows_of(east.store)  # its files are left alone
    assert west.ledger.runs(KIND, JobRunState.ABORTED)[0].run_id == NIGHT


def test_files_that_another_store_writes_under_an_id_are_not_swept(
    east: ArchiveRuns, west: ArchiveRuns
) -> None:
    begun_before(west)
    east.begin(NIGHT, batch=3, purge=True)
    data = east.target.data_of(NIGHT)
    data.mkdir(parents=True)

    swept = west.sweep(but="next")

    assert swept == [NIGHT]
    assert data.is_dir()


@pytest.mark.parametrize("is_claimed", [True, False])
def test_kept_rows_are_not_removed_for_another_stores_run_of_that_id(
    east: ArchiveRuns, west: ArchiveRuns, is_claimed: bool
) -> None:
    begun_before(west, JobRunState.COMPLETED, purge=False)
    if is_claimed:
        east.begin(NIGHT, batch=3, purge=True)
    publish_all(east)

    assert west.left_in_store(NOW) == []


@pytest.mark.parametrize("far", ["writing", "written before there were claims", "published"])
def test_an_id_that_another_store_took_is_refused_before_anything_is_done(
    east: ArchiveRuns, west: ArchiveRuns, far: str
) -> None:
    west.begin("earlier", batch=3, purge=True)
    publish(west.target, "earlier", identity(west.store), rows_of(west.store))
    if far == "writing":
        east.begin(NIGHT, batch=3, purge=True)
    if far == "written before there were claims":
        east.target.data_of(NIGHT).mkdir(parents=True)
    if far == "published":
        publish_all(east)
    before = tree(east.target.folder)
    options = ArchiveOptions(
        store=west.store.name,
        to=west.target.folder,
        older_than=timedelta(days=30),
        run_id=NIGHT,
    )

    with pytest.raises(RunConflict, match=f"such as {NIGHT}-NAME"):
        archive(NO_SPARK, options, clock=SystemClock())

    assert tree(east.target.folder) == before
    assert len(rows_of(west.store)) == 6
    assert west.ledger.find(NIGHT) is None
    assert west.ledger.runs(KIND, JobRunState.RUNNING)[0].run_id == "earlier"


def test_one_of_two_stores_that_claim_a_run_id_at_once_gets_the_id(
    east: ArchiveRuns, west: ArchiveRuns
) -> None:
    for runs in (east, west):
        runs.require_own(NIGHT)
    run = east.begin(NIGHT, batch=3, purge=True)

    with pytest.raises(RunConflict, match="is taken in the archive"):
        west.begin(NIGHT, batch=3, purge=True)

    assert west.ledger.runs(KIND, JobRunState.ABORTED)[0].run_id == NIGHT
    assert east.begin(NIGHT, batch=3, purge=True) == run
    east.require_own(NIGHT)


def test_a_run_older_than_claims_is_repaired(east: ArchiveRuns) -> None:
    begun_before(east)
    named = f"{east.store.database.describe()} {east.store.tables.history.fullname}"
    publish(east.target, NIGHT, named, rows_of(east.store))

    swept = east.sweep(but="next")
    (left,) = east.left_in_store(None)
    removed = east.remove(left, silent)

    assert (swept, removed, rows_of(east.store)) == ([], RemovedRows(4), [])
    assert east.target.purged() == {NIGHT}


def test_a_run_that_was_swept_and_begun_anew_is_repaired_again(east: ArchiveRuns) -> None:
    east.begin(NIGHT, batch=3, purge=True)
    first = east.sweep(but="next")
    run = east.begin(NIGHT, batch=3, purge=True)
    publish_all(east)  # the run dies before the ledger is updated

    second = east.sweep(but="next")

    assert (first, second) == ([NIGHT], [])
    assert [one.run_id for one in east.left_in_store(None)] == [run.run_id]


def test_files_of_a_write_that_failed_at_their_commit_are_swept(
    east: ArchiveRuns,
) -> None:
    east.begin(NIGHT, batch=3, purge=True)
    data = east.target.data_of(NIGHT)
    writer = ArchiveFilesWriter(data)
    written = writer.write(iter([of_two_days()]))
    assert isinstance(written, WrittenFiles)
    Path(written.files[-1]).unlink()
    with pytest.raises(FileNotFoundError):
        writer.commit([written])
    assert len(east.target.files_of(NIGHT)) == 1  # half of the files are renamed

    swept = east.sweep(but="next")

    assert (swept, data.exists(), len(rows_of(east.store))) == ([NIGHT], False, 4)
    assert east.target.manifests() == []


def test_while_the_archive_is_away_no_run_is_given_up(east: ArchiveRuns, tmp_path: Path) -> None:
    run = east.begin(NIGHT, batch=3, purge=True)
    publish_all(east)
    east.target.folder.rename(tmp_path / "unmounted")

    assert east.sweep(but="next") == []
    assert east.ledger.runs(KIND, JobRunState.RUNNING) == [run]


def test_rows_whose_manifest_is_away_are_not_removed(east: ArchiveRuns, tmp_path: Path) -> None:
    east.published(east.begin(NIGHT, batch=3, purge=True))
    east.target.folder.rename(tmp_path / "unmounted")

    with pytest.raises(ConfigurationError, match="nothing was removed"):
        east.sweep(but="next")

    assert len(rows_of(east.store)) == 4


def test_an_id_is_not_used_again_though_its_archive_was_thrown_away(east: ArchiveRuns) -> None:
    run = east.begin(NIGHT, batch=3, purge=True)
    publish_all(east)
    east.remove(run, silent)
    shutil.rmtree(east.target.folder)

    assert east.has_ended(NIGHT)
    assert not east.has_ended("next")


def test_exactly_the_archived_rows_are_removed(store: Store, tmp_path: Path) -> None:
    write_events(store, range(7))
    archived = rows_of(store)
    write_events(store, range(7, 10))
    runs = of(store, tmp_path)
    run = runs.begin(NIGHT, batch=3, purge=True)
    publish(runs.target, NIGHT, identity(store), archived)

    removed = runs.remove(run, silent)

    assert removed == RemovedRows(7)
    assert [row[1] for row in rows_of(store)] == ["id7", "id8", "id9"]
    assert runs.ledger.counted(NIGHT) == 7


def newest_transaction(store: Store) -> int:
    """Return the transaction that wrote the newest event."""
    newest = text(f"SELECT CAST(CAST(max(xid) AS text) AS bigint) FROM {store.tables.history.name}")
    with store.database.read() as connection:
        return int(connection.execute(newest).scalar_one())


def test_unread_events_of_a_stream_stay_in_the_store_until_it_reads_them(
    postgres: Store, tmp_path: Path
) -> None:
    runs = of(postgres, tmp_path)
    streams = StreamRuns(runs.ledger)
    stream = streams.begin(tmp_path / "live", tmp_path / "checkpoint")
    write_events(postgres, range(4))
    read = newest_transaction(postgres) + 1
    write_events(postgres, range(4, 7))
    run = runs.begin(NIGHT, batch=3, purge=True)
    publish_all(runs)
    runs.published(run)
    reported: list[str] = []

    before = runs.remove(run, silent)
    streams.reached(stream, read)
    half = runs.remove(run, reported.append)
    purged = runs.target.purged()
    streams.reached(stream, newest_transaction(postgres) + 1)
    (left,) = runs.left_in_store(None)
    rest = runs.remove(left, silent)

    assert (before, half, rest) == (RemovedRows(0, held=7), RemovedRows(4, held=3), RemovedRows(3))
    assert f"the stream into {tmp_path}/live, which is at transaction {read}" in reported[-1]
    assert reported[-1].startswith("3 archived rows stay in the store")
    assert purged == frozenset()
    assert rows_of(postgres) == []
    assert runs.ledger.runs(KIND, JobRunState.PUBLISHED) == []


def test_a_stream_that_was_given_up_holds_nothing(postgres: Store, tmp_path: Path) -> None:
    runs = of(postgres, tmp_path)
    streams = StreamRuns(runs.ledger)
    folders = (tmp_path / "live", tmp_path / "checkpoint")
    streams.begin(*folders)
    write_events(postgres, range(4))
    run = runs.begin(NIGHT, batch=3, purge=True)
    publish_all(runs)

    given_up = streams.abort(*folders)
    removed = runs.remove(run, silent)

    assert (given_up, streams.abort(*folders)) == (True, False)
    assert removed == RemovedRows(4)


@pytest.mark.parametrize(
    ("ids", "at"),
    [
        ((10, 11), {}),  # of other timeouts
        ((2, 3), {"at": to_micros(DAY + timedelta(days=90))}),  # of the same, another time
    ],
)
def test_a_row_with_the_sequence_of_an_archived_row_is_not_removed(
    east: ArchiveRuns, ids: tuple[int, int], at: dict[str, Any]
) -> None:
    run = east.begin(NIGHT, batch=3, purge=True)
    publish_all(east)
    before, history = rows_of(east.store), east.store.tables.history
    with east.store.database.begin() as connection:  # as retention does
        connection.execute(delete(history).where(history.c.id.in_(["id2", "id3"])))
    write_events(east.store, ids, **at)
    assert [row[0] for row in rows_of(east.store)] == [row[0] for row in before]

    removed = east.remove(run, silent)

    assert removed == RemovedRows(2)
    assert [row[1] for row in rows_of(east.store)] == [f"id{number}" for number in ids]


def test_a_batch_of_more_rows_than_a_statement_takes_values_is_removed(
    postgres: Store, tmp_path: Path
) -> None:
    write_events(postgres, range(3))
    there, deleted = rows_of(postgres), [(n, f"id{n}", n) for n in range(100, 70_100)]
    runs = of(postgres, tmp_path)
    begun_before(runs, JobRunState.PUBLISHED, batch=100_000)  # as a stuck task has left it
    publish(runs.target, NIGHT, identity(postgres), [*there, *deleted])

    (left,) = runs.left_in_store(None)
    removed = runs.remove(left, silent)

    assert (removed, rows_of(postgres)) == (RemovedRows(3), [])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"to": Path("s3a://lake/h")}, "to is a folder .* got the URL 's3a:/lake/h'"),
        ({"run_id": "../x"}, "without a slash, got '../x'"),
        ({"run_id": ""}, "1 to 200 characters"),
        ({"run_id": "r" * 201}, "1 to 200 characters"),
    ],
)
def test_options_that_would_archive_elsewhere_are_refused(
    options: dict[str, Any], sentence: str
) -> None:
    given: dict[str, Any] = {"store": "s", "to": Path(), "older_than": timedelta(days=1)}

    with pytest.raises(ConfigurationError, match=sentence):
        ArchiveOptions(**(given | options))
