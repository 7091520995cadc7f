"""A server that may lose its commits is refused, unless loss is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.services.private import PrivateServer
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.clock import SystemClock
from timeoutmgr.database import Database
from timeoutmgr.database.proof import durability_doubts, require_durable
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.persistence import SqlDelayedMessageStore, SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.satellites.timeout_manager.feature import Readiness
from timeoutmgr.transport.sql import SqlTransport


@pytest.mark.parametrize("url", ["sqlite_url", "postgres_url", "mysql_url"])
def test_a_server_with_its_own_defaults_passes(url: str, request: pytest.FixtureRequest) -> None:
    database = Database(request.getfixturevalue(url))

    require_durable(database, accept_loss=False)

    assert list(durability_doubts(database)) == []
    database.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "careless", "setting"),
    [
        ("postgres", ["-c", "fsync=off"], "fsync"),
        ("postgres", ["-c", "full_page_writes=off"], "full_page_writes"),
        ("mysql", ["--innodb-flush-log-at-trx-commit=2"], "innodb_flush_log_at_trx_commit"),
        ("mysql", ["--innodb-flush-log-at-trx-commit=0"], "innodb_flush_log_at_trx_commit"),
    ],
)
def test_a_server_that_may_lose_commits_is_refused_unless_loss_is_accepted(
    kind: str,
    careless: list[str],
    setting: str,
    private_server: Callable[[str], PrivateServer],
) -> None:
    server = private_server(kind)
    server.stop()
    command: Any = server._command()
    server._command = lambda: [*command, *careless]  # type: ignore[method-assign]  # one server
    server.start()
    database = Database(server.url)

    with pytest.raises(CombinationRefused, match=setting):
        require_durable(database, accept_loss=False)

    require_durable(database, accept_loss=True)
    database.dispose()


@pytest.fixture
def careful(postgres_url: str) -> Iterator[Database]:
    made = Database(postgres_url)
    yield made
    made.dispose()


@pytest.fixture
def careless(postgres_url: str) -> Iterator[Database]:
    made = Database(f"{postgres_url}?options=-csynchronous_commit%3Doff")
    yield made
    made.dispose()


def with_manager(name: str, queues: Database, store: Database) -> EndpointConfiguration:
    config = EndpointConfiguration(name)
    config.use_transport(SqlTransport(queues, prefix=f"{name}_"))
    config.use_persistence(SqlPersistence(store, prefix=f"{name}_"))
    config.enable_feature(TimeoutManager())
    return config


def with_delayed_store(name: str, queues: Database, store: Database) -> EndpointConfiguration:
    config = EndpointConfiguration(name)
    delayed = DelayedDeliverySettings(SqlDelayedMessageStore(store, table=name))
    config.use_transport(SqlTransport(queues, prefix=f"{name}_"), delayed_delivery=delayed)
    return config


@pytest.mark.parametrize("configure", [with_manager, with_delayed_store])
@pytest.mark.parametrize("step", ["start", "install"])
def test_an_endpoint_on_such_a_server_is_refused_unless_loss_is_accepted(
    configure: Callable[[str, Database, Database], EndpointConfiguration],
    step: str,
    careful: Database,
    careless: Database,
    unique: str,
) -> None:
    refused = Endpoint(configure(unique, careful, careless))
    with pytest.raises(CombinationRefused, match="synchronous_commit = off"):
        getattr(refused, step)()
    refused.close()

    config = configure(unique, careful, careless)
    config.accept_loss()
    with closing(Endpoint(config)) as accepted:
        getattr(accepted, step)()


@pytest.mark.parametrize("step", ["start", "install"])
def test_queues_on_such_a_server_are_refused_unless_loss_is_accepted(
    step: str, careful: Database, careless: Database, unique: str
) -> None:
    refused = Endpoint(with_manager(unique, careless, careful))
    with pytest.raises(CombinationRefused, match="synchronous_commit = off"):
        getattr(refused, step)()
    refused.close()

    config = with_manager(unique, careless, careful)
    config.accept_loss()
    with closing(Endpoint(config)) as accepted:
        getattr(accepted, step)()


def test_a_store_that_comes_later_is_refused_too(careless: Database, unique: str) -> None:
    persistence = SqlPersistence(careless, prefix=f"{unique}_")
    ready = Readiness(persistence, persistence.timeouts("e", SystemClock()), install=True)

    with pytest.raises(CombinationRefused, match="synchronous_commit = off"):
        ready()
    persistence.close()
