from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path

import pytest
from pymssql.exceptions import OperationalError
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, exc, insert
from sqlalchemy.dialects import mssql
from sqlalchemy.schema import CreateTable

from tests.persistence.making import SECOND, SetClock, timeout
from tests.support.tsql import Server, translated_database
from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Outcome,
    OutcomeKind,
    Place,
    RepeatKind,
    SagaClear,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TransactionMode,
)
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.database.engine import execute_many
from timeoutmgr.database.failures import Failure, classify, is_login_refused
from timeoutmgr.database.proof import durability_doubts
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.message.instants import to_micros
from timeoutmgr.migration import Window
from timeoutmgr.migration.foreign.rows import layout_called
from timeoutmgr.migration.foreign.table import ForeignTable
from timeoutmgr.migration.runs import Batch, BatchState
from timeoutmgr.persistence import SqlDelayedMessageStore, SqlPersistence, SqlSettings

GOLDEN = Path(__file__).with_name("sqlserver.sql")
HOUR = 3_600 * SECOND


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "server.db")


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    database = translated_database(server)
    yield database
    database.dispose()


def test_every_statement_of_the_stores_is_as_in_the_golden_file(
    server: Server, database: Database
) -> None:
    persistence = SqlPersistence(database, settings=SqlSettings(history="full"))
    delayed = SqlDelayedMessageStore(database)
    ddl = persistence.ddl() + delayed.ddl("sales")
    server.install(persistence.ddl())
    server.install(delayed.ddl("sales"))

    with server.part("the proof at a start"):
        persistence.check()
        assert not durability_doubts(database)
    _walk_timeouts(server, persistence)
    _walk_migration(server, persistence)
    _walk_delayed(server, delayed)
    persistence.close()
    delayed.close()

    found = "\n\n".join(["-- tables", _in_order(ddl), *server.statements]) + "\n"
    if os.environ.get("TIMEOUTMGR_APPROVE"):
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")


def _in_order(ddl: str) -> str:
    """Return *ddl* with the indexes of each table by name: they come in any order."""
    between = "\n\nGO\n\n"
    runs = groupby(ddl.strip().split(between), lambda one: one.startswith("CREATE INDEX"))
    return between.join(chain(*(sorted(run) if is_index else list(run) for is_index, run in runs)))


def _walk_timeouts(server: Server, persistence: SqlPersistence) -> None:
    store = persistence.timeouts("sales", SetClock())
    now = store.now()
    with server.part("markers and processes"):
        assert persistence.propose_marker("sales", "word", "broker").word == "word"
        persistence.confirm_marker("sales", "word", "broker")
        store.heartbeat("me", {"poller": "idle"})
        assert store.processes()[0].owner == "me"
    with server.part("store"):
        first = [timeout("a", now - SECOND), timeout("ü ", now - SECOND, body=b"")]
        assert store.store_many([*first, timeout("c", now + HOUR, saga="s1")]) == ()
        again = store.store_many([first[0], timeout("d", now + HOUR, saga="s1")])
        assert [one.kind for one in again] == [RepeatKind.DUPLICATE]
        store.store_many([timeout("large", now - SECOND, body=b"x" * 70_000)])
    with server.part("claim and dispatch"):
        assert store.next_due() == now - SECOND
        chunk = store.claim(now, 10, "me")
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            bodies = {one.id: one.message.body for one in locked.timeouts}
            assert bodies == {"a": b"body", "ü ": b"", "large": b"x" * 70_000}
            other = persistence.timeouts("sales", SetClock())
            with other.lock_for_dispatch("", chunk.keys) as passed_by:
                assert passed_by.timeouts == []
            ends = [
                Outcome(key=one.key, kind=OutcomeKind.DISPATCHED, at=now)
                for one in locked.timeouts[1:]
            ]
            retry = Outcome(
                key=locked.timeouts[0].key,
                kind=OutcomeKind.RETRY,
                at=now,
                next_try=now + HOUR,
                maybe_sent=True,
            )
            locked.close([retry, *ends])
    with server.part("queries"):
        assert store.count(TimeoutFilter()) == 3
        assert [one.id for one in store.list(TimeoutFilter(saga_id="s1"))] == ["c", "d"]
        found = store.list_in_bounds(TimeoutFilter(destination="billing"), limit=2)
        assert len(found.timeouts) == 2
        assert store.count_in_bounds(TimeoutFilter(destination="billing")).number == 3
        assert store.statistics().outcomes["dispatched"] == 2
        assert (store.find("ü ") or ())[:1] == (TimeoutState.DISPATCHED,)
        assert [one.event for one in store.history("ü ")] == ["scheduled", "dispatched"]
        assert [one.endpoint for one in persistence.endpoints()] == ["sales"]
    with server.part("changes"):
        assert store.cancel("c") is CancelResult.CANCELLED
        assert store.cancel("never seen") is CancelResult.WILL_BE_CANCELLED
        assert store.reschedule("d", now + 2 * HOUR) is ChangeResult.CHANGED
        assert len(store.cancel_saga("s1", sent_until=now + 3 * HOUR)) == 1
        assert store.change_schedule("nightly", lambda locked: locked.record.name) == "nightly"
        assert [one.name for one in store.schedules()] == ["nightly"]
    with server.part("clears of sagas"):
        store.store_many([timeout("e", now + HOUR, saga="s2")])
        clear = SagaClear(saga_id="s2", order_id="order", sent=now + HOUR)
        assert [store.clear_saga(clear) for _ in range(2)] == [["e"], []]
        late = replace(timeout("f", now + HOUR, saga="s2"), place=Place(0, None, now))
        assert [one.kind for one in store.store_many([late])] == [RepeatKind.CANCELLED]
    with server.part("housekeeping"):
        store.release(store.claim(now, 10, "me").token)
        assert store.purge() == 0
        assert store.purge_lag() == 0
        store.unregister_process("me")


def _walk_migration(server: Server, persistence: SqlPersistence) -> None:
    clock = SetClock()
    store = persistence.timeouts("moving", clock)
    store.store_many([timeout(name, store.now() + HOUR) for name in ("m1", "m2")])
    source = persistence.migration_source("moving", clock)
    target = persistence.migration_target("arriving", clock)
    window = Window()
    with server.part("migration"):
        assert source.survey(window).count == 2
        [span] = source.ranges(window, 100)
        batch = Batch(no=0, range=span, state=BatchState.PENDING)
        source.hide("run", batch, window, lambda *_: None)
        items = source.read("run", batch)
        target.open("run")
        assert target.deliver("run", batch, items).new == 2
        source.remove("run", batch, items, lambda *_: None)
        target.shut("run")
        assert source.hidden("run") == 0


def _walk_delayed(server: Server, store: SqlDelayedMessageStore) -> None:
    with server.part("delayed message store"):
        store.initialize("sales", TransactionMode.RECEIVE_ONLY)
        assert store.propose_marker("sales", "word", "broker").word == "word"
        now = store.now()
        first = [timeout("a", now - SECOND), timeout("b", now - SECOND, body=b"x" * 70_000)]
        store.store_many([*first, first[0], timeout("later", now + HOUR)])
        with store.transaction() as transaction:
            assert _ids(store.fetch_due(now, 10, transaction=transaction)) == ["a", "b"]
            with store.transaction() as other:
                assert store.fetch_due(now, 10, transaction=other) == []
            assert store.remove_many(first[:1], transaction=transaction) == 1
        assert store.increment_failure_count(first[1], now + HOUR)
        assert (store.count(), store.destinations(10)) == (2, {"billing": 2})
        assert store.next() == now + HOUR


def _ids(timeouts: list[Timeout]) -> list[str]:
    return [one.id for one in timeouts]


def test_the_vendors_table_is_read_and_moved_aside(server: Server, database: Database) -> None:
    vendor = Table(
        "sales.timeouts",
        MetaData(),
        Column("Id", mssql.NVARCHAR(250), primary_key=True),
        Column("Destination", mssql.NVARCHAR(200)),
        Column("State", LargeBinary),
        Column("Time", mssql.DATETIME),
        Column("Headers", LargeBinary, nullable=False),
        Column("RetryCount", Integer, nullable=False, server_default="0"),
    )
    server.install(f"{CreateTable(vendor).compile(dialect=database.engine.dialect)}")
    due = datetime(2100, 1, 1, 0, 0, 0, 3_000)
    headers = b"<ArrayOfHeaderInfo></ArrayOfHeaderInfo>"
    rows = [
        {"Id": name, "Destination": "billing", "State": b"x", "Time": due, "Headers": headers}
        for name in ("one", "two")
    ]
    with database.begin() as connection:
        execute_many(connection, insert(vendor), rows)
    source = ForeignTable(
        database, layout_called("msmq"), "sales", SetClock(), table="sales.timeouts"
    )
    source.__dict__["_rows"] = vendor  # a server would be asked for its columns

    [span] = source.ranges(Window(), 100)
    batch = Batch(no=0, range=span, state=BatchState.PENDING)
    server.install(f"{CreateTable(source._side('run')).compile(dialect=database.engine.dialect)}")
    source.hide("run", batch, Window(), lambda *_: None)
    moved = source.read("run", batch)

    assert [item.timeout.message.body for item in moved] == [b"x", b"x"]
    assert {item.timeout.due for item in moved} == {to_micros(due.replace(tzinfo=UTC))}
    assert source.survey(Window()).count == 0


def test_a_locked_row_that_is_not_skipped_is_noticed_by_the_proof(
    server: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    persistence = SqlPersistence(database)
    server.install(persistence.ddl())
    monkeypatch.setattr("tests.support.tsql.READPAST", "no such hint")

    with pytest.raises(CombinationRefused, match="does not skip a locked row"):
        persistence.check()


def test_a_database_whose_readers_wait_is_refused(server: Server, database: Database) -> None:
    server.answers["SELECT is_read_committed_snapshot_on"] = 0

    with pytest.raises(CombinationRefused, match="READ_COMMITTED_SNAPSHOT ON"):
        SqlPersistence(database).check()


def test_forced_delayed_durability_is_a_doubt(server: Server, database: Database) -> None:
    server.answers["SELECT delayed_durability_desc"] = "FORCED"

    [doubt] = durability_doubts(database)

    assert doubt.setting == "DELAYED_DURABILITY"


@pytest.mark.parametrize("store", [SqlPersistence, SqlDelayedMessageStore])
def test_sql_server_is_refused_unless_it_is_asked_for(store: type) -> None:
    with pytest.raises(CombinationRefused, match=r"SQL Server .* database\.experimental = true"):
        store("mssql+pymssql://host/db")


def test_another_driver_of_sql_server_is_refused() -> None:
    with pytest.raises(CombinationRefused, match=r"Begin the URL with mssql\+pymssql"):
        Database("mssql+pyodbc://host/db", DatabaseSettings(experimental=True))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1205, Failure.CONFLICT),
        (1222, Failure.CONFLICT),
        (6401, Failure.CONFLICT),
        (1946, Failure.STATEMENT),
        (8152, Failure.STATEMENT),
        (208, Failure.AWAY),
        (229, Failure.AWAY),
        (20003, Failure.AWAY),
    ],
)
def test_an_error_of_sql_server_is_classified_by_its_number(number: int, kind: Failure) -> None:
    error = OperationalError(number, b"words")

    assert classify(exc.DBAPIError("SELECT 1", {}, error)) is kind


def test_a_refused_login_of_sql_server_is_known() -> None:
    error = OperationalError((18456, b"Login failed for user 'sa'."))

    assert is_login_refused(exc.OperationalError(None, None, error))
