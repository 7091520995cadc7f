"""The positions of streams in the ledger."""

from __future__ import annotations

from timeoutmgr.pipeline.jobs.stream import StreamPosition, StreamRuns
from timeoutmgr.pipeline.ledger import JobLedger
from timeoutmgr.pipeline.stores import Store

LAKE, OTHER = "/lake/live", "delta:s3://lake/other"


def low_water(store: Store, but: str = "") -> int | None:
    with store.database.read() as connection:
        found: StreamPosition | None = StreamRuns(JobLedger(store)).low_water(connection, but)
    return None if found is None else found.xid


def test_low_water_is_the_position_of_the_slowest_stream(store: Store) -> None:
    streams = StreamRuns(JobLedger(store))
    without = low_water(store)
    first, second = streams.begin(LAKE), streams.begin(OTHER)
    begun = low_water(store)
    streams.reached(first, 10)
    streams.reached(second, 7)
    both, but = low_water(store), low_water(store, OTHER)
    streams.abort(OTHER)

    assert (without, begun, both, but, low_water(store)) == (None, 0, 7, 10, 10)


def test_a_stream_that_is_begun_again_keeps_its_position(store: Store) -> None:
    streams = StreamRuns(JobLedger(store))
    run_id = streams.begin(LAKE)
    streams.reached(run_id, 10)

    assert (streams.begin(LAKE), low_water(store)) == (run_id, 10)


def test_a_stream_that_was_given_up_begins_with_a_warning_and_without_its_position(
    store: Store,
) -> None:
    streams = StreamRuns(JobLedger(store))
    streams.reached(streams.begin(LAKE), 10)
    streams.abort(LAKE)
    reported: list[str] = []

    streams.begin(LAKE, reported.append)

    assert low_water(store) == 0
    assert "archive has removed since then are not in /lake/live" in reported[0]
