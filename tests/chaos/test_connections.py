"""A process loses its connections, or the answer to its commit; no other process notices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from chaos import Fault, FaultKind
from chaos.connections import Cutter, PostgresCutter, ProxyCutter, cutter
from chaos.supervisor import SupervisedProcess
from tests.chaos.injector import injector


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite:///chaos.db", None),
        ("postgresql+psycopg:///test?host=/run/postgresql", None),
        ("postgresql+psycopg://localhost/test", PostgresCutter),
        ("amqp://localhost//", ProxyCutter),
        ("amqp://one//;amqp://other//", None),
    ],
)
def test_connections_are_cut_where_there_are_any(url: str, kind: type | None) -> None:
    found = cutter(url)

    assert type(found) is (kind or type(None))
    if found is not None:
        found.close()


@pytest.fixture(params=["postgres_url", "mysql_url"])
def database(request: pytest.FixtureRequest) -> Iterator[Cutter]:
    found = cutter(request.getfixturevalue(request.param))
    assert found is not None
    yield found
    found.close()


@contextmanager
def connected(cutter: Cutter, process: str) -> Iterator[Connection]:
    engine = create_engine(cutter.url(process), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def test_only_the_connections_of_the_process_are_cut(database: Cutter) -> None:
    with connected(database, "worker-1") as cut, connected(database, "worker-2") as spared:
        for connection in (cut, spared):
            connection.execute(text("SELECT 1"))

        assert database.cut("worker-1") == 1

        with pytest.raises(OperationalError):
            cut.execute(text("SELECT 1"))
        cut.invalidate()
        assert spared.execute(text("SELECT 1")).scalar() == 1


def test_a_commit_whose_answer_is_lost_has_happened(
    database: Cutter, process: SupervisedProcess, unique: str
) -> None:
    happening = injector(Fault(0.0, FaultKind.LOSE_COMMIT, 0.5), process=process, store=database)
    with connected(database, process.name) as connection:
        connection.execute(text(f"CREATE TABLE {unique} (n INT)"))
        connection.commit()
        happening.step(0.0)
        assert happening.incidents == []

        connection.execute(text(f"INSERT INTO {unique} VALUES (1)"))
        with pytest.raises(OperationalError):
            connection.commit()
        connection.invalidate()

    happening.step(0.1)

    [lost] = happening.incidents
    assert (lost.kind, lost.process) == (FaultKind.LOSE_COMMIT, "worker-1#1")
    with connected(database, process.name) as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {unique}")).scalar() == 1
        connection.execute(text(f"DROP TABLE {unique}"))
        connection.commit()


def test_no_answer_is_lost_after_the_chaos(database: Cutter, process: SupervisedProcess) -> None:
    happening = injector(Fault(0.0, FaultKind.LOSE_COMMIT, 0.5), process=process, store=database)
    with connected(database, process.name) as connection:
        happening.step(0.0)
        happening.calm()

        connection.execute(text("SELECT 1"))
        connection.commit()

    happening.step(0.1)
    assert happening.incidents == []
