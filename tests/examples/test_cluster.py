"""Each job finds the same on this machine, on a cluster, and through Spark Connect."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.archives import write_events
from tests.pipeline.conftest import SETTINGS
from tests.pipeline.rows import batch, row, settle
from timeoutmgr.cli.exits import Exit
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.views import INSTANT
from timeoutmgr.pipeline.writers.loader import Loader
from timeoutmgr.transport.sql.transport import SqlTransport

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline"
PLACES: Final = ("here", "cluster", "connect")
FOUND: dict[str, Any] = {"run_id": "a", "at": "noon", "messages": 2, "groups": [{"most": 1.5}]}


@pytest.fixture
def same() -> Iterator[ModuleType]:
    sys.path.insert(0, str(PIPELINE))
    try:
        yield importlib.import_module("same")
    finally:
        sys.path.remove(str(PIPELINE))
        sys.modules.pop("same", None)


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({"run_id": "b", "at": "midnight"}, []),
        ({"run": "b", "source": "sales", "target": "sales-moved"}, []),
        ({"messages": 3}, ["messages: 2 and 3"]),
        ({"groups": [{"most": 2}]}, ["groups.0.most: 1.5 and 2"]),
        ({"groups": []}, ["groups.0.most: 1.5 and nothing"]),
        ({"lost": 0}, ["lost: nothing and 0"]),
    ],
)
def test_differences_are_named_except_the_fields_of_a_run(
    same: ModuleType, changed: dict[str, Any], differing: list[str]
) -> None:
    here, there = (same.Ended(json.dumps(one), 0, 1.0) for one in (FOUND, FOUND | changed))

    found = same.problems({"here": here, "cluster": there})

    assert found == [f"here and cluster differ in {line}" for line in differing]


def test_the_table_names_a_job_that_failed_in_a_place(same: ModuleType) -> None:
    here, there = same.Ended("{}", 0, 1.4), same.Ended("", 4, 2.0)
    failed, alone = {"here": here, "cluster": there}, {"here": here}

    text = same.table(
        {"reconcile --late 1s": (failed, same.problems(failed)), "compact": (alone, [])}
    )

    assert [line.split("  ")[0] for line in text.splitlines()] == ["job", "reconcile", "compact"]
    assert "0 in 1 s      4 in 2 s" in text
    assert "cluster found nothing: its job failed" in text
    assert text.endswith("ran, needs no Spark")


# A job that changes something has stores of its own in each place.
JOBS: Final = (
    *("forecast", "reconcile", "lateness", "report"),
    "schedule {folder}/rows.parquet --dataset spring --store {folder}/{{place}}.toml",
    "archive --to {folder}/lake/history --older-than 1d --with-pending",
    *("stream --to {folder}/lake/history --once", "compact --lake {folder}/lake/history"),
    "restore --lake {folder}/lake/history --store {folder}/restored.toml",
    "erase --lake {folder}/lake/history --saga-ids saga-2",
)
ON_SPARK: Final = ("reconcile", "lateness", "report", "schedule")
STORES: Final = ("sales", "restored", *(f"{one}{of}" for one in PLACES for of in ("", "-moved")))


@pytest.mark.cluster
@pytest.mark.timeout(1_800)
def test_each_job_finds_the_same_here_on_a_cluster_and_through_spark_connect(
    postgres_url: str, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / f"{name}.toml" for name in STORES]
    stores = [installed(postgres_url, f"{unique}{at}", one) for at, one in enumerate(paths)]
    Loader(stores[0]).load([batch([row(number) for number in range(1_000)])])
    write_events(stores[0], range(40))
    settle(stores[0])
    pq.write_table(to_schedule(100), tmp_path / "rows.parquet")
    jobs = [one.format(folder=tmp_path) for one in JOBS]

    code, said = run(str(PIPELINE / "cluster.sh"), str(paths[0]), *jobs)

    for store in stores:
        store.persistence.close()
    lines = said[said.rindex("\njob ") :].strip().splitlines()
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert code == Exit.FINDINGS, said  # events of long ago are late
    assert [line.split()[0] for line in lines[1:]] == [job.split()[0] for job in JOBS]
    for line in lines[1:]:
        job = line.split()[0]
        assert line.endswith("the same 3 times" if job in ON_SPARK else "needs no Spark"), said
        codes = set(map(int, re.findall(r"(\d+) in \d+ s", line)))
        assert codes == {Exit.FINDINGS if job == "lateness" else Exit.OK}, said
    assert said.count('"pending": 1000') >= 6  # verdicts of reconcile and of report
    assert said.count('"new": 100') == 3


def to_schedule(count: int) -> pa.Table:
    due = datetime.now(UTC) + timedelta(days=1)
    texts = {"destination": "billing", "body": "{}", "message_type": "Reminder"}
    columns: dict[str, Any] = {name: [text] * count for name, text in texts.items()}
    columns["key"] = [f"k{number}" for number in range(count)]
    return pa.table(columns | {"due": pa.array([due] * count, INSTANT)})


def installed(url: str, prefix: str, path: Path) -> Store:
    """Return a new store, whose settings are in the file *path*, beside the queue of all stores."""
    path.write_text(SETTINGS.format(url=url, prefix=prefix).replace("memory://", url))
    with closing(SqlTransport(url)) as transport:
        transport.install()
        transport.session().create_queues(["billing"])
    store = open_store(str(path))
    store.persistence.install()
    return store


def run(*command: str) -> tuple[int, str]:
    """Run the script *command*, and end all that it started if this is ended."""
    with subprocess.Popen(
        ["sh", *command],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            said, _ = running.communicate()
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    return running.returncode, said
