"""Upgrades of a part's tables: Alembic, run from code and safe to run concurrently.

A part keeps its hand-written revisions in a folder of its own package, with an ``env.py`` that
calls :func:`run_environment`, and has its own version table, so that queues and stores can share a
database and be upgraded apart. The revisions have no branches; each file's name begins with its
revision: ``0001_queues.py``. If older programs can use the tables of a revision, its name includes
the newest revision of the oldest such program: ``0014since0013_gadgets.py`` (ADR 41). Schema and
prefix reach a revision through ``config.attributes``. Nothing here touches the host's logging.

Alembic is imported only when it is needed: it would take 10 MiB of every process, for work that few
starts have to do.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    Select,
    String,
    Table,
    column,
    false,
    inspect,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.schema import CreateSchema

from timeoutmgr.crashpoints import reach
from timeoutmgr.database.deadlines import be_patient
from timeoutmgr.database.engine import Database
from timeoutmgr.database.failures import is_right_missing
from timeoutmgr.database.indexes import LOCK_TIMEOUT, one_table_at_a_time
from timeoutmgr.database.proof import prove_rows, prove_server
from timeoutmgr.database.session_locks import applock
from timeoutmgr.errors import ConfigurationError, SchemaMissing, StorageConflict, StorageUnavailable
from timeoutmgr.message.redaction import on_one_line

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext

logger = logging.getLogger(__name__)

_PATIENCE: Final = 600.0
"""Seconds for which an upgrade is tried again while other processes hold locks on the tables."""
_LOCK_WAITS: Final = {
    # A role's time limit would interrupt each build of an index on a large table.
    "postgresql": f"{LOCK_TIMEOUT}; SET statement_timeout = 0",
    "mysql": "SET SESSION lock_wait_timeout = 1",
    "mariadb": "SET SESSION lock_wait_timeout = 1",
    "mssql": "SET LOCK_TIMEOUT 500",
}
"""How long a change of tables waits for its locks, while other statements wait for it."""
_SINCE: Final = "since"
_LOCK_WAIT: Final = 50
"""Seconds to wait while another process upgrades; below the read timeouts of the drivers."""

# Alembic's ``context`` and ``op`` are global to the process.
_one_at_a_time = threading.Lock()


def _after_fork() -> None:
    """Replace the lock: in a child, an upgrade of the parent may keep it locked."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def upgrade(
    database: Database,
    script_location: str | Path,
    version_table: str,
    schema: str | None,
    attributes: Mapping[str, Any],
) -> None:
    """Run the revisions of *script_location* that *database* does not have yet.

    *script_location* is a folder, or ``"package:folder"``. A *schema* that does not exist is
    created. A second run does nothing; of several processes, one works while the rest wait. A
    statement may run for any time, but waits for its locks no longer than other statements can wait
    for it; then the revision is run again. Every revision must be repeatable from its start. Raises
    StorageUnavailable, ConfigurationError if the database is newer than the code or fails the
    proof, and SchemaMissing if its user may not change tables.
    """
    prove_server(database)
    if not _serves(current(database, version_table, schema), script_location):
        config = _config(script_location, version_table, schema, attributes)
        _until_others_let_go(database, lambda: _run_revisions(database, config))
    prove_rows(database, _version(version_table, schema))


def _until_others_let_go(database: Database, work: Callable[[], None]) -> None:
    """Do *work*; repeat it while other processes hold the locks that it needs."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return work()
        except StorageConflict:
            if time.monotonic() > deadline:
                raise
            logger.info(
                "upgrade of %s waits for the locks of other sessions",
                database.describe(),
                extra={"event": "upgrade_waits"},
            )
            time.sleep(random.uniform(0.1, 0.5))
        except StorageUnavailable as error:
            if not is_right_missing(error.__cause__):
                raise
            raise SchemaMissing(
                f"tables are missing or too old, and this user may not change them: "
                f"{on_one_line(error)}; run `timeoutmgr install` as their owner or an administrator"
            ) from error


def _run_revisions(database: Database, config: Config) -> None:
    from alembic import command
    from alembic.util import CommandError

    version_table, schema = config.attributes["version_table"], config.attributes["schema"]
    with _one_at_a_time, _upgrading(database, f"{schema or ''}.{version_table}") as connection:
        if schema is not None and not inspect(connection).has_schema(schema):
            connection.execute(_create_schema(database, schema))
            reach("upgrade.schema_created")
        if database.dialect.name in {"postgresql", "mssql"}:
            connection.commit()  # each revision begins its own transaction
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
            reach("upgrade.revisions_run")
        except CommandError as error:
            raise ConfigurationError(
                f"{database.describe()} cannot be upgraded: {error}; was it upgraded by a newer "
                "version of this package? Install that version"
            ) from error


def remove(
    database: Database, version_table: str, schema: str | None, tables: Sequence[Table]
) -> None:
    """Drop *tables* and their version; ignore missing tables.

    The version goes first: if MySQL is cut off in between, ``upgrade`` creates the missing tables.
    """
    version = _version(version_table, schema)
    with _alone(database, f"{schema or ''}.{version_table}") as connection:
        for each in (version, *tables):
            each.drop(connection, checkfirst=True)
            reach("forgetting.table_dropped")


def current(database: Database, version_table: str, schema: str | None) -> str | None:
    """Return the revision of *database*, or None if nothing was installed.

    Raises SchemaMissing for several revisions: it is then unknown which tables exist.
    """
    if database.path is not None and not database.path.exists():
        return None  # a connection would create the file
    with database.read() as connection:
        if not inspect(connection).has_table(version_table, schema=schema):
            return None
        versions = table(version_table, column("version_num"), schema=schema)
        found = sorted(connection.execute(select(versions.c.version_num)).scalars())
    if len(found) > 1:
        raise SchemaMissing(
            f"{version_table} of {database.describe()} must have one row, the revision of the "
            f"tables, and has {', '.join(found)}: statements of `install --sql`, which are for an "
            f"empty database, ran on an old one; delete all rows but {found[0]!r}, and run "
            "`timeoutmgr install`, which does the rest"
        )
    return found[0] if found else None


def head(script_location: str | Path) -> str:
    """Return the newest revision of *script_location*."""
    newest = max(_revisions(script_location), default=None)
    if newest is None:
        raise ConfigurationError(f"{script_location!s} holds no revision")
    return newest


def _serves(found: str | None, script_location: str | Path) -> bool:
    """Return whether this program can use tables at the revision *found*.

    A newer revision, of a later program, says so in its name.
    """
    ours = head(script_location)
    if found is None or found == ours or found in _revisions(script_location):
        return found == ours
    number, _, oldest = found.partition(_SINCE)
    return bool(oldest) and oldest <= ours.partition(_SINCE)[0] < number


def check(
    database: Database, script_location: str | Path, version_table: str, schema: str | None
) -> None:
    """Raise SchemaMissing unless *database* is at the newest revision, or at one that we can use.

    Raises CombinationRefused if it fails the proof.
    """
    prove_server(database)
    found, needed = current(database, version_table, schema), head(script_location)
    if _serves(found, script_location):
        prove_rows(database, _version(version_table, schema))
        return
    place = f"{schema}.{version_table}" if schema else version_table
    if found is None:
        raise SchemaMissing(
            f"{database.describe()} has no tables of timeoutmgr yet (by {place}); run "
            "`timeoutmgr install`"
        )
    if found in _revisions(script_location):
        state, remedy = f"is at revision {found!r}", "run `timeoutmgr install`"
    else:
        state = f"is at revision {found!r}, which is newer than this version"
        remedy = "install the version of this package that upgraded it"
    raise SchemaMissing(
        f"{database.describe()} {state} (by {place}), and {needed!r} is needed; {remedy}"
    )


def _version(version_table: str, schema: str | None) -> Table:
    """Return Alembic's table, which has one row as our revisions have no branches."""
    return Table(
        version_table, MetaData(schema=schema), Column("version_num", String(32), primary_key=True)
    )


def _revisions(script_location: str | Path) -> set[str]:
    files = (folder_of(script_location) / "versions").glob("[0-9]*_*.py")
    return {file.name.partition("_")[0] for file in files}


def ddl(
    database: Database,
    script_location: str | Path,
    version_table: str,
    schema: str | None,
    attributes: Mapping[str, Any],
) -> str:
    """Return the SQL that ``upgrade`` would run on an empty *database*, without connecting."""
    from alembic import command

    config = _config(script_location, version_table, schema, attributes)
    config.attributes["url"] = database.url
    if database.dialect.name == "mssql":
        config.attributes["dialect_opts"] = {"deprecate_large_types": True}
    config.output_buffer = io.StringIO()
    if schema is not None:
        statement = _create_schema(database, schema)
        config.output_buffer.write(f"{statement.compile(dialect=database.engine.dialect)};\n\n")
    with _one_at_a_time:
        command.upgrade(config, "head", sql=True)
    return config.output_buffer.getvalue()


def run_environment(context: Any) -> None:
    """Run the revisions in Alembic's *context*; the whole of a part's ``env.py``."""
    environment: EnvironmentContext = context
    attributes = environment.config.attributes
    options: dict[str, Any] = {
        "version_table": attributes["version_table"],
        "version_table_schema": attributes["schema"],
    }
    if environment.is_offline_mode():
        environment.configure(
            url=attributes["url"],
            literal_binds=True,
            # Otherwise the text would have a driver's doubled percent signs.
            dialect_opts={"paramstyle": "named", **attributes.get("dialect_opts", {})},
            **options,
        )
    else:
        environment.configure(
            connection=attributes["connection"], transaction_per_migration=True, **options
        )
    with environment.begin_transaction():
        environment.run_migrations()


def revision_attributes() -> dict[str, Any]:
    """Return the *attributes* of ``upgrade`` and the schema; for use in a revision."""
    from alembic import op

    config = op.get_context().config
    assert config is not None, "revisions run with a Config"
    return config.attributes


def create_missing(*tables: Table) -> None:
    """Create missing *tables* and their indexes; for use in a revision.

    MySQL commits every DDL statement by itself: a revision that was cut off there is run again
    from its start. In offline mode everything counts as missing.
    """
    from alembic import op

    migration = op.get_context()
    for made in tables:
        if migration.as_sql or not inspect(op.get_bind()).has_table(made.name, schema=made.schema):
            migration.impl.create_table(made)  # with its indexes
            if migration.dialect.name == "mssql":
                # Locks of thousands of rows would become a table lock, which nothing skips.
                name = migration.dialect.identifier_preparer.format_table(made)
                op.execute(f"ALTER TABLE {name} SET (LOCK_ESCALATION = DISABLE)")
            reach("upgrade.table_created")
            continue
        for index in sorted(made.indexes, key=lambda index: str(index.name)):
            if not _has_index(str(index.name), made):
                migration.impl.create_index(index)
                reach("upgrade.index_created")


def add_missing_columns(made: Table, *columns: Column[Any]) -> None:
    """Add missing *columns* to the table *made*; for use in a revision."""
    from alembic import op

    there = set() if op.get_context().as_sql else _columns(made)
    for one in columns:
        if one.name not in there:
            with one_table_at_a_time():
                op.add_column(made.name, one, schema=made.schema)


def drop_index(name: str, made: Table) -> None:
    """Drop the index *name* of the table *made*, if it exists; for use in a revision."""
    from alembic import op

    if op.get_context().as_sql or _has_index(name, made):
        with one_table_at_a_time():
            op.drop_index(name, table_name=made.name, schema=made.schema)


def _has_index(name: str, made: Table) -> bool:
    from alembic import op

    return inspect(op.get_bind()).has_index(made.name, name, schema=made.schema)


def _columns(made: Table) -> set[str]:
    from alembic import op

    # Not by inspection, which warns of types unknown to SQLAlchemy, such as xid8 in a history.
    no_rows: Select[Any] = select(literal_column("*")).select_from(made).where(false())
    return set(op.get_bind().execute(no_rows).keys())


def folder_of(script_location: str | Path) -> Path:
    """Return the folder that *script_location* names; ``"package:folder"`` or a path."""
    if isinstance(script_location, Path):
        return script_location
    package, _, folder = script_location.partition(":")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"{package!r} is no package; expected 'package:folder'")
    return Path(next(iter(spec.submodule_search_locations)), folder)


def _config(
    script_location: str | Path,
    version_table: str,
    schema: str | None,
    attributes: Mapping[str, Any],
) -> Config:
    from alembic.config import Config

    config = Config(attributes={**attributes, "version_table": version_table, "schema": schema})
    # Alembic interpolates: it would take a percent sign in the path for a variable.
    config.set_main_option("script_location", str(folder_of(script_location)).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _upgrading(database: Database, what: str) -> Iterator[Connection]:
    """Open a connection that upgrades *what*, under a lock of the database.

    Its statements have no time limit. On a server another connection holds the lock, because the
    upgrade is several transactions.
    """
    if database.is_sqlite:
        with _alone(database, what) as connection:
            yield connection
        return
    with _alone(database, what), database.apart.connect() as connection:
        be_patient(connection)
        connection.exec_driver_sql(_LOCK_WAITS[database.dialect.name])
        connection.commit()
        yield connection
        connection.commit()


@contextmanager
def _alone(database: Database, what: str) -> Iterator[Connection]:
    """Open the transaction that upgrades *what*, under a lock of the database."""
    digest = hashlib.sha256(f"timeoutmgr upgrade {what}".encode()).digest()
    if database.dialect.name in {"mysql", "mariadb"}:
        name = f"timeoutmgr-{digest.hex()[:40]}"
        with _named_lock(database, name, what), database.begin() as connection:
            yield connection
        return
    with database.begin() as connection:  # on SQLite, BEGIN IMMEDIATE has already locked the file
        if database.dialect.name == "postgresql":
            _wait_for_postgresql_lock(connection, int.from_bytes(digest[:8], signed=True), what)
        if database.dialect.name == "mssql":
            _wait_for_mssql_lock(connection, digest.hex(), what)
        yield connection


def _wait_for_postgresql_lock(connection: Connection, key: int, what: str) -> None:
    """Hold PostgreSQL's lock *key* until the transaction ends; this also works behind a pooler.

    Nothing holds a snapshot meanwhile, as a statement that waits does: the CONCURRENTLY build of an
    index waits for the end of all snapshots.
    """
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        is_held = connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({key})").scalar()
        # It may be idle for hours; and the SELECT holds a snapshot until the next statement.
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        if is_held:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            return
        if time.monotonic() > deadline:
            raise _is_upgrading(what)
        time.sleep(random.uniform(0.1, 0.5))


def _wait_for_mssql_lock(connection: Connection, name: str, what: str) -> None:
    """Hold SQL Server's lock *name* until the transaction of *connection* ends."""
    more = f", @LockMode = 'Exclusive', @LockTimeout = {_LOCK_WAIT * 1_000}"
    batch = text(applock("sp_getapplock", "Transaction", more))
    if not connection.execute(batch, {"name": f"timeoutmgr-{name}"}).scalar():
        raise _is_upgrading(what)


def _is_upgrading(what: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"another process has been upgrading {what} for {_LOCK_WAIT} s; try again when it is done"
    )


def _create_schema(database: Database, schema: str) -> CreateSchema:
    # SQL Server has no IF NOT EXISTS; we hold the lock, and have seen that the schema is missing.
    return CreateSchema(schema, if_not_exists=database.dialect.name != "mssql")


@contextmanager
def _named_lock(database: Database, name: str, what: str) -> Iterator[None]:
    """Hold a MySQL lock on a connection of its own: it outlives the commits of DDL."""
    # Locks share a name space on the whole server: the database's name makes the lock ours.
    lock = "CONCAT(:name, LEFT(SHA1(COALESCE(DATABASE(), '')), 12))"
    with database.read() as connection:
        # It is idle during the build of an index, and its lock would end with the session.
        connection.execute(text("SET SESSION wait_timeout = 31536000"))
        statement = text(f"SELECT GET_LOCK({lock}, :wait)")
        if connection.execute(statement, {"name": name, "wait": _LOCK_WAIT}).scalar() != 1:
            raise _is_upgrading(what)
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.execute(text(f"SELECT RELEASE_LOCK({lock})"), {"name": name})
