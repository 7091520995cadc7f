"""A session of the caller's own, in another zone than UTC."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.pipeline.rows import count, read
from tests.pipeline.sending import are_mixed, as_table, messages, row_to_send, sent_by_an_endpoint
from tests.pipeline.spark.test_lateness import write_events
from tests.pipeline.test_sent_rows import ROW, as_sent
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.headers import DELIVER_AT
from timeoutmgr.pipeline import read_timeouts, register, schedule
from timeoutmgr.pipeline.jobs.lateness import lateness
from timeoutmgr.pipeline.options import LatenessOptions
from timeoutmgr.pipeline.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "spark.sql.session.timeZone"
OF_SALES: dict[str, str] = {"endpoint": "sales", "dataset": "spring"}


@pytest.fixture
def new_york(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with settings of its own, as a notebook in New York has them."""
    made = spark.newSession()
    made.conf.set(ZONE, "America/New_York")
    register(made)
    yield made
    spark.createDataFrame([], "id INT")  # makes that session the active one again


@settings(
    max_examples=1, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck)
)
@given(rows=st.lists(row_to_send, min_size=50, max_size=100).filter(are_mixed))
def test_a_frame_is_scheduled_in_any_zone_as_an_endpoint_sends_it_row_by_row(
    new_york: SparkSession, store_of: Callable[[str], Store], rows: list[dict[str, Any]]
) -> None:
    expected, store = store_of("sqlite"), store_of("sqlite")
    sent_by_an_endpoint(expected, messages(rows))
    frame = new_york.createDataFrame(as_table(rows)).withColumnRenamed("due", "send_at")
    options: dict[str, Any] = {"mapping": {"due": "send_at"}, "run_id": "one", **OF_SALES}

    report = schedule(new_york, frame, store.name, **options)

    assert as_sent(store) == as_sent(expected)
    assert (report.run_id, report.new) == ("one", len(rows))
    assert new_york.conf.get(ZONE) == "America/New_York"


def test_settings_of_timestamps_change_no_instant(new_york: SparkSession, sqlite: Store) -> None:
    own = {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
    }
    for name, value in own.items():
        new_york.conf.set(name, value)
    text = "2031-01-01T00:00:00.123456-05:00"
    given = {"destination": ["billing"], "due": [text], "body": ["{}"], "key": ["k1"]}
    frame = new_york.createDataFrame(pa.table(given))

    options: dict[str, Any] = {"message_type": "T", **OF_SALES}
    schedule(new_york, frame, sqlite.name, **options)

    (stored,) = read(sqlite, "pending")
    frame = read_timeouts(new_york, sqlite.name, columns=["due"])
    due = datetime(2031, 1, 1, 5, 0, 0, 123456, tzinfo=UTC)
    assert [stored["due"], *frame.toArrow()["due"].to_pylist()] == [due, due]
    assert json.loads(stored["headers"])[DELIVER_AT] == "2031-01-01 05:00:00:123456 Z"
    assert {name: new_york.conf.get(name) for name in own} == own


def test_a_frame_is_written_by_the_data_source(new_york: SparkSession, sqlite: Store) -> None:
    rows = new_york.createDataFrame(
        pa.table(
            {
                "destination": ["billing"],
                "due": [datetime(2031, 1, 1, tzinfo=UTC)],
                "body": ["{}"],
                "key": ["k1"],
            }
        )
    )
    options = {"store": sqlite.name, "message_type": "T", **OF_SALES}

    for _ in "ab":
        rows.write.format("timeouts").mode("append").options(**options).save()

    assert [one["due"] for one in as_sent(sqlite)] == [datetime(2031, 1, 1, tzinfo=UTC)]
    assert count(sqlite, "timeouts") == 1


def test_a_stream_is_written_by_the_data_source(
    new_york: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    columns = "destination STRING, due TIMESTAMP, body STRING, key STRING"
    given = [ROW | {"key": key} for key in ("k1", "k2")]
    pq.write_table(pa.Table.from_pylist(given), tmp_path / "rows.parquet")
    options = {"store": sqlite.name, "message_type": "T", **OF_SALES}
    rows = new_york.readStream.schema(columns).parquet(f"{tmp_path}/*.parquet")

    written = (
        rows.writeStream.format("timeouts")
        .queryName("reminders")
        .options(**options, checkpointLocation=str(tmp_path / "state"))
    )
    written.trigger(availableNow=True).start().awaitTermination()

    assert [one["message_id"] for one in as_sent(sqlite)] == ["spring/k1", "spring/k2"]


def test_a_day_is_of_utc_in_every_zone(new_york: SparkSession, sqlite: Store) -> None:
    write_events(sqlite, [5])  # due at midnight, which is the day before in New York

    report = lateness(
        new_york, LatenessOptions(stores=(sqlite.name,), slo=timedelta(0)), clock=SystemClock()
    )

    assert [one["day"].isoformat() for one in report.groups] == ["2024-03-01"]
    assert report.frame.count() == 1
