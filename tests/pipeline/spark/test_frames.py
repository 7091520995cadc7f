"""Files of a data set, as Spark reads them."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.jobs.data_set_files import broken_files_named, rows_of, which_files
from timeoutmgr.pipeline.options import RequestRules
from timeoutmgr.pipeline.transforms.requests import judged, normalised

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = RequestRules(
    endpoint="sales", dataset="spring", now=to_micros(datetime(2030, 1, 1, tzinfo=UTC))
)
NO_TEXTS = "headers are not a JSON object of texts"


def collected(spark: SparkSession, path: Path, kind: str, **options: Any) -> list[dict[str, Any]]:
    with broken_files_named(kind):
        found: list[dict[str, Any]] = (
            rows_of(spark, [str(path)], kind, **options).toArrow().to_pylist()
        )
    return found


def test_a_line_that_cannot_be_understood_is_named_with_its_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('destination,body,key\nbilling,"first\nsecond",1\nbilling,"a ""b"" c",2\n')

    with pytest.raises(ConfigurationError, match=r"/rows\.csv has a line .*--multi-line"):
        collected(spark, path, "csv")
    rows = collected(spark, path, "csv", multi_line=True)

    assert [one["body"] for one in rows] == ["first\nsecond", 'a "b" c']


def test_a_file_with_columns_in_another_order_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("destination,body\n" + "billing,{}\n" * 9)
    (tmp_path / "2.csv").write_text("body,destination\n{},billing\n")

    with pytest.raises(ConfigurationError, match=r"/2\.csv cannot be read as csv: CSV header"):
        collected(spark, tmp_path, "csv")


def test_a_broken_file_of_parquet_is_named(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["{}"] * 100}), tmp_path / "1.parquet")
    (tmp_path / "2.parquet").write_bytes(b"PAR1 and then the disk was full")

    for path in (tmp_path, tmp_path / "2.parquet"):
        with pytest.raises(ConfigurationError, match=r"/2\.parquet cannot be read.*anew"):
            collected(spark, path, "parquet")


def test_headers_of_json_may_be_an_object_of_texts(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    good = {"destination": "b", "due": "2031-01-01T00:00:00Z", "body": "{}", "message_type": "T"}
    headers: list[tuple[Any, list[str]]] = [
        ({"Tenant": "a"}, []),
        ({"Campaign": "b"}, []),
        (None, []),
        ('{"Tenant": "a"}', []),
        ({"Tenant": 7}, [NO_TEXTS]),
        ({"Tenant": {"a": "b"}}, [NO_TEXTS]),
        ({"Tenant": None}, ["a header has no value"]),
    ]
    for some in (headers, [headers[0], headers[1], *headers[4:]]):  # with a text, and without
        lines = [json.dumps(good | {"headers": one}) for one, _ in some]
        path.write_text("\n".join(lines))

        rows = normalised(rows_of(spark, [str(path)], "json"))
        found = judged(rows, RULES).toArrow().to_pylist()

        assert [one["reasons"] for one in found] == [reasons for _, reasons in some]
        own = [{"Tenant", "Campaign"} & json.loads(one["headers"]).keys() for one in found[:2]]
        assert own == [{"Tenant"}, {"Campaign"}]


def test_lines_that_are_no_objects_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"destination":"b"}\n{"destination":\n')

    with pytest.raises(ConfigurationError, match=r"/rows\.json has lines that are not JSON"):
        collected(spark, path, "json")

    path.write_text('[{"destination":"b"},\n{"destination":"c"}]\n')
    rows = collected(spark, path, "json", multi_line=True)
    assert [one["destination"] for one in rows] == ["b", "c"]


def test_files_are_the_same_until_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    one, other = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text("a\n1\n")
    other.write_text("a\n2\n")
    paths = [str(one), str(other)]

    before = which_files(spark, paths)

    assert (before["count"], before["first"].endswith("/1.csv")) == (2, True)
    assert before == which_files(spark, paths[::-1])
    os.utime(other, (1, 1))
    assert before != which_files(spark, paths)


def test_an_error_without_a_broken_file_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), broken_files_named("csv"):
        raise ZeroDivisionError
