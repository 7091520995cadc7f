from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.pipeline.jobs.run_context import worker_errors
from timeoutmgr.pipeline.spark.conditions import (
    conditions_of,
    lasting_errors,
    raised_by_worker,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES = 'Traceback (most recent call last):\n  File "/w/worker.py", line 7, in main\n    run()\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"A worker failed.\n{FRAMES}ValueError: oh: no\n", ("ValueError", "oh: no")),
        (f"{FRAMES}a.b.Error: two\nlines\n", ("a.b.Error", "two\nlines")),
        (
            f"{FRAMES}KeyError: 1\n\nDuring handling:\n\n{FRAMES}a.Error: last\n",
            ("a.Error", "last"),
        ),
        (
            f"{FRAMES}a.Error: said\n\n\tat org.apache.spark.Runner(Runner.scala:7)",
            ("a.Error", "said"),
        ),
        (
            f"{FRAMES}a.Error: said\n SQLSTATE: 38000\n\nJVM stacktrace:\norg.apache.Error",
            ("a.Error", "said"),
        ),
        ("no: traceback at all", ("", "no: traceback at all")),
        (f"{FRAMES}it was killed", ("", "it was killed")),
    ],
)
def test_the_error_of_a_worker_is_the_end_of_the_last_traceback(
    text: str, expected: tuple[str, str]
) -> None:
    assert raised_by_worker(Exception(text)) == expected


def test_an_error_of_ours_is_raised_as_itself_from_a_text_alone() -> None:
    # All that Spark Connect sends of an error in a worker is text.
    text = f"{FRAMES}timeoutmgr.errors.StorageUnavailable: the store is away\n"

    with pytest.raises(StorageUnavailable, match=r"^the store is away$"), worker_errors():
        raise RuntimeError(text)


@pytest.mark.parametrize("name", ["ValueError", "timeoutmgr.errors.Nonesuch", "errors.Unsupported"])
def test_an_error_of_others_is_raised_as_it_is(name: str) -> None:
    with pytest.raises(RuntimeError, match="the store is away"), worker_errors():
        raise RuntimeError(f"{FRAMES}{name}: the store is away\n")


def test_an_error_of_another_library_has_no_condition() -> None:
    assert conditions_of(ZeroDivisionError()) == []


def test_an_error_of_spark_that_lasts_has_its_text_without_the_jvm(spark: SparkSession) -> None:
    with pytest.raises(RuntimeError, match=r"AnalysisException: .*no_such_table"), lasting_errors():
        spark.sql("SELECT * FROM no_such_table")
