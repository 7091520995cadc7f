"""A refusal of the database: a sound probe row tells a timeout's fault from the table's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from tests.persistence.making import timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout, TimeoutFilter, TransactionMode
from timeoutmgr.database import Database
from timeoutmgr.errors import MessageRejected, StorageUnavailable
from timeoutmgr.persistence import SqlDelayedMessageStore, SqlPersistence

Refuse = Callable[[str], None]


class Table:
    """A store with a table of its own, in which rows can be refused."""

    def __init__(self, database: Database, name: str, store: Any, count: Callable[[], int]) -> None:
        self.database = database
        self.name = name
        self.store = store
        self.count = count

    def refuse(self, rows: str) -> None:
        """Have the database refuse *rows*, a condition on them."""
        quoted = self.database.engine.dialect.identifier_preparer.quote(self.name)
        refusing = f"ALTER TABLE {quoted} ADD CONSTRAINT changed CHECK (NOT ({rows}))"
        if self.database.is_sqlite:
            condition = rows.replace("destination", "NEW.destination")
            refusing = (
                f"CREATE TRIGGER changed BEFORE INSERT ON {quoted} WHEN {condition} "
                "BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )
        with self.database.begin() as connection:
            connection.execute(text(refusing))

    def inside(self, is_inside: bool) -> AbstractContextManager[Any]:
        """Open a caller's transaction, or none."""
        return self.database.begin() if is_inside else nullcontext()


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(request.getfixturevalue(f"{request.param}_url"))
    yield made
    made.dispose()


@pytest.fixture(params=["timeouts", "delayed"])
def table(database: Database, unique: str, request: pytest.FixtureRequest) -> Iterator[Table]:
    if request.param == "timeouts":
        persistence = SqlPersistence(database, prefix=f"{unique}_")
        persistence.install()
        store = persistence.timeouts("e", SystemClock())
        yield Table(database, f"{unique}_timeouts", store, lambda: store.count(TimeoutFilter()))
        persistence.close()
        return
    delayed = SqlDelayedMessageStore(database, table=unique)
    delayed.setup_infrastructure("e")
    delayed.initialize("e", TransactionMode.RECEIVE_ONLY)
    yield Table(database, unique, delayed, delayed.count)
    delayed.close()


def for_(destination: str) -> Timeout:
    return replace(timeout(destination), destination=destination)


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_table_that_refuses_every_row_is_an_outage(table: Table, is_inside: bool) -> None:
    table.refuse("destination <> 'none'")

    with pytest.raises(StorageUnavailable), table.inside(is_inside) as transaction:
        table.store.store_many([for_("good")], transaction=transaction)

    assert table.count() == 0


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_refused_row_beside_an_accepted_sound_row_is_the_timeouts_fault(
    table: Table, is_inside: bool
) -> None:
    table.refuse("destination = 'bad'")

    with (
        pytest.raises(MessageRejected, match="refuses a value"),
        table.inside(is_inside) as transaction,
    ):
        table.store.store_many([for_("bad")], transaction=transaction)
    table.store.store_many([for_("good")])

    assert table.count() == 1  # the sound row of the trial is gone


def test_a_missing_partition_is_an_outage(postgres_url: str, unique: str) -> None:
    database = Database(postgres_url)
    persistence = SqlPersistence(database, prefix=f"{unique}_")
    persistence.install()
    with database.begin() as connection:
        everything = f"{unique}_timeouts_all"
        connection.execute(text(f"ALTER TABLE {unique}_timeouts DETACH PARTITION {everything}"))

    with pytest.raises(StorageUnavailable, match="no partition"):
        persistence.timeouts("e", SystemClock()).store_many([timeout("a")])
    persistence.close()


def test_a_missing_column_is_an_outage(database: Database, unique: str) -> None:
    persistence = SqlPersistence(database, prefix=f"{unique}_")
    persistence.install()
    with database.begin() as connection:
        renamed = "RENAME COLUMN destination TO target"
        connection.execute(text(f"ALTER TABLE {unique}_timeouts {renamed}"))

    with pytest.raises(StorageUnavailable):
        persistence.timeouts("e", SystemClock()).store_many([timeout("a")])
    persistence.close()
