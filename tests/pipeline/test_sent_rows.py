"""Messages that a frame is written with, beside the same messages that an endpoint sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from tests.pipeline.rows import read
from tests.pipeline.sending import are_mixed, as_table, messages, row_to_send, sent_by_an_endpoint
from tests.pipeline.test_source import over_there, source
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.stores import Store

GIVEN = {"endpoint": "sales", "dataset": "spring"}


def write(store: Store, table: pa.Table, *, batch_ids: tuple[int, ...] = (), **more: str) -> None:
    """Write *table* as a task does: as a micro-batch of each of *batch_ids*, or of a batch."""
    made = source(store, **GIVEN, **more)
    schema = from_arrow_schema(table.schema)
    for batch_id in batch_ids:
        stream = over_there(made.streamWriter(schema, overwrite=False))
        stream.commit([over_there(stream.write(iter(table.to_batches())))], batch_id)
    if not batch_ids:
        writer = over_there(made.writer(schema, overwrite=False))
        writer.commit([over_there(writer.write(iter(table.to_batches())))])


def as_sent(store: Store) -> list[dict[str, Any]]:
    """Return the pending timeouts, without what tells when and by which run they were stored."""
    apart = ("created", "run_id", "version", "attempts", "maybe_sent", "hidden_by")
    found = []
    for row in read(store, "pending"):
        kept = {name: value for name, value in row.items() if name not in apart}
        headers = json.loads(kept.pop("headers"))
        headers.pop("NServiceBus.TimeSent")
        found.append(kept | {"headers": headers})
    return sorted(found, key=lambda one: str(one["message_id"]))


# Many rows at once: each example needs two stores, and an endpoint.
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(row_to_send, min_size=30, max_size=60).filter(are_mixed))
def test_a_written_frame_is_what_an_endpoint_stores_row_by_row(
    store_of: Callable[[str], Store], rows: list[dict[str, Any]]
) -> None:
    framed, sent = store_of("sqlite"), store_of("sqlite")

    write(framed, as_table(rows))
    sent_by_an_endpoint(sent, messages(rows))

    assert as_sent(framed) == as_sent(sent)
    assert len(as_sent(framed)) == len(rows)


ROW = {
    "destination": "billing",
    "due": datetime(2031, 1, 1, tzinfo=UTC),
    "body": "{}",
    "key": "k1",
    "message_type": "T",
}


def test_an_empty_content_type_counts_as_none(sqlite: Store) -> None:
    row = {**ROW, "body": b"{}", "content_type": ""}

    write(sqlite, pa.Table.from_pylist([row]))

    assert [each["content_type"] for each in read(sqlite, "pending")] == [
        "application/octet-stream"
    ]


def test_a_stream_that_lost_its_checkpoint_stores_no_row_again(sqlite: Store) -> None:
    table = pa.Table.from_pylist([ROW, ROW | {"key": "k2"}])

    write(sqlite, table, batch_ids=(0, 1, 0), message_type="T")

    assert [one["message_id"] for one in as_sent(sqlite)] == ["spring/k1", "spring/k2"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"destination": "error\n"}, "the row with the key 'k1' cannot be sent"),
        ({"due": None}, "key, due and body are needed"),
        ({"key": None}, "key None cannot"),
        ({"key": ""}, "key '' cannot"),
        ({"headers": "[1]"}, r"headers are a map or a JSON object of texts, got \[1\]"),
        ({"headers": "5"}, "headers are a map or a JSON object of texts, got 5"),
        ({"headers": [1]}, r"'k1' cannot be sent: headers are a map or a JSON object"),
        ({"headers": 5}, r"'k1' cannot be sent: headers are a map or a JSON object"),
        ({"saga_id": "no\nsaga"}, "the row with the key 'k1' cannot be sent"),
        ({"message_type": None}, "a message type is a name"),
        ({"content_type": "é" * 200}, "'k1' cannot be sent: the content type .* has 400 bytes"),
    ],
)
def test_a_row_that_an_endpoint_would_refuse_is_named_and_none_is_stored(
    sqlite: Store, changed: dict[str, Any], sentence: str
) -> None:
    table = pa.Table.from_pylist([ROW | changed, ROW | {"key": "k2"}]).slice(0, 1)

    with pytest.raises(InvalidMessage, match=sentence):
        write(sqlite, table)

    assert as_sent(sqlite) == []


@pytest.mark.parametrize("name", ["", "a/b", "ä", "d" * 101])
def test_a_data_set_whose_end_no_message_id_would_show_is_refused(sqlite: Store, name: str) -> None:
    schema = from_arrow_schema(pa.Table.from_pylist([ROW]).schema)
    made = source(sqlite, **(GIVEN | {"dataset": name}))

    for kind in (made.writer, made.streamWriter):
        with pytest.raises(ConfigurationError, match="100 printable ASCII characters without '/'"):
            kind(schema, overwrite=False)


def test_a_row_that_is_due_outside_of_the_calendar_is_named(sqlite: Store) -> None:
    table = pa.Table.from_pylist([ROW, ROW | {"key": "k2"}])
    due = pa.array([0, 2**62], pa.timestamp("us", "UTC"))

    with pytest.raises(InvalidMessage, match="the row with the key 'k2' cannot be sent"):
        write(sqlite, table.set_column(1, "due", due))


def test_columns_that_are_not_read_and_columns_that_are_missing_are_named(sqlite: Store) -> None:
    with pytest.raises(WrongColumns, match="have no column 'key'; have a column 'dew'"):
        write(sqlite, pa.table({"destination": ["a"], "due": ["b"], "body": ["c"], "dew": ["d"]}))
    with pytest.raises(ConfigurationError, match=r"need option\('dataset', …\)"):
        source(sqlite, endpoint="sales").writer(
            from_arrow_schema(pa.Table.from_pylist([ROW]).schema), overwrite=False
        )


def test_the_limits_of_the_settings_count(sqlite: Store) -> None:
    path = Path(sqlite.name)
    path.write_text(path.read_text() + '\n[limits]\nallowed_destinations = ["mail"]\n')

    with pytest.raises(InvalidMessage, match="billing"):
        write(sqlite, pa.Table.from_pylist([ROW]))
