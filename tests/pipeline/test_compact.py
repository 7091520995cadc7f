"""``compact``: fewer files, the same events."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from tests.pipeline.archives import DAY
from tests.pipeline.lakes import ids_in
from tests.pipeline.test_lake import events, names, reader
from timeoutmgr.cli.main import cli
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.errors import CommitConflict
from timeoutmgr.pipeline.jobs import compact as job
from timeoutmgr.pipeline.jobs.compact import CompactReport, compact
from timeoutmgr.pipeline.lake.delta import _AT_ONCE, _RETENTION
from timeoutmgr.pipeline.lake.places import open_table
from timeoutmgr.pipeline.lake_options import CompactOptions
from timeoutmgr.pipeline.options import DELTA


def scattered(place: str) -> None:
    """Write two days, each by two commits."""
    for batch in (1, 2):
        table = open_table(place)
        table.append("east", reader(events(range(batch * 4, batch * 4 + 4))), {"batch": batch})


def run(place: str, **options: Any) -> CompactReport:
    return compact(CompactOptions(lake=place, **options), clock=SystemClock())


def test_compact_leaves_a_file_for_each_partition_and_every_event(place: str) -> None:
    scattered(place)

    planned = run(place, dry_run=True)
    done = run(place)
    again = run(place)

    assert (planned.before, planned.scattered, planned.compacted, planned.after) == (4, 4, 0, 4)
    assert (done.compacted, done.after) == (4, 2)
    assert (again.scattered, again.compacted, again.after) == (0, 0, 2)
    assert ids_in(place) == names(range(4, 12))


def test_a_file_that_is_alone_in_its_partition_is_not_written_anew(place: str) -> None:
    scattered(place)
    alone = reader(events(range(8, 12), endpoint="billing", days=1))
    open_table(place).append("east", alone, {"batch": 3})

    done = run(place)

    assert (done.before, done.scattered, done.compacted, done.after) == (5, 4, 4, 3)


def test_a_writer_that_commits_meanwhile_goes_first(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "history")
    scattered(place)
    table, left = open_table(place), [1, 1]
    real = table.compact

    def overtaken(today: Any) -> int:
        if left:
            left.pop()
            raise CommitConflict("another writer has committed")
        return real(today)

    monkeypatch.setattr(table, "compact", overtaken)
    monkeypatch.setattr(job, "present_table", lambda _place, written: table)

    assert run(place).compacted == 4
    assert ids_in(place) == names(range(4, 12))


def test_after_an_erasure_that_was_killed_older_versions_keep_their_files_for_a_week(
    place_of: Callable[[str], str],
) -> None:
    place = place_of("delta")
    scattered(place)
    # As a process leaves the table that is killed while it forgets versions.
    DeltaTable(place.removeprefix(DELTA)).alter.set_table_properties(
        dict.fromkeys(_RETENTION, _AT_ONCE)
    )
    before = open_table(place)

    assert run(place).compacted > 0

    old = open_table(place, before.version)
    assert sum(each.num_rows for each in old.files().read(["id"])) == len(ids_in(place))


def test_today_is_left_to_its_writers(tmp_path: Any) -> None:
    place = str(tmp_path / "history")
    scattered(place)

    class AtFirstDay:
        def now(self) -> int:
            return to_micros(datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC))

    report = compact(CompactOptions(lake=place), clock=AtFirstDay())  # type: ignore[arg-type]  # it is asked for now alone

    assert (report.scattered, report.compacted, report.after) == (0, 0, 4)


@pytest.mark.parametrize("dropped", [("bucket",), ("event_date", "bucket")])
def test_a_table_that_is_partitioned_otherwise_is_left_to_the_engine_that_did_so(
    dropped: tuple[str, ...], place_of: Callable[[str], str]
) -> None:
    place = place_of("iceberg")
    scattered(place)
    properties: Any = Config().get_catalog_config("main")
    table = load_catalog("main", **properties).load_table("timeouts.history")
    with table.update_spec() as spec:
        for name in dropped:
            spec.remove_field(name)
    open_table(place).append("east", reader(events(range(4))), {"batch": 3})

    with pytest.raises(ConfigurationError, match="outside of the partitions event_date, bucket"):
        run(place)


def test_the_command_reports_in_json_and_refuses_a_missing_table(tmp_path: Any) -> None:
    place = str(tmp_path / "history")
    scattered(place)

    found = CliRunner().invoke(cli, ["--json", "pipeline", "compact", "--lake", place])
    missing = CliRunner().invoke(cli, ["pipeline", "compact", "--lake", f"{place}-none"])

    assert json.loads(found.stdout) == {
        "place": place,
        "before": 4,
        "scattered": 4,
        "compacted": 4,
        "after": 2,
    }
    assert missing.exit_code == 4
    assert isinstance(missing.exception, (SystemExit, ConfigurationError))
