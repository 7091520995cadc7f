from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.rows import batch, count, read, row
from tests.support.clock import FakeClock
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import from_micros, to_micros
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.message.validation import Limits
from timeoutmgr.pipeline import read_timeouts, snapshot, write_timeouts
from timeoutmgr.pipeline.errors import RunConflict, TooManyRejects
from timeoutmgr.pipeline.jobs.schedule import (
    KIND,
    TWICE,
    ScheduleReport,
    parameters_of,
    schedule,
)
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState
from timeoutmgr.pipeline.options import ScheduleOptions
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.transforms.instants import EXPECTED
from timeoutmgr.pipeline.writers.loader import Loader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DUE = datetime(2035, 1, 31, 9, tzinfo=UTC)


def campaign(folder: Path, rows: int = 100, **columns: list[Any]) -> str:
    table = {
        "destination": ["billing", "mail"] * (rows // 2),
        "due": pa.array(
            [DUE + timedelta(seconds=n // 10) for n in range(rows)], pa.timestamp("us", tz="UTC")
        ),
        "body": [f'{{"n": {n}}}' for n in range(rows)],
        "key": [f"k{n}" for n in range(rows)],
    } | columns
    path = folder / "campaign.parquet"
    pq.write_table(pa.table(table), path)
    return str(path)


def run(
    spark: SparkSession,
    store: Store,
    path: str,
    *,
    clock: Clock | None = None,
    frame: DataFrame | None = None,
    **options: Any,
) -> ScheduleReport:
    given: dict[str, Any] = {
        **{"store": store.name, "endpoint": "sales", "dataset": "spring", "paths": (path,)},
        **{"message_type": "Reminder"},
    }
    made = ScheduleOptions(**(given | options))
    return schedule(spark, made, clock=clock or SystemClock(), frame=frame)


@pytest.mark.usefixtures("compiled")
def test_a_campaign_is_stored_once_however_often_it_is_run(
    spark: SparkSession, postgres: Store, tmp_path: Path
) -> None:
    path = campaign(tmp_path)

    first = run(spark, postgres, path, run_id="one")
    again = run(spark, postgres, path, run_id="two")

    assert (first.rows, first.accepted, first.new, first.known) == (100, 100, 100, 0)
    assert (again.new, again.known) == (0, 100)
    assert first.busiest_second == 10
    assert (count(postgres, "timeouts"), count(postgres, "keys")) == (100, 100)
    found = JobLedger(postgres).find("one")
    assert found is not None
    assert found.state is JobRunState.COMPLETED
    assert found.ended is not None
    assert found.report == first.document()
    assert found.parameters["dataset"] == "spring"


class Killed(BaseException):
    pass


class TickingClock(FakeClock):
    """A clock that moves a second ahead at each reading."""

    def now(self) -> int:
        self.advance(1)
        return super().now()


def test_a_run_that_was_killed_half_way_is_ended_by_another_however_late(
    spark: SparkSession, sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(frame: DataFrame, *given: Any, **more: Any) -> None:
        write_timeouts(frame.where("message_id = 'spring/k1'"), *given, **more)
        raise Killed

    due = pa.array([DUE, None], pa.timestamp("us", tz="UTC"))
    path = campaign(tmp_path, 2, due=due, delay=pa.array([None, 3600]))
    rejects = tmp_path / "rejects"
    rejects.mkdir()
    (rejects / "part-00000-a.json").write_text('{"reasons":["due has passed"],"input":"{}"}\n')
    clock = TickingClock(to_micros(DUE) - 60_000_000)
    with monkeypatch.context() as patched:
        patched.setattr("timeoutmgr.pipeline.jobs.schedule.write_timeouts", half)
        with pytest.raises(Killed):
            run(spark, sqlite, path, clock=clock)

    clock.advance(86_400)  # both are due by now
    verified: dict[str, Any] = {"clock": clock, "rejects": rejects, "on_conflict": "verify"}
    ended = run(spark, sqlite, path, **verified)
    clock.advance(86_400)
    again = run(spark, sqlite, path, **verified)

    assert (ended.new, ended.known, ended.rejected) == (1, 1, 0)
    assert (again.new, again.known, again.rejected) == (0, 2, 0)
    (begun,) = JobLedger(sqlite).runs("schedule", JobRunState.COMPLETED)
    same = (begun.run_id, begun.created)
    assert (ended.run_id, ended.as_of) == (again.run_id, again.as_of) == same
    assert again.document()["as_of"] == from_micros(begun.created).isoformat()
    dues = {one["message_id"]: one["due"] for one in read(sqlite, "pending")}
    delayed = from_micros(begun.created) + timedelta(hours=1)
    assert dues == {"spring/k0": DUE, "spring/k1": delayed}
    assert [part for part in rejects.glob("*.json") if part.stat().st_size] == []


OPTIONS: dict[str, Any] = {"store": "s", "endpoint": "e", "dataset": "d", "paths": ("p",)}


@pytest.mark.parametrize(
    ("options", "files", "is_same"),
    [
        ({"paths": ("./p",), "store": "t", "run_id": "r"}, "f", True),
        ({"rejects": Path("bad"), "max_reject_ratio": 0.5, "on_conflict": "verify"}, "f", True),
        ({"dry_run": True, "limits": Limits(max_body=5)}, "f", True),
        ({}, "g", False),
        ({"endpoint": "f"}, "f", False),
        ({"dataset": "e"}, "f", False),
        ({"format": "csv"}, "f", False),
        ({"message_type": "T"}, "f", False),
        ({"past": "shift"}, "f", False),
        ({"max_per_second": 5, "jitter": timedelta(seconds=2)}, "f", False),
        ({"since": DUE}, "f", False),
        ({"until": DUE}, "f", False),
        ({"destination": "mail"}, "f", False),
    ],
)
def test_a_run_is_the_same_if_its_rows_become_the_same_timeouts(
    options: dict[str, Any], files: str, is_same: bool
) -> None:
    first = parameters_of(ScheduleOptions(**OPTIONS), {"sha256": "f"})

    second = parameters_of(ScheduleOptions(**(OPTIONS | options)), {"sha256": files})

    assert (json.dumps(first) == json.dumps(second)) is is_same


def test_stored_rows_are_read_by_many_tasks_of_one_snapshot(
    spark: SparkSession, postgres: Store
) -> None:
    Loader(postgres).load([batch([row(number) for number in range(100)])])

    with snapshot(postgres) as moment:
        rows = moment.read(spark, "pending", columns=["id", "destination", "due"])
        found = rows.toArrow().to_pylist()

    assert [*found[0]] == ["id", "destination", "due"]
    assert {one["id"]: one["due"] for one in found} == {
        row(number)["id"]: row(number)["due"] for number in range(100)
    }
    assert read_timeouts(spark, postgres.name, columns=["id"]).count() == 100


def test_a_copy_of_a_moment_is_read_where_the_database_exports_none(
    spark: SparkSession, store_of: Any, tmp_path: Path
) -> None:
    for kind in ("sqlite", "mysql"):
        store = store_of(kind)
        Loader(store).load([batch([row(number) for number in range(100)])])

        with snapshot(store, columns=["id", "due", "event"], folder=tmp_path) as moment:
            Loader(store).load([batch([row(number) for number in range(200)])])
            pending = moment.read(spark, "pending", columns=["due"]).count()
            history = moment.read(spark, "history", columns=["event"]).toArrow()

        assert (pending, history.num_rows, count(store, "timeouts")) == (100, 100, 200)
        assert list(tmp_path.glob("timeoutmgr-snapshot-*")) == []


def test_bad_rows_are_set_aside_with_their_reasons_and_in_every_window_without_a_due_time(
    spark: SparkSession, sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "flights.csv"
    path.write_text(
        "destination,due,body,key\n"
        f"billing,{DUE.isoformat()},a,1\n"
        ",2035-01-31T09:00,b,2\n"
        "billing,,c,3\n"
        f"billing,{DUE.isoformat()},d,4\n"
        f"billing,{DUE.isoformat()},e,4\n"
        f"billing,{DUE.isoformat()},a,1\n"
    )
    rejects = Path("10:00/rejects")  # no scheme of a URL

    window: dict[str, Any] = {"since": DUE + timedelta(days=1)}  # of none of the good rows
    with pytest.raises(TooManyRejects, match="2 of 2 rows cannot be scheduled") as refused:
        run(spark, sqlite, str(path), format="csv", rejects=rejects, **window)
    none = count(sqlite, "timeouts")
    report = run(spark, sqlite, str(path), format="csv", rejects=rejects, max_reject_ratio=0.7)

    assert "destination is empty" in str(refused.value)
    assert none == 0
    assert (report.accepted, report.rejected, report.repeated, report.new) == (1, 4, 1, 1)
    assert report.reasons[TWICE] == 2
    written = [
        json.loads(line)
        for part in rejects.glob("*.json")
        for line in part.read_text().splitlines()
    ]
    by_key: dict[str, list[list[str]]] = {}
    for one in written:
        by_key.setdefault(json.loads(one["input"])["key"], []).append(one["reasons"])
    assert by_key == {
        "2": [
            [
                f"due is not an instant with a zone, such as {EXPECTED}",
                "destination is empty",
            ]
        ],
        "3": [["neither due nor delay is given"]],
        "4": [[TWICE], [TWICE]],
    }


def test_windows_of_a_file_that_overlap_store_each_of_their_rows_once(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    path = campaign(tmp_path)  # ten rows a second, half of them to each of two queues
    at = [DUE + timedelta(seconds=second) for second in (2, 4, 5)]

    first = run(spark, sqlite, path, since=at[0], until=at[1], destination="mail")
    second = run(spark, sqlite, path, since=at[0], until=at[2])

    assert [(one.rows, one.new, one.known) for one in (first, second)] == [
        (10, 10, 0),
        (30, 20, 10),
    ]
    assert (first.first_due, first.last_due) == (to_micros(at[0]), to_micros(at[1]) - 1_000_000)


def test_a_dry_run_tells_the_load_of_queues_that_exist_and_stores_nothing(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    options = ScheduleOptions(
        store=sqlite.name,
        endpoint="sales",
        dataset="spring",
        paths=(campaign(tmp_path),),
        message_type="R",
        max_reject_ratio=0.5,
        dry_run=True,
    )

    report = schedule(
        spark,
        options,
        clock=SystemClock(),
        missing_queues=lambda names: [name for name in names if name == "mail"],
    )

    document = report.document()
    assert report.reasons == {"there is no queue of that name": 50}
    assert (report.accepted, report.rejected) == (50, 50)
    assert (report.new, report.smeared_seconds) == (0, 0)
    assert document["busiest_minutes"] == [{"minute": DUE.isoformat(), "messages": 50}]
    assert (document["first_due"], report.busiest_second) == (DUE.isoformat(), 5)
    assert (count(sqlite, "timeouts"), count(sqlite, "runs")) == (0, 0)


def test_smeared_rows_of_a_frame_are_where_the_report_says_in_every_run_of_one_name(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    # Two rows of the hundred are the same.
    path = campaign(
        tmp_path,
        key=["k0"] * 2 + [f"k{n}" for n in range(2, 100)],
        body=["{}"] * 100,
        destination=["billing"] * 100,
    )
    smear: dict[str, Any] = {
        "max_per_second": 5,
        "jitter": timedelta(minutes=10),
        "on_conflict": "verify",
    }
    frame = spark.read.parquet(path)

    first, again = (
        run(spark, sqlite, "", paths=(), frame=frame, run_id="one", **smear) for _ in "ab"
    )

    dues = [one["due"] for one in read(sqlite, "pending")]
    assert (first.new, again.new, again.smeared_seconds) == (99, 0, 10)
    assert again.as_of == first.as_of
    assert max(dues) > DUE + timedelta(minutes=5)
    assert min(dues) >= DUE
    assert (again.first_due, again.last_due) == (to_micros(min(dues)), to_micros(max(dues)))
    minutes = Counter(to_micros(one.replace(second=0, microsecond=0)) for one in dues)
    assert dict(again.curve).items() <= minutes.items()
    busiest = sorted(minutes.values(), reverse=True)[:10]
    assert [count for _, count in again.curve] == busiest
    seconds = Counter(one.replace(microsecond=0) for one in dues)
    assert again.busiest_second == max(seconds.values()) < 10


def test_a_row_that_is_given_twice_is_one_message_of_its_second(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    path = campaign(tmp_path, 2, key=["k"] * 2, body=["{}"] * 2, destination=["billing"] * 2)

    report = run(spark, sqlite, path, max_per_second=1, jitter=timedelta(minutes=10), dry_run=True)

    assert (report.repeated, report.smeared_seconds) == (1, 0)
    assert report.first_due == to_micros(DUE)


def test_a_run_of_other_parameters_cannot_use_the_name_of_a_run(sqlite: Store) -> None:
    spring, autumn = (
        parameters_of(ScheduleOptions(**(OPTIONS | {"dataset": name})), {"sha256": "f"})
        for name in ("spring", "autumn")
    )
    JobLedger(sqlite).begin("mine", KIND, spring)

    with pytest.raises(RunConflict, match="another run id"):
        JobLedger(sqlite).begin("mine", KIND, autumn)


def test_an_error_of_a_worker_comes_back_as_itself(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    from timeoutmgr.pipeline.errors import ContentDiffers

    path = campaign(tmp_path)
    Loader(sqlite).load([batch([row(1, id=timeout_id("sales", "spring/k7"))])])

    with pytest.raises(ContentDiffers, match="on_conflict=error"):
        run(spark, sqlite, path, on_conflict="error")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"format": "orc"}, "format is one of"),
        ({"on_conflict": "skip"}, "on_conflict is one of"),
        ({"past": "keep"}, "past is one of"),
        ({"dataset": ""}, "dataset is 1 to 100"),
        ({"endpoint": "e.Timeouts"}, "an endpoint cannot be called"),
        ({"paths": ("table:a", "b.parquet")}, "a table is scheduled alone"),
        ({"multi_line": True}, "Parquet has no lines"),
        ({"rejects": Path("s3a://lake/bad")}, "rejects is a folder of the file system"),
        ({"max_reject_ratio": 2.0}, "between 0 and 1"),
        ({"jitter": timedelta(seconds=1)}, "go together"),
        ({"max_per_second": 0, "jitter": timedelta(seconds=1)}, "must be positive"),
        ({"since": datetime(2035, 1, 31)}, "since is a time with a zone"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        ScheduleOptions(**(OPTIONS | options))


def test_a_folder_with_foreign_files_is_not_overwritten(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    path = campaign(tmp_path)

    with pytest.raises(ConfigurationError, match=r"holds 'campaign\.parquet'"):
        run(spark, sqlite, path, rejects=tmp_path)

    assert Path(path).exists()


def test_a_file_that_is_not_there_is_named(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.parquet cannot be read as parquet"):
        run(spark, sqlite, str(tmp_path / "nothing.parquet"))


def test_a_table_of_the_catalog_is_scheduled_and_no_source_at_all_is_refused(
    spark: SparkSession, sqlite: Store
) -> None:
    rows = "VALUES ('billing', '2035-01-31T09:00:00Z', '{}', 'k') AS r(destination, due, body, key)"
    spark.sql(f"CREATE OR REPLACE TEMP VIEW campaign AS SELECT * FROM {rows}")

    report = run(spark, sqlite, "table:campaign")

    assert (report.new, count(sqlite, "timeouts")) == (1, 1)
    with pytest.raises(ConfigurationError, match="no row is given; name a file"):
        run(spark, sqlite, "", paths=())
    with pytest.raises(ConfigurationError, match="table:nowhere cannot be read as a table"):
        run(spark, sqlite, "table:nowhere")


def test_a_table_whose_files_have_spaces_and_percent_signs_in_their_names_is_scheduled(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "at=2035-01-31 09%3A00"
    folder.mkdir()
    spark.read.parquet(campaign(folder)).createOrReplaceTempView("spaced")

    first, again = (run(spark, sqlite, "table:spaced") for _ in "ab")

    assert (first.new, again.new, again.run_id) == (100, 0, first.run_id)
