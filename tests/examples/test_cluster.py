"""A job finds the same on this machine, on a cluster, and through Spark Connect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import SETTINGS
from tests.pipeline.rows import batch, row
from timeoutmgr.pipeline.stores import open_store
from timeoutmgr.pipeline.writers.loader import Loader

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline"
FOUND: dict[str, Any] = {"run_id": "a", "at": "noon", "messages": 2, "groups": [{"most": 1.5}]}


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({"run_id": "b", "at": "midnight"}, []),
        ({"messages": 3}, ["messages: 2 and 3"]),
        ({"groups": [{"most": 2}]}, ["groups.0.most: 1.5 and 2"]),
        ({"groups": []}, ["groups.0.most: 1.5 and nothing"]),
        ({"lost": 0}, ["lost: nothing and 0"]),
    ],
)
def test_differences_are_named_except_the_fields_of_a_run(
    changed: dict[str, Any], differing: list[str], tmp_path: Path
) -> None:
    for name, found in (("here", FOUND), ("there", FOUND | changed)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))

    ended = compare(tmp_path / "here.json", tmp_path / "there.json")

    assert ended.stderr.splitlines() == [f"here and there differ in {line}" for line in differing]
    assert ended.returncode == (1 if differing else 0)


def test_a_job_that_found_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "here.json").write_text("{}")
    (tmp_path / "there.json").write_text("")

    ended = compare(tmp_path / "here.json", tmp_path / "there.json")

    assert (ended.returncode, ended.stderr) == (1, "there found nothing: its job failed\n")


def compare(*paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PIPELINE / "same.py"), *map(str, paths)],
        capture_output=True,
        text=True,
    )


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_job_finds_the_same_here_on_a_cluster_and_through_spark_connect(
    postgres_url: str, unique: str, tmp_path: Path
) -> None:
    settings = tmp_path / "sales.toml"
    settings.write_text(SETTINGS.format(url=postgres_url, prefix=unique))
    store = open_store(str(settings))
    store.persistence.install()
    Loader(store).load([batch([row(number) for number in range(1_000)])])

    code, said = run(str(PIPELINE / "cluster.sh"), str(settings), "reconcile")

    assert code == 0, said
    assert said.count('"pending": 1000') == 3
    assert "# the same 3 times" in said
    store.persistence.close()


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
