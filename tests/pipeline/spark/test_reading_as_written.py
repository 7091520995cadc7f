"""What files of a data set hold is read whole, and as it is written there."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.jobs.reading import broken_files_named, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def test_columns_that_one_file_of_parquet_lacks_are_read_from_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"key": ["a"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"saga_id": ["s"], "key": ["b"]}), tmp_path / "2.parquet")

    rows = rows_of(spark, [str(tmp_path)], "parquet").toArrow().to_pylist()

    found = {one["key"]: one["saga_id"] for one in rows}
    assert found == {"a": None, "b": "s"}


def test_a_column_of_two_types_in_two_files_is_named(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["{}"], "key": [7]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"body": ["{}"], "key": ["7"]}), tmp_path / "2.parquet")

    told = "column 'key' is BIGINT in one and STRING in another; write them with one type"
    with pytest.raises(ConfigurationError, match=told), broken_files_named("parquet"):
        rows_of(spark, [str(tmp_path)], "parquet").collect()
