"""The commands, as a shell runs them; in this process, so that they share the one Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from sqlalchemy import delete

from tests.pipeline.conftest import SETTINGS
from tests.pipeline.rows import batch, count, row
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.main import cli
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.writers.loader import Loader
from timeoutmgr.sender import in_transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(*words: str, code: int = 0) -> Any:
    """Run the command; return its JSON."""
    ended = CliRunner().invoke(cli, ["--json", *words])
    assert ended.exit_code == code, ended.output + str(ended.exception)
    return json.loads(ended.stdout)


def people(*words: str, code: int = 0) -> str:
    ended = CliRunner().invoke(cli, [*words])
    assert ended.exit_code == code, ended.output
    return ended.output


@pytest.fixture
def rows(tmp_path: Path) -> str:
    due = datetime.now(UTC) + timedelta(days=1)
    table = {
        "destination": ["sales"] * 9 + ["nowhere"],
        "due": pa.array([due] * 10, pa.timestamp("us", tz="UTC")),
        "body": ["{}"] * 10,
        "key": [f"k{n}" for n in range(10)],
    }
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(table), path)
    return str(path)


def test_a_campaign_is_scheduled_from_the_command_line(
    spark: SparkSession, sqlite: Store, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A day counts as near: the poller is to be woken, and no row to become due meanwhile.
    monkeypatch.setattr(in_transaction, "_POLLED_BEFORE", 172_800_000_000)
    settings = Path(sqlite.name)
    settings.write_text(settings.read_text().replace("memory://", str(sqlite.database.url)))
    run("--config", sqlite.name, "install")
    given = ("--config", sqlite.name, "pipeline")
    words = (*given, "schedule", rows, "--dataset", "spring", "--type", "R")

    refused = run(*words, code=Exit.USAGE)
    stored = run(*words, "--max-reject-ratio", "0.2", "--rejects", str(tmp_path / "bad"))
    queues = run("--config", sqlite.name, "status", code=Exit.FAILED)["queues"]  # no process lives
    shown = people(*given, "forecast", "--bucket", "1h")
    files = ("--html", str(tmp_path / "load.html"), "--out", str(tmp_path / "load.csv"))
    ahead = run(*given, "forecast", "--bucket", "1s", *files)
    well = run(*given, "reconcile")
    with sqlite.database.begin() as connection:
        connection.execute(delete(sqlite.tables.timeouts))
    lost = run(*given, "reconcile", code=Exit.FINDINGS)
    late = run(*given, "lateness")
    archived = run(*given, "archive", "--to", str(tmp_path / "lake"), "--older-than", "1d")
    doctor = run(*given, "doctor", code=0)

    assert refused["kind"] == "TooManyRejects"
    assert (stored["new"], stored["rejected"]) == (9, 1)
    assert stored["reasons"] == {"there is no queue of that name": 1}
    assert queues["sales.Timeouts"] == 1  # the endpoint gets a wake
    assert "needs_per_second" in shown
    assert ahead["peaks"][0]["messages"] == 9
    assert "<svg" in (tmp_path / "load.html").read_text()
    assert (tmp_path / "load.csv").read_text().startswith("begin,endpoint,destination,messages")
    assert well["verdicts"]["pending"] == 9
    assert (lost["verdicts"]["lost"], len(lost["examples"])) == (9, 9)
    assert late["messages"] == 0
    assert archived["written"] == 0
    assert count(sqlite, "keys") == 9
    assert {one["check"]: one["level"] for one in doctor["findings"]}["store"] == "ok"


def test_an_undecidable_loss_has_an_exit_code_of_its_own(
    spark: SparkSession, sqlite: Store
) -> None:
    path = Path(sqlite.name)
    path.write_text(path.read_text().replace('history = "full"', 'history = "outcomes"'))

    shown = people("pipeline", "reconcile", "--store", sqlite.name, code=Exit.UNDECIDABLE)

    assert "not decidable" in shown


def test_streaming_from_sqlite_is_refused_with_the_reason(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    refused = run(
        *("pipeline", "stream", "--store", sqlite.name, "--to", str(tmp_path / "a"), "--once"),
        code=Exit.CONFIGURATION,
    )

    assert "which transactions are still open" in refused["error"]


@pytest.mark.parametrize(
    "words",
    [
        ("reconcile",),
        ("lateness",),
        ("schedule", "rows.parquet", "--dataset", "spring"),
        ("archive", "--to", "lake", "--older-than", "1d"),
        ("stream", "--to", "lake"),
    ],
    ids=lambda words: words[0],
)
def test_a_store_that_is_not_installed_is_said_so_before_spark_is_started(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    settings = tmp_path / "new.toml"
    settings.write_text(SETTINGS.format(url=f"sqlite:///{tmp_path}/new.db", prefix="new"))

    shown = people("--config", str(settings), "pipeline", *words, code=Exit.CONFIGURATION)

    assert "run `timeoutmgr install`" in shown
    assert "starting Spark" not in shown


def test_a_page_that_cannot_be_written_is_said_so(sqlite: Store) -> None:
    refused = run(
        *("pipeline", "forecast", "--store", sqlite.name, "--html", "/no/such/folder/x.html"),
        code=Exit.USAGE,
    )

    assert "--html /no/such/folder/x.html cannot be written" in refused["error"]


def test_a_setting_of_spark_has_a_name_and_a_value(sqlite: Store) -> None:
    refused = run(
        *("pipeline", "reconcile", "--store", sqlite.name, "--conf", "spark.executor.memory"),
        code=Exit.USAGE,
    )

    assert "expected NAME=VALUE" in refused["error"]


def test_an_app_has_no_name_for_workers() -> None:
    refused = run("--app", "shop:config", "pipeline", "forecast", code=Exit.CONFIGURATION)

    assert "give --store" in refused["error"]


@pytest.mark.usefixtures("spark")
def test_several_jobs_share_one_start_and_the_first_finding_is_the_exit_code(sqlite: Store) -> None:
    given = ("--config", sqlite.name, "pipeline", "run")
    Loader(sqlite).load([batch([row(1)])])
    with sqlite.database.begin() as connection:
        connection.execute(delete(sqlite.tables.timeouts))

    shown = people(*given, "lateness --by endpoint", "reconcile", code=Exit.FINDINGS)
    listed = run(*given, "lateness --by endpoint", "reconcile", code=Exit.FINDINGS)
    until = run(*given, "forecast", "compact --lake no-folder", code=Exit.CONFIGURATION)
    wrong = people(*given, "lateness", "run lateness", code=Exit.CONFIGURATION)

    assert "every group keeps the promise" in shown
    assert row(1)["id"] in shown
    assert (len(listed), len(until), until[0]["messages"]) == (2, 1, 0)
    assert "'run lateness' names no job of the pipeline" in wrong


@pytest.mark.usefixtures("spark")
def test_an_option_that_all_commands_have_is_of_one_job(sqlite: Store) -> None:
    own = f"forecast --config {sqlite.name} --json"

    shown = people("--config", sqlite.name, "pipeline", "run", "forecast", own, "forecast")

    assert [line[0] for line in shown.splitlines() if line.startswith(("messages", "{"))] == [
        *("m", "{", "m")
    ]
