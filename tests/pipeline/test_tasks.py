from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from tests.pipeline.rows import batch, row
from timeoutmgr.pipeline.frames import PartsReader
from timeoutmgr.pipeline.readers.statements import parts_of
from timeoutmgr.pipeline.snapshots import SharedSnapshot, snapshot
from timeoutmgr.pipeline.stores import NamedStore, Store
from timeoutmgr.pipeline.views import Selection, projected
from timeoutmgr.pipeline.writers.loader import Loader


def numbers(*found: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(found, pa.int64())], ["id"])


def test_the_tasks_of_all_parts_read_every_row_once(postgres: Store) -> None:
    Loader(postgres).load([batch([row(n) for n in range(2_000)])])
    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        parts = parts_of(postgres, "pending", 4)
        reader = PartsReader(
            store=NamedStore(postgres.name),
            view="pending",
            columns=projected("pending", ["message_id"]),
            which=Selection(),
            parts=tuple(parts),
            snapshot=held.name,
        )
        there: Any = pickle.loads(cloudpickle.dumps(reader))  # type: ignore[no-untyped-call]  # has no types

        found = [
            [one for each in there(iter([numbers(number)])) for one in each[0].to_pylist()]
            for number in range(len(parts))
        ]

    assert len(parts) >= 4
    assert all(found)
    assert sorted(one for each in found for one in each) == sorted(
        row(n)["message_id"] for n in range(2_000)
    )
