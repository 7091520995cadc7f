from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from tests.pipeline.making import batch, row
from timeoutmgr.pipeline import connecting
from timeoutmgr.pipeline.connecting import keep_connections, reading_connection
from timeoutmgr.pipeline.fetching import fetch
from timeoutmgr.pipeline.loading import Loader
from timeoutmgr.pipeline.snapshots import SharedSnapshot, snapshot
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import Selection, projected

ASK_PID = "SELECT pg_backend_pid()"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process keeps a connection, as Spark's workers do, until the end of the test."""
    monkeypatch.setattr(connecting, "_kept", None)
    keep_connections()
    yield
    assert connecting._kept is not None
    if connecting._kept._connection is not None:
        connecting._kept._connection.close()


def backend(store: Store) -> int:
    with reading_connection(store.database) as connection, connection.cursor() as cursor:
        cursor.execute(ASK_PID)
        return int(cursor.fetchone()[0])


def state_of(store: Store, pid: int) -> str | None:
    asked = text("SELECT state FROM pg_stat_activity WHERE pid = :pid")
    with store.database.read() as connection:
        return connection.execute(asked, {"pid": pid}).scalar()


def ids(store: Store, name: str | None = None) -> list[str]:
    columns = projected("pending", ["id"])
    batches = fetch(store, "pending", columns, Selection(), snapshot=name)
    return [one for each in batches for one in each["id"].to_pylist()]


def test_a_process_that_is_no_worker_opens_one_each_time(postgres: Store) -> None:
    assert connecting._kept is None
    assert backend(postgres) != backend(postgres)


@pytest.mark.usefixtures("worker")
def test_a_worker_reads_its_next_part_by_the_same_connection(postgres: Store) -> None:
    assert backend(postgres) == backend(postgres)


@pytest.mark.usefixtures("worker")
def test_a_connection_that_waits_is_in_no_transaction(postgres: Store) -> None:
    pid = backend(postgres)

    assert state_of(postgres, pid) == "idle"


@pytest.mark.usefixtures("worker")
def test_each_read_by_a_kept_connection_sees_its_own_moment(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        Loader(postgres).load([batch([row(2)])])

        counts = [len(ids(postgres, held.name)), len(ids(postgres)), len(ids(postgres, held.name))]

    assert counts == [1, 2, 1]


@pytest.mark.usefixtures("worker")
def test_a_connection_that_the_server_ended_is_replaced(postgres: Store) -> None:
    pid = backend(postgres)
    with postgres.database.read() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})

    assert backend(postgres) != pid


@pytest.mark.usefixtures("worker")
def test_a_connection_in_the_middle_of_a_read_is_not_kept(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    before = backend(postgres)
    rows = fetch(postgres, "pending", projected("pending", ["id"]), Selection())
    next(rows)
    rows.close()  # type: ignore[attr-defined]  # a generator has it

    assert backend(postgres) != before
    assert len(ids(postgres)) == 1


@pytest.mark.usefixtures("worker")
def test_two_reads_at_once_have_a_connection_each(postgres: Store) -> None:
    with reading_connection(postgres.database) as connection, connection.cursor() as cursor:
        cursor.execute(ASK_PID)
        outer, inner = int(cursor.fetchone()[0]), backend(postgres)

    assert outer != inner
    assert backend(postgres) == outer
