"""Installing from nothing, again and by many processes at once; errors where it is missing."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Final

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from chaos.forkserver_client import ForkServer
from tests.support.forked import forked
from timeoutmgr.database import Database
from timeoutmgr.errors import ConfigurationError, SchemaMissing, TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlTransport
from timeoutmgr.transport.sql.tables import tables

pytestmark = pytest.mark.installs

_INSTALL: Final = """
import sys
from timeoutmgr.transport.sql import SqlTransport
transport = SqlTransport(sys.argv[1], prefix=sys.argv[2])
sys.stdin.readline()
transport.install()
transport.check()
"""


def test_check_names_the_command_until_it_was_run(url: str, prefix: str) -> None:
    transport = SqlTransport(url, prefix=prefix)

    with pytest.raises(SchemaMissing, match="timeoutmgr install"):
        transport.check()
    transport.install()
    transport.check()
    transport.install()
    transport.check()

    transport.close()


def test_check_creates_no_file(sqlite_url: str) -> None:
    transport = SqlTransport(sqlite_url)

    with pytest.raises(SchemaMissing):
        transport.check()

    assert transport.database.path is not None
    assert not transport.database.path.exists()


def test_four_processes_install_at_once(url: str, prefix: str, fork_server: ForkServer) -> None:
    with ExitStack() as stack:
        running = [
            stack.enter_context(forked(fork_server, _INSTALL, url, prefix)) for _ in range(4)
        ]
        for one in running:
            one.stdin.write("\n")
            one.stdin.flush()

    assert [one.child.poll() for one in running] == [0] * 4


def test_a_cut_off_installation_is_finished_by_the_next(url: str, prefix: str) -> None:
    transport = SqlTransport(url, prefix=prefix)
    transport.install()
    # As if MySQL had died between two DDL statements.
    with transport.database.begin() as connection:
        connection.execute(text(f"DROP TABLE {prefix}queue_bindings"))
        table = f" ON {prefix}queue_messages" if "mysql" in url else ""
        connection.execute(text(f"DROP INDEX {prefix}queue_order{table}"))
        connection.execute(text(f"DELETE FROM {prefix}queue_version"))

    transport.install()

    with transport.database.read() as connection:
        assert inspect(connection).has_table(f"{prefix}queue_bindings")
        indexes = inspect(connection).get_indexes(f"{prefix}queue_messages")
    columns = sorted(index["column_names"] for index in indexes)
    assert columns == [
        ["discard_at"],
        ["expires_at"],
        ["queue", "priority", "sequence"],
        ["queue", "sequence"],
    ]
    transport.close()


def test_the_revisions_lead_to_the_tables_that_the_code_uses(url: str, prefix: str) -> None:
    transport = SqlTransport(url, prefix=prefix)
    transport.install()

    with transport.database.read() as connection:
        options = {
            "include_name": lambda name, kind, _: kind != "table" or name.startswith(prefix),
            "version_table": f"{prefix}queue_version",
        }
        context = MigrationContext.configure(connection, opts=options)
        difference = compare_metadata(context, tables(None, prefix).metadata)

    assert difference == []
    transport.close()


def test_the_ddl_makes_the_same_tables(url: str, prefix: str) -> None:
    transport = SqlTransport(url, prefix=prefix)
    engine = create_engine(url)

    statements = transport.ddl()
    with engine.begin() as connection:
        for statement in statements.replace("BEGIN;", "").replace("COMMIT;", "").split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
    engine.dispose()

    transport.check()
    transport.session().create_queues(["q"])
    transport.close()


def test_a_schema_is_created_and_used(postgres_url: str, unique: str) -> None:
    transport = SqlTransport(postgres_url, schema=unique)
    transport.install()
    transport.check()
    session = transport.session()

    session.create_queues(["q"])
    session.send([Outgoing("q", Message(id="1"))])
    receiver = session.receiver("q", prefetch=1)
    receiver.ack(receiver.receive(1, 0))

    with transport.database.read() as connection:
        assert f"{unique}" in inspect(connection).get_schema_names()
        assert len(inspect(connection).get_table_names(schema=unique)) == 6
    transport.close()


@pytest.mark.parametrize("bad", [{"prefix": "a b"}, {"schema": "x;y"}, {"owner": "o" * 65}])
def test_an_invalid_name_is_refused(postgres_url: str, bad: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        SqlTransport(postgres_url, **bad)  # type: ignore[arg-type]  # wrong on purpose


def test_a_url_without_a_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="names no database"):
        SqlTransport("mysql+pymysql://root@127.0.0.1/")


def test_sqlite_has_no_schemas(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        SqlTransport(sqlite_url, schema="main")


def test_a_newer_database_is_not_downgraded(url: str, prefix: str) -> None:
    transport = SqlTransport(url, prefix=prefix)
    transport.install()
    with transport.database.begin() as connection:
        connection.execute(text(f"UPDATE {prefix}queue_version SET version_num = '9999'"))

    with pytest.raises(ConfigurationError, match="newer"):
        transport.install()
    with pytest.raises(SchemaMissing, match="newer"):
        transport.check()
    transport.close()


def test_logging_of_the_host_is_left_alone(sqlite_url: str) -> None:
    before = (logging.root.level, list(logging.root.handlers), logging.getLogger("alembic").level)
    transport = SqlTransport(sqlite_url)

    transport.install()
    transport.ddl()

    after = (logging.root.level, list(logging.root.handlers), logging.getLogger("alembic").level)
    assert after == before
    transport.close()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    transport = SqlTransport("postgresql+psycopg://nobody:secret@127.0.0.1:1/none")

    assert "secret" not in transport.describe()
    for use in (transport.check, transport.session().ping, transport.install):
        with pytest.raises(TransportUnavailable):
            use()


def test_a_database_is_shared_by_its_url(sqlite_url: str) -> None:
    database = Database.shared(sqlite_url)

    assert SqlTransport(sqlite_url).database is database
    assert SqlTransport(database).database is database
