"""The flights of the pipeline's demo, without the package that holds them all."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline"
BEGIN = datetime(2040, 1, 1, tzinfo=UTC)
HEAD = "year,month,day,dep_time,sched_dep_time,dep_delay,carrier,flight,tailnum,origin,dest\n"


@pytest.fixture
def flights() -> Iterator[ModuleType]:
    sys.path.insert(0, str(PIPELINE))
    try:
        yield importlib.import_module("flights")
    finally:
        sys.path.remove(str(PIPELINE))
        sys.modules.pop("flights", None)


def test_flights_become_rows_and_cancelled_flights_become_bad_rows(
    flights: ModuleType, tmp_path: Path
) -> None:
    source = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(
            "flights.csv",
            HEAD
            + "2013,1,1,517,515,2,UA,1545,N14228,EWR,IAH\n"
            + "2013,7,4,40,2359,41,B6,7,,JFK,PSE\n"  # after midnight, and in summer
            + "2013,2,1,NA,900,NA,MQ,4,N1,LGA,ATL\n",
        )
    calendar = flights.Calendar(begin=BEGIN, seconds=70.0)

    count = flights.write(source, tmp_path / "rows.parquet", "board", calendar)

    first, late, never = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert count == 3
    assert first["due"] == BEGIN + timedelta(minutes=17) / flights.QUICK * timedelta(seconds=70)
    assert (first["key"], first["saga_id"]) == ("UA1545-EWR-20130101T1015", "N14228")
    left = datetime(2013, 7, 5, 4, 40, tzinfo=UTC)
    assert json.loads(late["body"])["left"] == left.isoformat()
    after = flights.PAUSE + (left - flights.FIRST - flights.QUICK)
    assert late["due"] == BEGIN + timedelta(seconds=70) + after
    assert (late["saga_id"], never["due"]) == (None, None)


def test_the_calendar_keeps_the_order_of_things(flights: ModuleType) -> None:
    calendar = flights.Calendar(begin=BEGIN, seconds=30.0)
    moments = [flights.FIRST + timedelta(hours=hours) for hours in range(0, 400)]

    mapped = [calendar.at(moment) for moment in moments]

    assert mapped == sorted(mapped)
    assert len(set(mapped)) == len(mapped)
    assert calendar.at(flights.FIRST) == BEGIN
