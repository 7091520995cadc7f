"""The positions of streams in the ledger; these tests need no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.stream import StreamPosition, StreamRuns
from timeoutmgr.pipeline.ledger import JobLedger
from timeoutmgr.pipeline.stores import Store

LAKE, CHECKPOINT = Path("/lake/live"), Path("/lake/checkpoint")


def low_water(store: Store) -> int | None:
    with store.database.read() as connection:
        position: StreamPosition | None = StreamRuns(JobLedger(store)).low_water(connection)
    return None if position is None else position.xid


def test_low_water_is_the_position_of_the_slowest_stream(store: Store) -> None:
    streams = StreamRuns(JobLedger(store))
    without = low_water(store)
    first = streams.begin(LAKE, CHECKPOINT)
    second = streams.begin(LAKE, Path("/lake/other"))
    begun = low_water(store)
    streams.reached(first, 10)
    streams.reached(second, 7)
    both = low_water(store)
    streams.abort(LAKE, Path("/lake/other"))

    assert (without, begun, both, low_water(store)) == (None, 0, 7, 10)


def test_a_stream_that_is_begun_again_keeps_its_position(store: Store) -> None:
    streams = StreamRuns(JobLedger(store))
    run_id = streams.begin(LAKE, CHECKPOINT)
    streams.recognise(run_id, "a")
    streams.reached(run_id, 10)

    again = streams.begin(LAKE, CHECKPOINT)
    streams.recognise(again, "a")

    assert (again, low_water(store)) == (run_id, 10)


def test_the_position_of_another_checkpoint_of_that_name_is_not_reused(store: Store) -> None:
    streams = StreamRuns(JobLedger(store))
    run_id = streams.begin(LAKE, CHECKPOINT)
    streams.recognise(run_id, "a")
    streams.reached(run_id, 10)

    with pytest.raises(RunConflict, match=r"is another: .* give it up .* with --abort"):
        streams.recognise(streams.begin(LAKE, CHECKPOINT), "b")

    assert low_water(store) == 10


def test_a_stream_that_was_given_up_begins_with_a_warning_and_without_its_position(
    store: Store,
) -> None:
    streams = StreamRuns(JobLedger(store))
    run_id = streams.begin(LAKE, CHECKPOINT)
    streams.recognise(run_id, "a")
    streams.reached(run_id, 10)
    streams.abort(LAKE, CHECKPOINT)
    reported: list[str] = []

    streams.recognise(streams.begin(LAKE, CHECKPOINT, reported.append), "b")

    assert low_water(store) == 0
    assert "archive has removed since then are not in /lake/live" in reported[0]
