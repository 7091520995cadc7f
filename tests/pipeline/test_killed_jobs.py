"""``archive``, ``restore``, ``erase`` and ``compact`` are killed before each change they make."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.forkserver_client import ForkServer, Streams
from tests.pipeline.archives import DAY, write_events
from tests.pipeline.killed_jobs import ENTRY
from tests.pipeline.lakes import S3, ids_in
from tests.pipeline.rows import count, read, row
from tests.pipeline.test_compact import scattered
from tests.pipeline.test_erase import CANARY, OF_PERSON, erased, files_with, fill
from tests.pipeline.test_lake import names
from tests.pipeline.test_restore import archived, end, facts, filled, restored, store_in
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.jobs.compact import compact
from timeoutmgr.pipeline.lake_options import CompactOptions
from timeoutmgr.pipeline.stores import Store, identity


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed file, to be copied."""
    return store_in(tmp_path_factory.mktemp("empty"), "empty", None)[1]


def was_killed(
    job_server: ForkServer,
    folder: Path,
    job: str,
    step: int,
    *,
    s3: S3 | None = None,
    **options: Any,
) -> bool:
    """Run *job* in a process that is to die at *step*; return whether it came so far."""
    output = folder / "output.txt"
    given = {"job": job, "die_at": step, "options": options}
    given |= {"s3": s3 and s3.url, "environ": dict(s3.environ) if s3 else {}}
    code = job_server.start(ENTRY, [json.dumps(given)], Streams(output), {}).wait(60)
    if s3 is not None:
        s3.kill(0, 0)
    assert code in (0, -signal.SIGKILL), output.read_text()
    return code != 0


# A request has a step before and a step after: every other is killed, and of a commit of Iceberg,
# which has three times as many, every third.
@pytest.mark.parametrize(
    ("kind", "steps", "stride"), [("delta-s3", 8, 2), ("iceberg-s3", 8, 3), ("parquet", 3, 1)]
)
def test_each_event_counts_once_wherever_a_commit_of_archive_is_killed(
    kind: str,
    steps: int,
    stride: int,
    job_server: ForkServer,
    sqlite: Store,
    place_of: Callable[[str], str],
    tmp_path: Path,
    s3: S3,
) -> None:
    place, server = place_of(kind), None if kind == "parquet" else s3
    options: dict[str, Any] = {"store": sqlite.name, "to": place, "older_than": 30, "batch": 5}
    for step in itertools.count(stride, stride):
        written = 2 * step // stride
        write_events(sqlite, range(written - 2, written), at=to_micros(DAY))
        died = was_killed(job_server, tmp_path, "archive", step, s3=server, **options)
        seen, expected = ids_in(place), {f"id{number}" for number in range(written)}

        # No event is missing at any moment, and none is there twice.
        assert {*seen, *(one["id"] for one in read(sqlite, "history"))} == expected
        assert len(seen) == len({*seen}), f"died at step {step}"
        if not died:
            break

    assert step > steps
    assert ids_in(place) == sorted(expected)
    assert count(sqlite, "history") == 0


def test_a_restore_that_is_killed_anywhere_is_run_again_to_the_same_end(
    job_server: ForkServer, empty: Path, tmp_path: Path
) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    filled(source, {1, 2}, {7: "dispatched", 8: "cancelled"})
    place = str(tmp_path / "history")
    archived(source, place)
    expected, deaths = facts(source), 0
    for step in itertools.count(1):
        target, _ = store_in(tmp_path, f"target{step}", empty)
        options: dict[str, Any] = {"store": target.name, "lake": place, "batch": 4}
        if not was_killed(job_server, tmp_path, "restore", step, **options):
            break
        deaths += 1
        restored(target, place)
        assert facts(target) == expected, f"died at step {step}"
        target.persistence.close()

    assert deaths >= 10


def test_an_erase_that_is_killed_anywhere_is_run_again_to_the_same_end(
    job_server: ForkServer, empty: Path, tmp_path: Path
) -> None:
    whole, deaths = tmp_path / "whole", 0
    whole.mkdir()
    store, _ = store_in(whole, "store", empty)
    fill(store)
    archived(store, str(whole / "lake" / "history"))
    name = identity(store)
    end(store, 1, "dispatched")  # so that the table of pending timeouts alone names its saga
    store.persistence.close()  # the file is copied, and then written anew
    for step in itertools.count(1):
        folder = tmp_path / str(step)
        shutil.copytree(whole, folder)
        store, _ = store_in(folder, "store", whole / "store.db")
        place = str(folder / "lake" / "history")
        selection: dict[str, Any] = {"saga_ids": [OF_PERSON["saga_id"]], "lake": place}
        selection["of_store"] = name  # it was archived elsewhere
        if not was_killed(job_server, folder, "erase", step, store=store.name, **selection):
            break
        deaths += 1
        left = erased(store, lake=place, saga_ids=(OF_PERSON["saga_id"],), of_store=name).left
        states = {one["id"]: one["state"] for one in read(store, "keys")}
        store.persistence.close()

        assert files_with(folder, CANARY) == [], f"died at step {step}"
        assert (left, [states[row(number)["id"]] for number in range(1, 5)]) == (
            0,
            ["erased", "erased", "pending", "pending"],
        ), f"died at step {step}"

    assert deaths >= 15


# A request has a step before and a step after: every other is killed.
@pytest.mark.parametrize(("kind", "stride"), [("parquet", 1), ("delta-s3", 2)])
def test_a_compaction_that_is_killed_anywhere_is_run_again_to_the_same_end(
    kind: str,
    stride: int,
    job_server: ForkServer,
    place_of: Callable[[str], str],
    tmp_path: Path,
    s3: S3,
) -> None:
    place, deaths = place_of(kind), 0
    server = s3 if kind == "delta-s3" else None
    expected = names(range(4, 12))
    for step in itertools.count(1, stride):
        here = f"{place}{step}"
        scattered(here)
        if not was_killed(job_server, tmp_path, "compact", step, s3=server, lake=here):
            break
        deaths += 1
        assert ids_in(here) == expected, f"died at step {step}"
        again = compact(CompactOptions(lake=here), clock=SystemClock())
        assert (again.after, ids_in(here)) == (2, expected), f"died at step {step}"

    assert deaths >= 3
