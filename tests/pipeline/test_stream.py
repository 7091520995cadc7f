from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from sqlalchemy import Connection, event, insert, text

from tests.pipeline.rows import batch, row, settle
from tests.support.waiting import eventually
from timeoutmgr.database import deadlines
from timeoutmgr.errors import CombinationRefused, ConfigurationError, StorageUnavailable
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.options import StreamOptions
from timeoutmgr.pipeline.readers.history_stream import HistoryStream
from timeoutmgr.pipeline.readers.transactions import index_transactions
from timeoutmgr.pipeline.stores import NamedStore, Store
from timeoutmgr.pipeline.views import projected
from timeoutmgr.pipeline.writers.loader import Loader

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

    def poll(self, limit: Any = ALL) -> None:
        end = self.reader.latestOffset(self.offset, limit)
        for part in self.reader.partitions(self.offset, end):
            for each in self.reader.read(part):
                self.seen += each["id"].to_pylist()
        self.offset = end


def test_a_late_commit_is_seen_and_no_event_twice(postgres: Store) -> None:
    follower = Follower(postgres)
    history = postgres.tables.history
    with open_transaction(postgres) as slow:
        slow.execute(insert(history), events(["early, and late"]))
        with open_transaction(postgres) as quick:
            quick.execute(insert(history), events(["quick"]))
        follower.poll()
        # The quick event is committed, but an event with a lower sequence is not yet.
        before = list(follower.seen)
        with open_transaction(postgres) as other:
            other.execute(insert(history), events(["other"]))
        follower.poll()
    settle(postgres)
    follower.poll()
    follower.poll()

    assert before == []
    assert sorted(follower.seen) == ["early, and late", "other", "quick"]


def test_a_micro_batch_is_bounded_by_whole_transactions(postgres: Store) -> None:
    history = postgres.tables.history
    for at in range(5):
        with open_transaction(postgres) as connection:
            connection.execute(insert(history), events([f"{at}{suffix}" for suffix in "abc"]))
    settle(postgres)
    index_transactions(postgres)
    index_transactions(postgres)  # twice is fine
    follower = Follower(postgres)
    steps = []

    for _ in range(4):
        follower.poll(ReadMaxRows(4))
        steps.append(len(follower.seen))

    assert steps == [3, 6, 9, 12]
    follower.poll(ReadMaxRows(1))
    assert len(set(follower.seen)) == len(follower.seen) == 15


def test_available_now_ends_at_the_events_of_its_begin(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    settle(postgres)
    follower = Follower(postgres)
    follower.reader.prepareForTriggerAvailableNow()
    Loader(postgres).load([batch([row(2)])])

    follower.poll()

    assert follower.seen == [row(1)["id"]]


def test_a_checkpoint_of_another_database_is_refused(postgres: Store) -> None:
    follower = Follower(postgres)
    follower.poll()
    here = follower.offset

    for changed, sentence in [
        ({"system": 7}, "database system 7, this is .* begin anew in another place"),
        ({"timeline": here["timeline"] + 1}, "of timeline 2, this is 1: .* --any-timeline"),
        ({"xid": here["xid"] + 10**9}, "restored to an earlier time; begin anew"),
    ]:
        follower.offset = here | changed
        with pytest.raises(RunConflict, match=sentence):
            follower.poll()


def test_a_stream_may_continue_after_a_failover_that_lost_nothing(postgres: Store) -> None:
    follower = Follower(postgres, any_timeline="true")
    follower.offset = follower.offset | {"timeline": 7}
    Loader(postgres).load([batch([row(1)])])
    settle(postgres)

    follower.poll()

    assert follower.seen == [row(1)["id"]]
    assert follower.offset["timeline"] != 7


def test_a_database_without_open_transaction_ids_has_no_stream(store_of: Any) -> None:
    for kind in ("sqlite", "mysql"):
        with pytest.raises(CombinationRefused, match="pipeline archive"):
            Follower(store_of(kind))


BUILD = text(
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND starts_with(query, 'CREATE INDEX') AND wait_event_type = 'Lock' "
    "AND query_start < clock_timestamp() - make_interval(secs => :seconds)"
)
IS_VALID = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")


@contextmanager
def build_held_up(store: Store) -> Iterator[None]:
    """Make every build of an index of the history wait, for a transaction that writes there."""
    with open_transaction(store) as slow:
        slow.execute(insert(store.tables.history), events(["slow"]))
        yield


def build_that_waits(store: Store, seconds: float = 0.0) -> int | None:
    """Return the server's process that has waited for *seconds* to build an index, if any."""
    with store.database.read() as connection:
        found: int | None = connection.execute(BUILD, {"seconds": seconds}).scalar()
        return found


def index_is_valid(store: Store) -> bool | None:
    with store.database.read() as connection:
        name = {"name": f"{store.tables.history.name}_xid"}
        found: bool | None = connection.execute(IS_VALID, name).scalar()
        return found


@contextmanager
def hurried(store: Store) -> Iterator[None]:
    """Have the server give up the wait of a connection that is held for long."""

    def limit(driver: Any, _record: Any) -> None:
        for name in ("statement_timeout", "lock_timeout"):
            driver.execute(f"SET {name} = '500ms'")
        driver.commit()

    event.listen(store.database.apart, "connect", limit)
    yield
    event.remove(store.database.apart, "connect", limit)


def test_the_wait_for_the_index_outlasts_every_limit(
    postgres: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ANSWER", 0.5)
    reported: list[str] = []
    with hurried(postgres), ThreadPoolExecutor(1) as aside, build_held_up(postgres):
        building = aside.submit(index_transactions, postgres, progress=reported.append)
        eventually(lambda: build_that_waits(postgres, seconds=1.0), "the build waits")

    assert building.result() is True
    assert index_is_valid(postgres)
    assert [one.partition(":")[0] for one in reported] == ["building the index on transactions"]


def test_an_index_left_by_a_dead_build_is_made_anew(postgres: Store) -> None:
    reported: list[str] = []
    cancel = text("SELECT pg_cancel_backend(:pid)")
    with ThreadPoolExecutor(1) as aside, build_held_up(postgres):
        building = aside.submit(index_transactions, postgres)
        eventually(lambda: build_that_waits(postgres), "the build waits")
        with postgres.database.read() as connection:
            connection.execute(cancel, {"pid": build_that_waits(postgres)})
        with pytest.raises(StorageUnavailable, match="canceling statement"):
            building.result()
    left = index_is_valid(postgres)

    assert index_transactions(postgres, progress=reported.append)

    assert left is False
    assert index_is_valid(postgres)
    assert [one.split()[0] for one in reported] == ["removing", "building"]


def test_a_stop_ends_the_build_of_the_index(postgres: Store) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as aside, build_held_up(postgres):
        building = aside.submit(index_transactions, postgres, stopped=stop.is_set)
        eventually(lambda: build_that_waits(postgres), "the build waits")

        stop.set()

        assert building.result(30) is False
        assert build_that_waits(postgres) is None


def test_only_one_of_two_concurrent_processes_builds_the_index(postgres: Store) -> None:
    reported: list[str] = []
    stop = threading.Event()
    stop.set()
    with ThreadPoolExecutor(2) as aside, build_held_up(postgres):
        first = aside.submit(index_transactions, postgres)
        eventually(lambda: build_that_waits(postgres), "the build waits")
        stopped = index_transactions(postgres, stopped=stop.is_set)
        second = aside.submit(index_transactions, postgres, progress=reported.append)
        eventually(lambda: reported, "the other waits")

    assert stopped is False
    assert (first.result(), second.result()) == (True, True)
    assert reported == ["waiting for another process, which builds the index on transactions"]
    assert index_is_valid(postgres)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": timedelta(0)}, "must be positive"),
        ({"batch_events": 0}, "must be positive"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"store": "s", "to": "lake"}

    with pytest.raises(ConfigurationError, match=sentence):
        StreamOptions(**(given | options))
