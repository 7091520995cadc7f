"""The history table of a lake: commits that count once, readers, and writers of a store."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from tests.pipeline.archives import DAY, write_events
from tests.pipeline.lakes import ON_S3, S3, S3_TOO, Watcher, ids_in
from tests.pipeline.rows import settle
from tests.support.clock import FakeClock
from tests.support.limits import no_room_beyond
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError, StorageUnavailable
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.errors import CommitConflict, PipelineUnavailable
from timeoutmgr.pipeline.lake import parquet
from timeoutmgr.pipeline.lake.parquet import ParquetHistory
from timeoutmgr.pipeline.lake.places import open_table, present_table
from timeoutmgr.pipeline.lake.table import WRITTEN, Doomed, HistoryTable, Where, as_written
from timeoutmgr.pipeline.lake.writer import CountedRows, SequenceWriter, TransactionWriter, tried
from timeoutmgr.pipeline.readers.transactions import index_transactions
from timeoutmgr.pipeline.source import TimeoutsDataSource
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import HISTORY

LATER = date(2030, 1, 1)
ROW_0 = "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000"
"""The bitmap of the row 0 alone, as a log of Delta has it."""


def events(numbers: range, endpoint: str = "sales", days: int = 2) -> pa.RecordBatch:
    rows = [
        {
            **{"sequence": number, "id": f"id{number}", "event": "dispatched", "attempt": 0},
            **{"at": DAY + timedelta(days=number % days), "due": DAY, "endpoint": endpoint},
            **{"destination": f"q{number % 5}", "node": "n"},
        }
        for number in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, schema=HISTORY)


def reader(*batches: pa.RecordBatch, store: str = "east") -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(WRITTEN, [as_written(one, store) for one in batches])


def append(table: HistoryTable, numbers: range, batch: int) -> None:
    table.append("east", reader(events(numbers)), {"batch": batch})
    table.refresh()


def names(numbers: range) -> list[str]:
    return sorted(f"id{number}" for number in numbers)


CALLS: dict[str, Callable[[HistoryTable], object]] = {
    "refresh": lambda table: table.refresh(),
    "append": lambda table: append(table, range(8, 12), 3),
    "remove": lambda table: table.remove(Doomed("sequence", (5,))),
    "compact": lambda table: table.compact(date.max),
    "read": ids_in,
}


def test_a_commit_adds_its_events_and_its_marks_at_once(place: str, watcher: Watcher) -> None:
    table = open_table(place)
    seen: list[tuple[list[str], int | None]] = []

    def watched() -> Iterator[pa.RecordBatch]:
        for numbers in (range(4, 6), range(6, 8)):
            yield as_written(events(numbers), "east")
            seen.append(watcher.report(place))

    table.append("east", reader(events(range(4))), {"batch": 1, "xid": 10})
    table.refresh()
    table.append("east", pa.RecordBatchReader.from_batches(WRITTEN, watched()), {"batch": 2})

    again = open_table(place)
    assert seen == [(names(range(4)), 1)] * 2
    assert ids_in(again) == names(range(8))
    assert (dict(again.marks("east")), dict(again.marks("west"))) == ({"batch": 2, "xid": 10}, {})


def test_a_commit_may_have_events_of_more_than_a_thousand_days(tmp_path: Path) -> None:
    table = ParquetHistory(str(tmp_path))  # of the formats, the one that Arrow writes

    table.append("east", reader(events(range(1_025), days=1_025)), {"batch": 1})

    assert ids_in(table) == names(range(1_025))


@pytest.mark.parametrize("kind", S3_TOO)
def test_of_two_writers_that_begin_at_one_version_one_commits(
    kind: str, place_of: Callable[[str], str]
) -> None:
    place = place_of(kind)
    for batch in (1, 2):  # the first creates the table
        first, second = open_table(place), open_table(place)
        numbers = range(batch * 4, batch * 4 + 4)
        first.append("east", reader(events(numbers)), {"batch": batch})

        with pytest.raises(CommitConflict):
            second.append("east", reader(events(numbers)), {"batch": batch})

    second.refresh()
    assert second.marks("east")["batch"] == 2
    assert ids_in(second) == names(range(4, 12))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ON_S3)
def test_a_service_that_refuses_is_said_in_a_sentence_and_loses_nothing(
    kind: str, place_of: Callable[[str], str], s3: S3, call: str
) -> None:
    table = open_table(place_of(kind))
    append(table, range(4), 1)
    append(table, range(4, 8), 2)

    with s3.refusing(), pytest.raises(StorageUnavailable, match="be read or written") as refused:
        CALLS[call](table)

    assert not re.search(r"[\x1b\n]", str(refused.value))
    assert ids_in(table.place) == names(range(8))


def test_versions_that_a_service_keeps_are_not_called_forgotten(
    place_of: Callable[[str], str], s3: S3
) -> None:
    table = open_table(place_of("delta-s3"))
    append(table, range(4), 1)

    with s3.refusing(), pytest.raises(StorageUnavailable, match="403 Forbidden"):
        table.forget_versions()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    place = str(tmp_path / "history")
    append(open_table(place), range(4), 1)
    append(open_table(place), range(4, 8), 2)
    broken = Path(max(open_table(place).files().paths))
    broken.write_bytes(b"PAR1")

    for call in (ids_in, lambda table: table.compact(LATER), CALLS["remove"]):
        with pytest.raises(StorageUnavailable, match=rf"read or written: .*{broken.name}"):
            call(open_table(place))


def test_an_outage_of_the_database_is_not_said_of_the_table(place: str) -> None:
    def cut_off() -> Iterator[pa.RecordBatch]:
        yield as_written(events(range(4)), "east")
        raise StorageUnavailable("the database is away")

    table = open_table(place)

    with pytest.raises(StorageUnavailable, match=r"^the database is away$"):
        CountedRows(WRITTEN, cut_off()).append_to(table, "east", {"batch": 1})

    table.refresh()
    assert (ids_in(table), table.marks("east")) == ([], {})


def test_a_folder_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    table = open_table(str(tmp_path / "history"))
    (tmp_path / "history").write_text("a file")

    with pytest.raises(StorageUnavailable, match=r"history cannot be read or written: .*history"):
        append(table, range(4), 1)


def test_a_delta_table_of_other_columns_is_no_outage(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"x": [1]}))
    table = open_table(f"delta:{tmp_path}")

    with pytest.raises(ConfigurationError, match="other columns than a history has; name another"):
        append(table, range(4), 1)

    assert DeltaTable(tmp_path).version() == 0


def test_an_iceberg_table_of_other_columns_is_refused(place_of: Callable[[str], str]) -> None:
    place = place_of("iceberg")
    catalog = load_catalog("main", **as_configured())
    catalog.create_namespace("timeouts")
    catalog.create_table("timeouts.history", pa.schema([("x", pa.int64())]))

    with pytest.raises(ConfigurationError, match="other columns than a history has; name another"):
        open_table(place)


@pytest.mark.parametrize("name", ["history", "timeouts.", ".history", "timeouts..history"])
def test_an_iceberg_table_without_a_namespace_or_name_is_refused(
    place_of: Callable[[str], str], name: str
) -> None:
    place_of("iceberg")

    with pytest.raises(ConfigurationError, match=r"an Iceberg table is .*NAMESPACE\.TABLE, got"):
        open_table(f"iceberg:main.{name}")


def as_configured() -> Any:
    return Config().get_catalog_config("main")


def test_a_reader_stays_at_its_version(place: str) -> None:
    table = open_table(place)
    table.append("east", reader(events(range(4))), {"batch": 1})
    held = open_table(place)
    planned = held.files()
    table.refresh()
    table.append("east", reader(events(range(4, 8))), {"batch": 2})
    table.refresh()

    replaced = table.compact(LATER)

    at_first = open_table(place, held.version)
    read = pa.Table.from_batches(planned.read(["id"]))["id"].to_pylist()
    assert replaced == 4  # two days, each written twice
    assert sorted(read) == ids_in(held) == ids_in(at_first) == names(range(4))
    assert ids_in(place) == names(range(8))
    assert open_table(place).marks("east") == {"batch": 2}
    assert len(open_table(place).files().paths) == 2


class Killed(BaseException):
    """The end of a process, as far as its objects see it."""


def killed(*_given: object) -> NoReturn:
    raise Killed


@pytest.mark.parametrize(
    ("dies_at", "log_stays"),
    [("create_checkpoint", "interval 90 days"), ("alter", "interval 30 days")],
)
def test_delta_keeps_versions_again_after_a_run_that_died_while_it_forgot_them(
    dies_at: str, log_stays: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, log = f"delta:{tmp_path}/history", "delta.logRetentionDuration"
    append(open_table(place), range(4), 1)
    alter = DeltaTable(f"{tmp_path}/history").alter
    alter.set_table_properties({log: "interval 90 days"})
    table = open_table(place)
    calls = iter([alter])
    ends: dict[str, object] = {
        "create_checkpoint": killed,
        "alter": property(lambda _table: next(calls, None) or killed()),  # at its second call
    }
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, dies_at, ends[dies_at])
        with pytest.raises(Killed):
            table.forget_versions()

    open_table(place).forget_versions()

    properties = DeltaTable(f"{tmp_path}/history").metadata().configuration
    assert properties[log] == log_stays
    assert properties["delta.deletedFileRetentionDuration"] == "interval 7 days"


def test_files_that_are_not_committed_yet_outlive_the_forgotten_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "history")
    open_table(place).append("east", reader(events(range(4))), {"batch": 1})
    table, other, late = open_table(place), open_table(place), open_table(place)
    real = ParquetHistory._commit

    def overtaken(*given: Any) -> bool:
        monkeypatch.setattr(ParquetHistory, "_commit", real)
        other.forget_versions()
        return real(*given)

    monkeypatch.setattr(ParquetHistory, "_commit", overtaken)
    table.append("east", reader(events(range(4, 8))), {"batch": 2})
    with pytest.raises(CommitConflict):
        late.append("east", reader(events(range(4, 8))), {"batch": 2})

    written = {str(path) for path in tmp_path.rglob("*.parquet")}
    assert written == {*open_table(place).files().paths}
    assert ids_in(place) == names(range(8))


def test_a_commit_of_plain_files_follows_those_of_other_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "history")
    open_table(place).append("east", reader(events(range(4))), {"batch": 1})
    table, real = ParquetHistory(place), ParquetHistory._commit
    commits = iter(range(30))

    def overtaken(self: ParquetHistory, *given: Any) -> bool:
        if self is table and (number := next(commits, None)) is not None:
            other = ParquetHistory(place)
            other.append("west", reader(events(range(10 + number, 11 + number))), {"batch": number})
            for path in Path(place).rglob("*.parquet"):
                if str(path) not in other.files().paths:
                    os.utime(path, (1, 1))  # as if it took long to write
        return real(self, *given)

    monkeypatch.setattr(ParquetHistory, "_commit", overtaken)
    table.append("east", reader(events(range(4, 8))), {"batch": 2})

    assert ids_in(place) == sorted(names(range(8)) + names(range(10, 40)))
    assert {str(path) for path in tmp_path.rglob("*.parquet")} == {*open_table(place).files().paths}
    assert open_table(place).marks("east") == {"batch": 2}


def erase_beside(place: str) -> None:
    """Remove an event of the table, and all files that its newest version lacks."""
    other = open_table(place)
    other.remove(Doomed("id", ("id1",)))
    other.refresh()
    for path in Path(place).rglob("*.parquet"):
        if str(path) not in other.files().paths:
            os.utime(path, (1, 1))  # as if it took long to write
    other.forget_versions()


def test_a_writer_whose_files_an_erasure_removes_writes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "history")
    open_table(place).append("east", reader(events(range(4))), {"batch": 1})
    table = ParquetHistory(place)
    real = table._write

    def overtaken(batches: pa.RecordBatchReader) -> list[str]:
        monkeypatch.setattr(table, "_write", real)
        written = real(batches)
        erase_beside(place)
        return written

    monkeypatch.setattr(table, "_write", overtaken)
    tried(table, lambda: table.append("west", reader(events(range(4, 8))), {"batch": 1}))

    assert ids_in(place) == ["id0", *names(range(2, 8))]
    assert {str(path) for path in tmp_path.rglob("*.parquet")} == {*table.files().paths}


@pytest.mark.parametrize("step", ["_replace", "_write"])
def test_a_compaction_beside_an_erasure_is_tried_again_and_leaves_no_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "history")
    for batch in (1, 2):
        numbers = range(batch * 4 - 4, batch * 4)
        open_table(place).append("east", reader(events(numbers)), {"batch": batch})
    table = ParquetHistory(place)
    real = getattr(table, step)

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(table, step, real)
        erase_beside(place)
        return real(*given)

    monkeypatch.setattr(table, step, overtaken)
    with pytest.raises(CommitConflict, match="meanwhile"):
        table.compact(LATER)

    assert {str(path) for path in tmp_path.rglob("*.parquet")} == {*open_table(place).files().paths}
    assert tried(table, lambda: table.compact(LATER)) == 4
    assert ids_in(place) == ["id0", *names(range(2, 8))]


def test_a_reader_whose_files_an_erasure_removes_has_to_run_again(tmp_path: Path) -> None:
    table = ParquetHistory(str(tmp_path))
    rows = as_written(events(range(4)), "east")
    table.append("east", pa.RecordBatchReader.from_batches(WRITTEN, [rows]), {"batch": 1})
    files = open_table(str(tmp_path)).files()
    for path in files.paths:
        Path(path).unlink()

    with pytest.raises(StorageUnavailable, match="run it again"):
        [*files.read(["id"])]


@pytest.mark.parametrize("kind", [FileNotFoundError, StorageUnavailable])
def test_rows_whose_rest_is_missing_leave_no_file(tmp_path: Path, kind: type[Exception]) -> None:
    table = ParquetHistory(str(tmp_path))

    def cut_off() -> Iterator[pa.RecordBatch]:
        while not [*tmp_path.rglob("*.parquet")]:
            yield as_written(events(range(4)), "east")
        raise kind("removed by an erasure, or the store is away")

    with pytest.raises(StorageUnavailable, match="removed by an erasure"):
        table.append("east", pa.RecordBatchReader.from_batches(WRITTEN, cut_off()), {"batch": 1})

    assert [*tmp_path.rglob("*.parquet")] == []


def test_a_commit_that_has_no_room_leaves_no_file(tmp_path: Path) -> None:
    table = ParquetHistory(str(tmp_path))
    append(table, range(10), 1)
    kept = {*tmp_path.rglob("*.parquet")}

    with no_room_beyond(8_192), pytest.raises(StorageUnavailable, match="File too large"):
        append(table, range(10, 20_000), 2)

    assert {*tmp_path.rglob("*.parquet")} == kept
    assert ids_in(table) == names(range(10))


def test_a_link_whose_answer_was_lost_on_its_way_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, real = ParquetHistory(str(tmp_path)), os.link

    def linked_and_tried_again(*given: Any) -> None:
        real(*given)
        real(*given)

    monkeypatch.setattr(os, "link", linked_and_tried_again)
    append(table, range(4), 1)

    assert ids_in(table) == ids_in(str(tmp_path)) == names(range(4))


def test_two_erasures_may_remove_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ParquetHistory(str(tmp_path))
    table.append("east", reader(events(range(4))), {"batch": 1})
    table.remove(Doomed("id", ("id1",)))
    real = Path.unlink

    def overtaken(path: Path, **given: Any) -> None:
        for _ in "ab":
            real(path, **given)

    monkeypatch.setattr(Path, "unlink", overtaken)
    table.forget_versions()

    assert {str(path) for path in tmp_path.rglob("*.parquet")} == {*table.files().paths}


def test_days_from_the_border_on_are_not_compacted(place: str) -> None:
    for batch in (1, 2):
        table = open_table(place)
        table.append("east", reader(events(range(batch * 4, batch * 4 + 4))), {"batch": batch})
    table = open_table(place)

    assert table.compact(DAY.date()) == 0
    assert table.compact(DAY.date() + timedelta(days=1)) == 2
    assert ids_in(place) == names(range(4, 12))


def test_a_condition_names_the_files_that_are_read(place: str) -> None:
    table = open_table(place)
    both = [events(range(4)), events(range(4, 8), endpoint="billing")]
    table.append("east", reader(*both), {"batch": 1})
    table.refresh()
    table.append("west", reader(events(range(8, 10)), store="west"), {"batch": 1})
    table.refresh()
    second = to_micros(DAY + timedelta(days=1))
    found = {
        "day": Where(store="east", begin=second),
        "before": Where(end=second),
        "endpoint": Where(endpoint="billing"),
        "destination": Where(destination="q3", store="east"),
        "west": Where(store="west"),
        "sequences": Where(sequences=(2, 5)),
    }

    assert {name: ids_in(table, where) for name, where in found.items()} == {
        "day": ["id1", "id3", "id5", "id7"],
        "before": ["id0", "id2", "id4", "id6", "id8"],
        "endpoint": ["id4", "id5", "id6", "id7"],
        "destination": ["id3"],
        "west": ["id8", "id9"],
        "sequences": ["id2", "id3", "id4", "id5"],
    }
    assert len(table.files().paths) == 6
    assert len(table.files(found["day"]).paths) == 3
    assert len(table.files(found["endpoint"]).paths) == 2


def test_a_table_that_is_missing_is_not_read(place: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no history table at"):
        present_table(place)


@pytest.mark.parametrize("version", [7, 2**70])
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_version_that_a_table_lacks_is_not_read_as_another(
    kind: str, version: int, place_of: Callable[[str], str]
) -> None:
    place = place_of(kind)
    table = open_table(place)
    for batch in range(2):
        with pytest.raises(ConfigurationError, match=f"table with a version {version} at"):
            present_table(place, version)
        append(table, range(4), batch)

    assert present_table(place, table.version).version == table.version


@pytest.mark.parametrize(
    ("first", "second", "remedy"),
    [
        ("delta", "parquet", "write its place as delta:/"),
        ("iceberg", "parquet", "write its place as iceberg:CATALOG"),
        ("parquet", "delta", "write its place as /.* move its folders manifests and data into a"),
        ("parquet", "iceberg", "write its place as /"),
    ],
)
def test_a_table_in_the_folder_of_a_table_of_another_format_is_refused(
    first: str, second: str, remedy: str, place_of: Callable[[str], str], tmp_path: Path
) -> None:
    folder = f"{tmp_path}/timeouts/history"
    places = {"delta": f"delta:{folder}", "parquet": folder, "iceberg": place_of("iceberg")}
    open_table(places[first]).append("east", reader(events(range(2))), {"batch": 1})

    with pytest.raises(ConfigurationError, match=remedy):
        open_table(places[second]).append("west", reader(events(range(2))), {"batch": 1})

    assert ids_in(places[first]) == names(range(2))


@pytest.mark.parametrize("kind", S3_TOO)
def test_other_tools_read_the_table(
    kind: str, place_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(kind)
    table = open_table(place)
    table.append("east", reader(events(range(6))), {"batch": 1})
    table.refresh()
    if kind.startswith("delta"):
        rows = DeltaTable(place.removeprefix("delta:")).to_pyarrow_table()
    elif kind.startswith("iceberg"):
        properties: Any = Config().get_catalog_config("main")
        catalog = load_catalog("main", **properties)
        rows = catalog.load_table("timeouts.history").scan().to_arrow()
    else:
        files = [*table.files().paths]
        rows = duckdb.read_parquet(files, hive_partitioning=True).to_arrow_table()

    counted = duckdb.sql("SELECT event_date, count(*) FROM rows GROUP BY ALL ORDER BY ALL")
    assert counted is not None

    assert sorted(rows["id"].to_pylist()) == names(range(6))
    assert counted.fetchall() == [(DAY.date(), 3), (DAY.date() + timedelta(days=1), 3)]


@pytest.mark.parametrize("kind", S3_TOO)
def test_tasks_of_spark_read_each_event_once(kind: str, place_of: Callable[[str], str]) -> None:
    place = place_of(kind)
    open_table(place).append("east", reader(events(range(6), days=3)), {"batch": 1})
    options = {"table": place, "at_from": DAY.isoformat(), "partitions": "2"}
    source = TimeoutsDataSource(options | {"at_before": (DAY + timedelta(days=2)).isoformat()})
    schema = StructType([StructField("id", StringType())])
    made = pickle.loads(cloudpickle.dumps(source.reader(schema)))  # type: ignore[no-untyped-call]  # has no types

    parts = pickle.loads(cloudpickle.dumps(made.partitions()))  # type: ignore[no-untyped-call]  # has no types
    found = [batch for part in parts for batch in made.read(part)]

    assert len(parts) == 2
    assert {batch.schema.names[0] for batch in found} == {"id"}
    read = sorted(id_ for batch in found for id_ in batch["id"].to_pylist())
    assert read == ["id0", "id1", "id3", "id4"]


def test_a_store_without_transactions_writes_what_the_table_lacks(
    sqlite: Store, place: str
) -> None:
    write_events(sqlite, range(10))
    cutoff = to_micros(DAY + timedelta(days=30))

    def written(most: int) -> list[int]:
        writer = SequenceWriter(store=sqlite, table=open_table(place), most=most, cutoff=cutoff)
        return [*iter(writer.step, None)]

    first = written(5)
    write_events(sqlite, range(10, 15))
    write_events(sqlite, [99], at=cutoff)
    again = [*written(100), *written(100)]

    assert (sum(first), again) == (10, [5])
    assert ids_in(place) == names(range(15))


def test_transactions_are_written_once_each_in_their_order(postgres: Store, tmp_path: Path) -> None:
    place = f"delta:{tmp_path}/history"
    index_transactions(postgres)
    reached: list[int] = []

    def written() -> list[int]:
        writer = TransactionWriter(
            store=postgres, table=open_table(place), most=15, reached=reached.append
        )
        return [*iter(writer.step, None)]

    for number in range(4):
        write_events(postgres, range(number * 10, number * 10 + 10))
    settle(postgres)
    first = written()
    write_events(postgres, range(40, 45))
    settle(postgres)

    second = [*written(), *written()]

    assert (first, second) == ([10, 10, 10, 10], [5])
    assert reached == sorted(reached)
    assert ids_in(place) == names(range(45))


def test_a_transaction_of_more_events_than_a_batch_is_written_whole(
    postgres: Store, tmp_path: Path
) -> None:
    place = f"delta:{tmp_path}/history"
    index_transactions(postgres)
    write_events(postgres, range(40))
    write_events(postgres, range(40, 42))
    settle(postgres)
    writer = TransactionWriter(store=postgres, table=open_table(place), most=15)

    written = [*iter(writer.step, None)]

    assert written == [40, 2]
    assert ids_in(place) == names(range(42))


def test_manifests_from_before_an_old_state_are_removed_and_no_writer_takes_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_STATE_EVERY", 2)
    table = ParquetHistory(str(tmp_path))
    sleeper = table
    for batch in range(6):
        table.append("east", reader(events(range(batch, batch + 1))), {"batch": batch})
        sleeper = ParquetHistory(str(tmp_path)) if batch == 1 else sleeper
    in_eight_days = FakeClock(SystemClock().now() + 8 * 86_400_000_000)

    ParquetHistory(str(tmp_path), clock=in_eight_days).compact(DAY.date())

    left = sorted(path.name.lstrip("0") for path in (tmp_path / "manifests").iterdir())
    assert left == ["4.json", "4.state", "5.json"]
    with pytest.raises(ConfigurationError, match="no history table with a version 3 at"):
        present_table(str(tmp_path), 3)
    with pytest.raises(CommitConflict):
        sleeper.append("east", reader(events(range(9, 10))), {"batch": 2})
    sleeper.refresh()
    assert sleeper.marks("east") == {"batch": 5}
    sleeper.append("east", reader(events(range(6, 7))), {"batch": 6})
    assert ids_in(str(tmp_path)) == ids_in(sleeper) == names(range(7))


def test_files_without_a_manifest_stay_for_a_week_by_the_clock(tmp_path: Path) -> None:
    clock = SystemClock()
    younger, older = FakeClock(clock.now()), FakeClock(clock.now() + 8 * 86_400_000_000)
    table = ParquetHistory(str(tmp_path), clock=younger)
    for batch in (1, 2):
        table.append("east", reader(events(range(batch * 4, batch * 4 + 4))), {"batch": batch})
    assert table.compact(LATER) > 0

    kept = len([*tmp_path.rglob("*.parquet")])
    table.compact(LATER)
    assert len([*tmp_path.rglob("*.parquet")]) == kept
    ParquetHistory(str(tmp_path), clock=older).compact(LATER)

    assert len([*tmp_path.rglob("*.parquet")]) == len(table.files().paths) < kept


def test_a_catalog_that_is_not_configured_is_refused_with_the_places_of_its_settings() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'cat-1': .* PYICEBERG_CATALOG__CAT_1__URI, .* \.pyiceberg\.yaml"
    ):
        open_table("iceberg:cat-1.timeouts.history")


def test_an_iceberg_table_with_deleted_rows_is_refused(
    place_of: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of("iceberg")
    table = open_table(place)
    table.append("east", reader(events(range(6))), {"batch": 1})
    iceberg = load_catalog("main", **as_configured()).load_table("timeouts.history")
    delete_a_row(iceberg, tmp_path / "deletes.parquet", monkeypatch)
    assert iceberg.refresh().scan().to_arrow().num_rows == 5

    table.refresh()

    with pytest.raises(PipelineUnavailable, match=f"{place} has files of deleted rows"):
        table.files()


def test_delta_removes_more_rows_than_a_condition_may_name(tmp_path: Path) -> None:
    table = open_table(f"delta:{tmp_path}/history")
    append(table, range(30_001), 1)

    table.remove(Doomed("id", tuple(names(range(1, 30_001))), "east"))
    table.refresh()

    assert ids_in(table) == ["id0"]


def test_a_delta_table_with_deleted_rows_is_refused(tmp_path: Path) -> None:
    table = open_table(f"delta:{tmp_path}/history")
    append(table, range(3), 1)
    flag_deleted(tmp_path / "history" / "_delta_log")

    table.refresh()

    with pytest.raises(PipelineUnavailable, match=f"{table.place} has files of deleted rows"):
        table.files()


def flag_deleted(log: Path) -> None:
    """Commit that the first row of a file is deleted, as Spark does; delta-rs writes no such."""
    actions = [
        json.loads(line) for file in log.glob("*.json") for line in file.read_text().splitlines()
    ]
    added = next(one["add"] for one in actions if "add" in one)
    vector = {"storageType": "i", "pathOrInlineDv": ROW_0, "sizeInBytes": 34, "cardinality": 1}
    removed = {name: added[name] for name in ("path", "partitionValues", "size")}
    removed |= {"dataChange": True, "deletionTimestamp": 0, "extendedFileMetadata": True}
    features = ["deletionVectors"]
    protocol = {"readerFeatures": features, "writerFeatures": features}
    commit = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **protocol}},
        {"remove": removed},
        {"add": added | {"deletionVector": vector}},
    ]
    version = len([*log.glob("*.json")])
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, commit)))


def delete_a_row(table: Table, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit a file of deleted positions, as Spark does: pyiceberg reads them, and writes none."""
    first = next(iter(table.scan().plan_files())).file
    positions = pa.array([0], pa.int64())
    pq.write_table(pa.table({"file_path": [first.file_path], "pos": positions}), file)
    deleted = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{file}",
        file_format=FileFormat.PARQUET,
        partition=first.partition,
        record_count=1,
        file_size_in_bytes=file.stat().st_size,
    )
    deleted.spec_id = first.spec_id
    with monkeypatch.context() as patch:
        patch.setattr(ManifestWriterV2, "content", lambda _writer: ManifestContent.DELETES)
        with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
            snapshot.append_data_file(deleted)
