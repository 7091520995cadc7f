from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from sqlalchemy import Connection, insert

from tests.pipeline.making import batch, row, settle
from timeoutmgr.errors import CombinationRefused, ConfigurationError
from timeoutmgr.pipeline.errors import RunInTheWay
from timeoutmgr.pipeline.following import HistoryStream, index_transactions
from timeoutmgr.pipeline.jobs.stream import StreamOptions
from timeoutmgr.pipeline.loading import Loader
from timeoutmgr.pipeline.source import NamedStore
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import projected

ALL = ReadAllAvailable()


def events(names: list[str]) -> list[dict[str, Any]]:
    fixed = {"event": "dispatched", "at": 1, "due": 1, "endpoint": "sales", "destination": "q"}
    return [{**fixed, "id": name, "attempt": 0, "node": "n"} for name in names]


@contextmanager
def open_transaction(store: Store) -> Iterator[Connection]:
    with store.database.apart.connect() as connection, connection.begin():
        yield connection


class Follower:
    """Drives the stream as Spark does, through a pickle, and remembers its offset."""

    def __init__(self, store: Store, **options: str) -> None:
        columns = projected("history", ["id"])
        made = HistoryStream(NamedStore(store.name), columns, options)
        self.reader: HistoryStream = pickle.loads(cloudpickle.dumps(made))  # type: ignore[no-untyped-call]  # has no types
        self.offset = self.reader.initialOffset()
        self.seen: list[str] = []

    def look(self, limit: Any = ALL) -> None:
        end = self.reader.latestOffset(self.offset, limit)
        for part in self.reader.partitions(self.offset, end):
            for each in self.reader.read(part):
                self.seen += each["id"].to_pylist()
        self.offset = end


def test_what_is_committed_late_is_seen_and_nothing_twice(postgres: Store) -> None:
    follower = Follower(postgres)
    history = postgres.tables.history
    with open_transaction(postgres) as slow:
        slow.execute(insert(history), events(["early, and late"]))
        with open_transaction(postgres) as quick:
            quick.execute(insert(history), events(["quick"]))
        follower.look()
        # Its sequence is higher, and it is there; but something before it is still to come.
        before = list(follower.seen)
        with open_transaction(postgres) as other:
            other.execute(insert(history), events(["other"]))
        follower.look()
    settle(postgres)
    follower.look()
    follower.look()

    assert before == []
    assert sorted(follower.seen) == ["early, and late", "other", "quick"]


def test_a_micro_batch_is_bounded_by_whole_transactions(postgres: Store) -> None:
    history = postgres.tables.history
    for at in range(5):
        with open_transaction(postgres) as connection:
            connection.execute(insert(history), events([f"{at}{letter}" for letter in "abc"]))
    settle(postgres)
    index_transactions(postgres)
    index_transactions(postgres)  # twice is fine
    follower = Follower(postgres)
    steps = []

    for _ in range(4):
        follower.look(ReadMaxRows(4))
        steps.append(len(follower.seen))

    assert steps == [3, 6, 9, 12]
    follower.look(ReadMaxRows(1))
    assert len(set(follower.seen)) == len(follower.seen) == 15


def test_once_ends_where_it_was_when_it_began(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    settle(postgres)
    follower = Follower(postgres)
    follower.reader.prepareForTriggerAvailableNow()
    Loader(postgres).load([batch([row(2)])])

    follower.look()

    assert follower.seen == [row(1)["id"]]


def test_a_checkpoint_of_another_database_is_refused(postgres: Store) -> None:
    follower = Follower(postgres)
    follower.look()
    here = follower.offset

    for changed, sentence in [
        ({"system": 7}, "database system 7, this is .* another checkpoint"),
        ({"timeline": here["timeline"] + 1}, "of timeline 2, this is 1: .* --any-timeline"),
        ({"xid": here["xid"] + 10**9}, "restored to an earlier time; begin with another"),
    ]:
        follower.offset = here | changed
        with pytest.raises(RunInTheWay, match=sentence):
            follower.look()


def test_a_failover_that_lost_nothing_may_be_gone_on_with(postgres: Store) -> None:
    follower = Follower(postgres, any_timeline="true")
    follower.offset = follower.offset | {"timeline": 7}
    Loader(postgres).load([batch([row(1)])])
    settle(postgres)

    follower.look()

    assert follower.seen == [row(1)["id"]]
    assert follower.offset["timeline"] != 7


def test_where_nobody_tells_what_is_open_there_is_no_stream(store_of: Any) -> None:
    for kind in ("sqlite", "mysql"):
        with pytest.raises(CombinationRefused, match="pipeline archive"):
            Follower(store_of(kind))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": timedelta(0)}, "must be positive"),
        ({"batch_events": 0}, "must be positive"),
        ({"checkpoint": Path("lake")}, "folder of its own"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"store": "s", "to": Path("lake"), "checkpoint": Path("checkpoint")}

    with pytest.raises(ConfigurationError, match=sentence):
        StreamOptions(**(given | options))
