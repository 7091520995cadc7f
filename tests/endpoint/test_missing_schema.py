"""A process that only sends, on a database without our tables, learns the command to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from timeoutmgr import Endpoint, EndpointConfiguration, SendOptions, ToSend
from timeoutmgr.contracts import GroupBy
from timeoutmgr.database import Database
from timeoutmgr.database.failures import tells_of_absence
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import (
    EndpointClosed,
    SchemaMissing,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.sender.bulk import BulkInterrupted


@pytest.fixture(params=["sqlite_url", "postgres_url", "mysql_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """A caller's own engine."""
    made = create_engine(url)
    yield made
    made.dispose()


def sales(url: str, prefix: str) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(url, prefix=f"{prefix}_")
    config.use_persistence(url, prefix=f"{prefix}_")
    config.enable_feature(TimeoutManager())
    config.check_destinations = False
    return config


SENDS: list[Callable[[Endpoint], object]] = [
    lambda endpoint: endpoint.send("billing", "Bill", {}),
    lambda endpoint: endpoint.send("billing", "Bill", {}, delay=60),
    lambda endpoint: endpoint.clear_timeouts("order-7"),
]


@pytest.mark.parametrize("send", SENDS)
def test_a_send_before_the_installer_names_the_command(
    url: str, unique: str, send: Callable[[Endpoint], object]
) -> None:
    endpoint = Endpoint(sales(url, unique))

    with pytest.raises(SchemaMissing, match="run `timeoutmgr install`") as missing:
        send(endpoint)

    assert isinstance(missing.value.__cause__, TransportUnavailable)
    endpoint.close()


def test_a_block_whose_start_fails_closes_the_endpoint(url: str, unique: str) -> None:
    config = sales(url, unique)
    config.install = False
    endpoint = Endpoint(config)

    with pytest.raises(SchemaMissing), endpoint:
        pass

    with pytest.raises(EndpointClosed):
        endpoint.send("billing", "Bill", {})


ASKS: list[Callable[[Timeouts], object]] = [
    lambda timeouts: timeouts.cancel("m1"),
    lambda timeouts: timeouts.cancel_saga("order-7"),
    lambda timeouts: timeouts.reschedule("m1", delay=60),
    lambda timeouts: timeouts.send_now("m1"),
    lambda timeouts: timeouts.show("m1"),
    lambda timeouts: list(timeouts.list()),
    lambda timeouts: timeouts.count(),
    lambda timeouts: timeouts.count_in_bounds(),
]


@pytest.mark.parametrize("ask", ASKS)
def test_a_query_of_timeouts_before_the_installer_names_the_command(
    url: str, unique: str, ask: Callable[[Timeouts], object]
) -> None:
    endpoint = Endpoint(sales(url, unique))

    with pytest.raises(SchemaMissing, match="run `timeoutmgr install`"):
        ask(endpoint.timeouts)
    endpoint.close()


def test_a_send_in_a_session_before_the_installer_names_the_command(
    url: str, unique: str, engine: Engine
) -> None:
    endpoint = Endpoint(sales(url, unique))

    with (
        Session(engine) as session,
        pytest.raises(SchemaMissing, match="run `timeoutmgr install`"),
    ):
        endpoint.send("billing", "Bill", {}, session=session)
    endpoint.close()


def test_a_bulk_before_the_installer_names_the_command_and_keeps_its_messages(
    url: str, unique: str
) -> None:
    endpoint = Endpoint(sales(url, unique))
    message = ToSend("billing", "Bill", {}, SendOptions(delay=60))

    for bulk in (endpoint.send_many, endpoint.store_many):
        with pytest.raises(BulkInterrupted, match="run `timeoutmgr install`") as interrupted:
            bulk([message])
        assert isinstance(interrupted.value.__cause__, SchemaMissing)
        assert len(interrupted.value.unsent) == 1
    endpoint.close()


QUERIES: list[Callable[[Timeouts], object]] = [
    lambda timeouts: timeouts.count(),
    lambda timeouts: timeouts.list_in_bounds(),
    lambda timeouts: timeouts.history("some"),
    lambda timeouts: timeouts.groups(GroupBy.TYPE),
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_before_the_installer_names_the_command(
    url: str, unique: str, query: Callable[[Timeouts], object]
) -> None:
    endpoint = Endpoint(sales(url, unique))

    with pytest.raises(SchemaMissing, match="run `timeoutmgr install`"):
        query(endpoint.timeouts)

    endpoint.close()


@pytest.mark.parametrize("limit", [2**62, 2**100])
def test_a_limit_beyond_every_table_is_no_limit(url: str, unique: str, limit: int) -> None:
    endpoint = Endpoint(sales(url, unique))
    endpoint.install()

    assert not endpoint.timeouts.groups(GroupBy.TYPE, limit=limit).counts
    assert not endpoint.timeouts.audit(limit=limit)
    endpoint.close()


def test_an_older_schema_names_the_command_too(url: str, unique: str) -> None:
    endpoint = Endpoint(sales(url, unique))
    endpoint.install()
    with Database.shared(url).begin() as connection:
        connection.execute(text(f"UPDATE {unique}_queue_version SET version_num = '0000'"))
        connection.execute(text(f"DROP TABLE {unique}_queue_messages"))

    with pytest.raises(SchemaMissing, match="is at revision '0000'"):
        endpoint.send("sales", "Bill", {})
    endpoint.close()


def test_a_table_that_is_missing_from_a_full_schema_stays_an_outage(url: str, unique: str) -> None:
    endpoint = Endpoint(sales(url, unique))
    endpoint.install()
    with Database.shared(url).begin() as connection:
        connection.execute(text(f"DROP TABLE {unique}_queue_messages"))

    with pytest.raises(TransportUnavailable, match=f"{unique}_queue_messages"):
        endpoint.send("sales", "Bill", {})
    endpoint.close()


@pytest.mark.parametrize("wrong", ["SELECT no_such_column FROM {0}", "SELECT 1 FROM no_such_{0}"])
def test_a_missing_table_or_column_is_distinguished_from_other_errors(
    engine: Engine, unique: str, wrong: str
) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {unique} (id INT)"))

    with engine.begin() as connection, pytest.raises(Exception, match=unique) as absent:
        connection.execute(text(wrong.format(unique)))
    with engine.begin() as connection, pytest.raises(Exception, match="SELEKT") as misspelt:
        connection.execute(text(f"SELEKT 1 FROM {unique}"))
    wrapped = StorageUnavailable("away")
    wrapped.__cause__ = absent.value

    assert [tells_of_absence(each) for each in (absent.value, wrapped)] == [True, True]
    other = (misspelt.value, StorageUnavailable("away"))
    assert [tells_of_absence(each) for each in other] == [False, False]
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {unique}"))
