"""Files of a data set are read whole, and as they are written."""

from __future__ import annotations

import gzip
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.jobs.data_set_files import broken_files_named, rows_of
from timeoutmgr.pipeline.options import RequestRules
from timeoutmgr.pipeline.transforms.requests import judged, normalised

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = RequestRules(
    endpoint="sales",
    dataset="spring",
    now=to_micros(datetime(2030, 1, 1, tzinfo=UTC)),
    message_type="T",
)
NANOS = 1_927_857_906_123_456_001

# Of all objects, or all arrays, Spark would make one type; of both together a text.
OBJECTS = [
    '{"n":7}',
    '{"n": "7"}',
    '{"n":1.0, "m":1}',
    '{"n":1e2,"m":null}',
    '{"n":0.1000000000000000055511151231257827,"m":12345678901234567890123}',
    '{"n":[1,[2.50,{"a":null}],[]],"o":{}}',
    '{"n":"\\u00e9 é \\ud83d\\ude00 😀 \\n"}',
    "{}",
]
ARRAYS = ["[ 1,2.50,null ]", "[1e2]", "[]"]


@pytest.mark.parametrize(
    ("bodies", "multi_line"), [(OBJECTS, False), (OBJECTS, True), (ARRAYS, False)]
)
def test_a_body_of_json_is_the_text_that_the_file_has(
    spark: SparkSession, tmp_path: Path, bodies: list[str], multi_line: bool
) -> None:
    path = tmp_path / "rows.json"
    lines = [f'{{"body": {body} ,"key":"ké{number}"}}' for number, body in enumerate(bodies)]
    path.write_text("[{}]".format(",\n".join(lines)) if multi_line else "\n".join(lines))

    rows = rows_of(spark, [str(path)], "json", multi_line=multi_line).toArrow().to_pylist()

    assert [one["body"] for one in rows] == bodies


def test_bodies_may_all_be_without_members(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"key":"a","body":{}}\n{"key":"b"}\n')

    rows = rows_of(spark, [str(path)], "json").toArrow().to_pylist()

    assert [one["body"] for one in rows] == ["{}", None]


def test_a_compressed_file_in_which_bodies_would_be_changed_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "rows.json.gz"
    path.write_bytes(gzip.compress(b'[{"body":{"n":1e2}}]'))

    with pytest.raises(ConfigurationError, match=r"/rows\.json\.gz is compressed, .* unpack it"):
        rows_of(spark, [str(path)], "json", multi_line=True)


def test_columns_that_a_file_of_parquet_lacks_are_read_from_other_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"key": ["a"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"saga_id": ["s"], "key": ["b"]}), tmp_path / "2.parquet")

    rows = rows_of(spark, [str(tmp_path)], "parquet").toArrow().to_pylist()

    found = {one["key"]: one["saga_id"] for one in rows}
    assert found == {"a": None, "b": "s"}


def test_nanoseconds_and_uuids_of_parquet_are_read(spark: SparkSession, tmp_path: Path) -> None:
    tmp_path = tmp_path / "a ü%20:b"  # none of them an escape
    tmp_path.mkdir()
    keys = [uuid.UUID(int=7), None]
    columns = {
        "destination": ["billing"] * 2,
        "due": pa.array([NANOS, NANOS - 1], pa.timestamp("ns", "UTC")),
        "body": [b"{}", b"[]"],
        "headers": pa.array([[("Tenant", "a")], None], pa.map_(pa.string(), pa.string())),
        "key": pa.array([key and key.bytes for key in keys], pa.uuid()),
    }
    pq.write_table(pa.table(columns), tmp_path / "1.parquet")
    later = {**columns, "saga_id": ["s"] * 2}
    pq.write_table(pa.table(later), tmp_path / "2.parquet")

    rows = normalised(rows_of(spark, [str(tmp_path)], "parquet"))
    found = judged(rows, RULES).toArrow().to_pylist()

    assert [one["reasons"] for one in found] == [[]] * 4
    assert {f"{one['due']:%H:%M:%S.%f}" for one in found} == {"04:05:06.123457", "04:05:06.123456"}
    assert f"spring/{keys[0]}" in {one["message_id"] for one in found}
    assert sum(len(one["message_id"]) == len("spring/") + 64 for one in found) == 2
    assert {one["saga_id"] for one in found} == {None, "s"}


def test_nanoseconds_without_a_zone_are_refused_as_other_times_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {
        "destination": ["billing"],
        "due": pa.array([NANOS], pa.timestamp("ns")),
        "body": ["{}"],
    }
    pq.write_table(pa.table(columns), tmp_path / "1.parquet")

    with pytest.raises(WrongColumns, match="column 'due' has times without a zone"):
        normalised(rows_of(spark, [str(tmp_path)], "parquet"))


HEADS: Final = {"csv": b"body", "json": rb'{"body":"\ud83d\ude00 \\ud800"}'}
"""First lines that are well; the second has a backslash and no surrogate."""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("rows.json", rb'{"body":"a\ud800b"}'),
        ("rows.json", rb'{"body":"a\\\\\udc00b"}'),
        ("rows.json", b'{"body":"a\xed\xa0\x80b"}'),
        ("rows.csv", b"a\xed\xa0\x80b"),
        ("rows.csv", "Gr\u00fc\u00dfe".encode("latin-1")),
    ],
)
def test_half_of_a_surrogate_pair_and_strange_bytes_are_refused_with_their_file(
    spark: SparkSession, tmp_path: Path, name: str, line: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(HEADS[path.suffix[1:]] + b"\n" + line + b"\n")

    with pytest.raises(ConfigurationError, match=rf"/{name} has a line .*write the file as UTF"):
        rows_of(spark, [str(path)], path.suffix[1:])


def test_whole_surrogate_pairs_are_read(spark: SparkSession, tmp_path: Path) -> None:
    for kind, head in HEADS.items():
        path = tmp_path / f"rows.{kind}"
        path.write_bytes(head + b"\n")

        assert rows_of(spark, [str(path)], kind).columns == ["body"]


def test_a_nested_body_of_another_name_stays_as_it_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"Payload":{"n":1.0},"key":"a"}\n{"key":"b"}\n')

    rows = rows_of(spark, [str(path)], "json", columns={"body": "payload"}).toArrow().to_pylist()

    assert [one["Payload"] for one in rows] == ['{"n":1.0}', None]


@pytest.mark.parametrize("line", ["a,Dear Bob, hello,eu", "a,Dear Bob"])
def test_a_line_of_too_many_or_too_few_columns_is_refused_though_a_column_is_left_out(
    spark: SparkSession, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"key,body,region\n{line}\n")

    rows = rows_of(spark, [str(path)], "csv").select("key", "body")

    with (
        pytest.raises(ConfigurationError, match=r"the columns of the header: \[?a,Dear Bob"),
        broken_files_named("csv"),
    ):
        rows.collect()


def test_frames_of_java_are_no_part_of_the_reason() -> None:
    class FromServer(PySparkException):
        def getCondition(self) -> str:
            return "FAILED_READ_FILE.NO_HINT"

        def getMessageParameters(self) -> dict[str, str]:
            return {"path": "file:/rows.csv"}

    sentence = r"rows.csv cannot be read as csv: .* the end of the file; it is broken, of an"
    with pytest.raises(ConfigurationError, match=sentence), broken_files_named("csv"):
        raise FromServer("the end of the file\n\nJVM stacktrace:\norg.apache.spark")


def test_a_column_of_two_types_in_two_files_is_named(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["{}"], "key": [7]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"body": ["{}"], "key": ["7"]}), tmp_path / "2.parquet")

    sentence = "column 'key' is bigint in one and string in another; write them with one type"
    with pytest.raises(ConfigurationError, match=sentence), broken_files_named("parquet"):
        rows_of(spark, [str(tmp_path)], "parquet").collect()
