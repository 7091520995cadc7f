from __future__ import annotations

import json
from dataclasses import MISSING
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click import Command, Option, UsageError
from click.testing import CliRunner

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.main import cli
from timeoutmgr.cli.pipeline.group import pipeline
from timeoutmgr.cli.pipeline.shared import job_options
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.lake_options import CompactOptions, EraseOptions, RestoreOptions
from timeoutmgr.pipeline.options import (
    ArchiveOptions,
    ForecastOptions,
    LatenessOptions,
    ReconcileOptions,
    ReportOptions,
    ScheduleOptions,
    StreamOptions,
    declared_fields,
    folder_option,
    history_place,
)
from timeoutmgr.pipeline.spark.session import SessionOptions

JOBS: dict[str, tuple[Any, list[str], dict[str, Any]]] = {
    "schedule": (ScheduleOptions, ["f", "--dataset", "d"], {"store": "s", "endpoint": "e"}),
    "forecast": (ForecastOptions, [], {"stores": ("s",)}),
    "reconcile": (ReconcileOptions, [], {"stores": ("s",)}),
    "lateness": (LatenessOptions, [], {"stores": ("s",)}),
    "archive": (ArchiveOptions, ["--to", "t", "--older-than", "7d"], {"store": "s"}),
    "compact": (CompactOptions, ["--lake", "t"], {}),
    "erase": (EraseOptions, ["--ids", "x"], {"store": "s", "ids": ("x",)}),
    "restore": (RestoreOptions, ["--lake", "t"], {"store": "s"}),
    "stream": (StreamOptions, ["--to", "t"], {"store": "s"}),
}
"""The options of each job, the words that its command needs, and fields that are not options."""


def given_by(name: str, words: list[str]) -> dict[str, Any]:
    command = pipeline.commands[name]
    assert isinstance(command, Command)
    return command.make_context(name, [*words]).params


@pytest.mark.parametrize("name", JOBS)
def test_a_command_without_options_has_the_defaults_of_its_job(name: str) -> None:
    options, words, others = JOBS[name]
    given = given_by(name, words)
    needed = {
        field.name: given[field.name]
        for field, _declared in declared_fields(options)
        if field.default is MISSING and field.default_factory is MISSING
    }
    more = others | ({"paths": given["paths"]} if name == "schedule" else {})

    assert job_options(options, given, **more) == options(**(needed | more))


@pytest.mark.parametrize("name", JOBS)
def test_a_command_has_each_flag_that_its_job_declares(name: str) -> None:
    options, _words, _others = JOBS[name]
    flags = {one.opts[0] for one in pipeline.commands[name].params if isinstance(one, Option)}

    assert {declared.flag for _field, declared in declared_fields(options)} - {""} <= flags


def test_options_are_read_as_their_fields_have_them() -> None:
    words = ["--map", "due=send_at", "--jitter", "2m", "--max-per-second", "5", "--dry-run"]
    kept = given_by("archive", [*JOBS["archive"][1], "--keep"])
    grouped = given_by("lateness", ["--by", "endpoint, day", "--slo", "90s"])
    session = given_by("doctor", ["--conf", "spark.a=1", "--conf", "spark.b=c=d"])

    scheduled = job_options(
        ScheduleOptions,
        given_by("schedule", [*JOBS["schedule"][1], *words]),
        **{"store": "s", "endpoint": "e", "paths": ("f",)},
    )

    assert (scheduled.columns, scheduled.dry_run) == ({"due": "send_at"}, True)
    assert (scheduled.jitter, scheduled.max_per_second) == (timedelta(minutes=2), 5)
    assert job_options(ArchiveOptions, kept, store="s").purge is False
    by = job_options(LatenessOptions, grouped, stores=("s",))
    assert (by.by, by.slo) == (("endpoint", "day"), timedelta(seconds=90))
    assert job_options(SessionOptions, session).configuration == {"spark.a": "1", "spark.b": "c=d"}


@pytest.mark.parametrize(
    "value",
    [
        *("s3a://lake/h", "S3A://lake/h", "hdfs://name:9000/h", "file:///lake/h", "gs:/lake"),
        *(Path("s3a://lake/h"), Path("abfss://c@a.dfs.core.windows.net/h"), "view-fs+x.1://h"),
    ],
)
def test_a_url_is_no_folder(value: str | Path) -> None:
    with pytest.raises(ConfigurationError, match=r"to is a folder .* mount it"):
        folder_option("to", value)


@pytest.mark.parametrize(
    "value", ["", ".", "/lake/h", "lake/s3a", "C:/lake", "a b:/c", "2024-01:/x", "ü:/x"]
)
def test_a_path_is_a_folder(value: str) -> None:
    assert folder_option("to", value) == folder_option("to", Path(value)) == Path(value)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("lake", "{here}/lake"),
        ("/lake/history/", "/lake/history"),
        ("file:///lake/a%20b", "/lake/a b"),
        ("/", "/"),
        ("file:///", "/"),
        ("delta:/", "delta:/"),
        ("delta:lake", "delta:{here}/lake"),
        ("delta:file:/lake", "delta:/lake"),
        ("delta:s3://lake/history/", "delta:s3://lake/history"),
        ("delta:abfss://c@a.dfs.core.windows.net/h", "delta:abfss://c@a.dfs.core.windows.net/h"),
        ("iceberg:main.timeouts.history", "iceberg:main.timeouts.history"),
    ],
)
def test_a_table_has_one_place_however_it_is_spelt(given: str, place: str) -> None:
    assert history_place("to", given) == place.format(here=Path.cwd())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        *((empty, "give its folder") for empty in ("", "delta:", "file:")),
        *(
            (f"delta:{place}", "whole bucket")
            for place in ("s3://lake", "s3:/lake/", "az://c@a.net/")
        ),
        *((f"delta:lake/{name}", "without any of %") for name in ("a%20b", "x[1]", "a|b", "a^b")),
    ],
)
def test_a_folder_that_is_not_named_or_that_delta_cannot_name_is_refused(
    given: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"to is a .*{sentence}"):
        history_place("to", given)


@pytest.mark.parametrize("name", ["v[1]", "/lake/v*", "v?", "v{a,b}", "v-10:00"])
def test_a_folder_whose_name_spark_reads_otherwise_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="out is a folder without any of"):
        ReconcileOptions(stores=("s",), out=Path(name))


def test_a_duration_stays_within_the_calendar() -> None:
    with pytest.raises(ConfigurationError, match="older_than is at most 700000 days"):
        ArchiveOptions(store="s", to="t", older_than=timedelta(days=800_000))
    with pytest.raises(ConfigurationError, match="ahead is at most 700000 days"):
        ForecastOptions(stores=("s",), ahead=timedelta(days=300_000_000))
    with pytest.raises(ConfigurationError, match="days is at most 700000 days, got 800000"):
        ReportOptions(stores=("s",), days=800_000)


def test_a_report_covers_the_load_of_a_second_at_least() -> None:
    with pytest.raises(ConfigurationError, match=r"ahead is at least a second, got 0:00:00\.5"):
        ReportOptions(stores=("s",), ahead=timedelta(milliseconds=500))


def test_a_pair_without_a_value_is_refused_with_its_option() -> None:
    with pytest.raises(UsageError, match="'Customer' is not a name with its value; expected NAME="):
        given_by("erase", ["--header", "Customer"])


def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="--header gives 'Customer' twice, and a single"):
        given_by("erase", ["--header", "Customer=17", "--header", "Customer=18"])


def test_history_is_not_archived_into_a_folder_that_looks_like_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("pipeline", "archive", "--to", "s3a://lake/h", "--older-than", "7d")

    ended = CliRunner().invoke(cli, ["--json", *words])

    assert ended.exit_code == Exit.CONFIGURATION, ended.output
    assert "to is delta:URI" in json.loads(ended.stdout or ended.stderr)["error"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "place", ["detla:s3://lake/h", "foo:bar", "Delta:lake", "delta:detla:s3://lake/h", "C:/lake"]
)
@pytest.mark.parametrize(
    ("options", "field", "more"),
    [
        (ArchiveOptions, "to", {"store": "s", "older_than": timedelta(days=7)}),
        (StreamOptions, "to", {"store": "s"}),
        (CompactOptions, "lake", {}),
        (RestoreOptions, "lake", {"store": "s"}),
        (EraseOptions, "lake", {"store": "s", "ids": ("x",)}),
        *((job, "archive", {"stores": ("s",)}) for job in (ReconcileOptions, LatenessOptions)),
        (ReportOptions, "archive", {"stores": ("s",)}),
    ],
)
def test_no_job_takes_a_misspelt_scheme_for_a_folder(
    options: Any, field: str, more: dict[str, Any], place: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} is .* is delta: or iceberg: meant"):
        options(**{field: place}, **more)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("/lake/2030-01-31T09:00", "/lake/2030-01-31T09:00"),
        ("delta:/lake/a:b", "delta:/lake/a:b"),
        ("file:///lake/a:b", "/lake/a:b"),
    ],
)
def test_a_whole_path_may_have_a_colon(given: str, place: str) -> None:
    assert history_place("to", given) == history_place("to", place) == place


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ("report --nonsense", "job 'report --nonsense': No such option"),
        ("report --days many", "job 'report --days many': Invalid value for '--days'"),
        ("lateness --since 2030-01-31", "'2030-01-31' has no time zone"),
        ("report 'open", "No closing quotation"),
    ],
)
def test_a_mistake_in_a_later_job_is_said_before_any_job_has_begun(job: str, sentence: str) -> None:
    first = "forecast --store none.toml"  # which would be refused by itself

    refused = CliRunner().invoke(cli, ["pipeline", "run", first, job])

    assert refused.exit_code == Exit.USAGE, refused.output
    assert sentence in refused.stderr
    assert "starting Spark" not in refused.stderr


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ("schedule a.csv --dataset d --past nope", "past is one of"),
        ("lateness --quantile p10", "quantile is one of"),
        ("archive --to s3a://lake/h --older-than 7d", "to is delta:URI"),
        ("erase --header a=1 --header a=2", "--header gives 'a' twice"),
    ],
)
def test_a_value_of_a_job_is_checked_before_spark_starts(job: str, sentence: str) -> None:
    refused = CliRunner().invoke(cli, ["pipeline", "run", "forecast", job])

    assert refused.exit_code in (Exit.CONFIGURATION, Exit.USAGE), refused.output
    assert sentence in refused.stderr
    assert "starting Spark" not in refused.stderr


@pytest.mark.parametrize(
    ("job", "option"),
    [("forecast", "--out"), ("forecast", "--html"), ("lateness", "--html"), ("report", "--html")],
)
def test_a_file_that_cannot_be_written_is_refused_before_a_job_begins(
    tmp_path: Path, job: str, option: str
) -> None:
    file = str(tmp_path / "missing" / "page")

    refused = CliRunner().invoke(cli, ["pipeline", job, "--store", "none.toml", option, file])

    assert refused.exit_code != Exit.OK
    assert option in refused.stderr
    assert file in refused.stderr


def test_an_error_of_an_option_is_json_wherever_json_is_asked_for() -> None:
    words = ("pipeline", "lateness", "--store", "none.toml", "--quantile", "p10", "--json")

    refused = CliRunner().invoke(cli, words)

    assert refused.exit_code == Exit.CONFIGURATION, refused.output
    assert "quantile is one of" in json.loads(refused.stdout)["error"]


@pytest.mark.parametrize("given", ["nan", "inf"])
def test_a_capacity_is_a_finite_number(given: str) -> None:
    words = ("--json", "pipeline", "forecast", "--store", "none.toml", "--capacity", given)

    refused = CliRunner().invoke(cli, words)

    assert refused.exit_code == Exit.CONFIGURATION, refused.output
    assert f"capacity is a finite number, got {given}" in json.loads(refused.output)["error"]
