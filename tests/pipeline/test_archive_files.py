from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from timeoutmgr.pipeline.views import HISTORY
from timeoutmgr.pipeline.writers import archive_files as writing
from timeoutmgr.pipeline.writers.archive_files import (
    ArchiveFiles,
    ArchiveFilesWriter,
    escaped,
    runs,
)

DAY = date(2024, 3, 1)
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
ROWS = pa.schema([*HISTORY, pa.field("event_date", pa.date32())])


def batch(of: Sequence[tuple[str, int]]) -> pa.RecordBatch:
    """Return a row for each endpoint and number of a day in *of*."""
    rows = [
        {
            **{"sequence": at, "id": f"id{at}", "event": "dispatched", "node": "n", "attempt": 0},
            **{"at": NOON + timedelta(days=day), "due": NOON, "destination": "q"},
            **{"endpoint": endpoint, "event_date": DAY + timedelta(days=day)},
        }
        for at, (endpoint, day) in enumerate(of)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ROWS)


def writer(folder: Path) -> ArchiveFilesWriter:
    """Return a writer as a task gets it."""
    source = ArchiveFiles({"path": str(folder)})
    ours = source.writer(StructType(), overwrite=False)
    packed = cloudpickle.dumps(ours)  # type: ignore[no-untyped-call]  # has no types
    made: ArchiveFilesWriter = cloudpickle.loads(packed)
    return made


def that_count(folder: Path) -> dict[str, list[int]]:
    """Return the sequences in each folder's files, of files whose names are read."""
    return {
        str(path.parent.relative_to(folder)): pq.ParquetFile(path).read()["sequence"].to_pylist()
        for path in sorted(folder.rglob("part-*.parquet"))
    }


def test_rows_that_follow_each_other_on_one_day_are_one_file(tmp_path: Path) -> None:
    ours = writer(tmp_path)
    first, second = batch([("e", 0), ("e", 0), ("e", 1)]), batch([("e", 1), ("f/g", 1)])

    ours.commit([ours.write(iter([first, second]))])

    assert that_count(tmp_path) == {
        "endpoint=e/event_date=2024-03-01": [0, 1],
        "endpoint=e/event_date=2024-03-02": [2, 0],
        "endpoint=f%2Fg/event_date=2024-03-02": [1],
    }


def test_a_day_that_comes_back_is_a_second_file(tmp_path: Path) -> None:
    ours = writer(tmp_path)

    ours.commit([ours.write(iter([batch([("e", 0), ("f", 0), ("e", 0)])]))])

    files = list(tmp_path.rglob("part-*.parquet"))
    assert len(files) == 3
    assert sum(pq.read_metadata(one).num_rows for one in files) == 3


def test_only_files_that_a_task_reported_count(tmp_path: Path) -> None:
    ours = writer(tmp_path)
    rows = batch([("e", 0), ("f", 0)])

    class Died(Exception):
        pass

    def dies() -> object:
        yield rows
        raise Died

    with pytest.raises(Died):
        ours.write(dies())  # type: ignore[arg-type]  # an iterator that dies is the point
    ours.write(iter([rows]))  # the attempt of which Spark does not take the answer
    ours.commit([ours.write(iter([rows])), None])

    assert len(list(tmp_path.rglob("*.parquet"))) == 6
    assert that_count(tmp_path) == {
        "endpoint=e/event_date=2024-03-01": [0],
        "endpoint=f/event_date=2024-03-01": [1],
    }


def test_a_task_that_is_given_nothing_writes_nothing(tmp_path: Path) -> None:
    ours = writer(tmp_path)

    ours.commit([ours.write(iter([])), ours.write(iter([batch([])]))])

    assert list(tmp_path.iterdir()) == []


def test_no_more_rows_are_held_than_make_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_GROUP_ROWS", 3)
    ours = writer(tmp_path)

    ours.commit([ours.write(iter([batch([("e", 0)] * 2)] * 4))])

    (path,) = tmp_path.rglob("part-*.parquet")
    found = pq.read_metadata(path)
    assert [found.row_group(at).num_rows for at in range(found.num_row_groups)] == [4, 4]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ([], []),
        ([("e", 0)], [(0, 1)]),
        ([("e", 0), ("e", 0)], [(0, 2)]),
        ([("e", 0), ("f", 0), ("f", 1)], [(0, 1), (1, 2), (2, 3)]),
        ([("e", 0), ("f", 1), ("f", 1)], [(0, 1), (1, 3)]),
    ],
)
def test_a_run_ends_where_endpoint_or_day_is_another(
    of: list[tuple[str, int]], expected: list[tuple[int, int]]
) -> None:
    assert list(runs(batch(of))) == expected


@pytest.mark.parametrize(
    ("value", "name"),
    [("sales", "sales"), ("ship/ping", "ship%2Fping"), ("ü 1%", "ü 1%25"), ("a\n", "a%0A")],
)
def test_a_name_of_a_folder_is_as_spark_escapes_it(value: str, name: str) -> None:
    assert escaped(value) == name


def test_a_missing_and_an_empty_name_have_the_same_folder_name() -> None:
    assert escaped(None) == escaped("") == "__HIVE_DEFAULT_PARTITION__"
