"""Proofs at start that a server keeps its commits, and has the abilities that we need.

A version number says only what a server should do. There may be a pooler between the server and
this process, and the server may only imitate PostgreSQL or MySQL, or be one of several that each
accept writes. Every claim and lease relies on the abilities that are tested here: a session and its
lock stay with their connection, and a locked row is skipped. Nothing is created or changed; the
proof locks the row of a version table, which has a single row and is rarely locked.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, Select, Table, exc, insert, select, text, update
from sqlalchemy.dialects import postgresql

from timeoutmgr.contracts import SharedDatabase
from timeoutmgr.database.dialects import POSTGRESQL
from timeoutmgr.database.engine import Database, as_database, count_inserted
from timeoutmgr.database.failures import (
    Failure,
    classify,
    conflict,
    is_right_missing,
    is_unknown_statement,
    unavailable,
)
from timeoutmgr.database.session_locks import SESSION_LOCKS, SessionLockSql, lock_name
from timeoutmgr.errors import CombinationRefused, StorageConflict, StorageUnavailable

logger = logging.getLogger(__name__)

# --- whether a database server keeps its commits through a crash and a power cut --------------


@dataclass(frozen=True, slots=True)
class DurabilityDoubt:
    """A setting of the server by which it may lose commits."""

    setting: str
    value: str
    loss: str
    remedy: str


_POSTGRESQL: Final = {
    "fsync": "a power cut may lose, or tear, what was stored",
    "full_page_writes": "a power cut may tear what was stored",
    "synchronous_commit": "a crash of the server may lose the last timeouts that were accepted",
}
_FLUSH: Final = "innodb_flush_log_at_trx_commit"
_FLUSH_LOSSES: Final = {
    0: "a crash of the server may lose the last timeouts that were accepted",
    2: "a power cut may lose the last timeouts that were accepted",
}


def durability_doubts(database: Database) -> Sequence[DurabilityDoubt]:
    """Return the server's settings, for this user, with which it may lose commits."""
    if database.is_sqlite:
        return ()
    with database.read() as connection:
        if database.dialect.name == "postgresql":
            return _doubts_of_postgresql(connection)
        if database.dialect.name == "mssql":
            return _doubts_of_setting(
                connection,
                "DELAYED_DURABILITY",
                f"delayed_durability_desc {_OF_MSSQL}",
                {"FORCED": "a crash of the server may lose the last timeouts that were accepted"},
                "ALTER DATABASE CURRENT SET DELAYED_DURABILITY = DISABLED",
            )
        remedy = f"SET GLOBAL {_FLUSH} = 1 (and in the server's file)"
        return _doubts_of_setting(connection, _FLUSH, f"@@{_FLUSH}", _FLUSH_LOSSES, remedy)


def require_durable(shared: SharedDatabase | None, *, accept_loss: bool) -> None:
    """Raise CombinationRefused if the server may lose commits; it is checked once.

    Do nothing with *accept_loss*, or for None, which means no database.
    """
    if shared is None or accept_loss:
        return
    database = as_database(shared)
    if database.proved.durable:
        return
    for doubt in durability_doubts(database):
        raise CombinationRefused(
            f"{database.describe()} with {doubt.setting} = {doubt.value}",
            doubt.loss,
            f"{doubt.remedy}, or set accept_loss.",
        )
    database.proved.durable = True


def _doubts_of_postgresql(connection: Connection) -> list[DurabilityDoubt]:
    found = {name: connection.execute(text(f"SHOW {name}")).scalar_one() for name in _POSTGRESQL}
    return [
        DurabilityDoubt(
            setting=name,
            value="off",
            loss=loss,
            remedy=f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
        )
        for name, loss in _POSTGRESQL.items()
        if found[name] == "off"
    ]


def _doubts_of_setting(
    connection: Connection, setting: str, read: str, losses: Mapping[Any, str], remedy: str
) -> list[DurabilityDoubt]:
    value = connection.execute(text(f"SELECT {read}")).scalar_one()
    if value not in losses:
        return []
    return [DurabilityDoubt(setting, str(value), losses[value], remedy)]


_OF_MSSQL: Final = "FROM sys.databases WHERE database_id = DB_ID()"
_STATEMENTS: Final = 3
"""Statements for which the first connection must keep its session while the second is busy."""
_TRIES: Final = 200
_PAUSE: Final = 0.01
"""Seconds between tries to lock a row that is locked by another process during its own proof."""
_CONFLICTS: Final = 5
"""Tries of the proof in case of conflicts with transactions of other processes."""
_LOCK_WAIT: Final = 5
"""Seconds after which PostgreSQL gives up waiting for a lock that it should have skipped."""
_POOLER_REMEDY: Final = (
    "Connect to the server itself. If the pooler keeps one session for each client (in PgBouncer "
    'pool_mode = session), set database.pooler = "session" (pooler of kombu\'s transport options).'
)
_LOCK_REASON: Final = "by its lock a living process is told from a dead one"
_ENGINES: Final = "Use PostgreSQL, MySQL or MariaDB itself."


def prove_server(database: Database) -> None:
    """Return if sessions keep their locks, and a single server accepts writes.

    A database that passed is not asked again. Raises CombinationRefused, and StorageUnavailable.
    """
    if database.is_sqlite or database.proved.server:
        return
    with _pair(database) as (first, second):
        _require_one_writer(database, first)
        _require_versioned_reads(database, first)
        _require_sessions(database, first, second)
    database.proved.server = True


def prove_rows(database: Database, version_table: Table) -> None:
    """Return if a locked row of *version_table* is skipped, and statements count their rows.

    A user with only read access cannot test this, and does not claim timeouts either. A database
    that passed is not asked again. Raises CombinationRefused, and StorageUnavailable.
    """
    if database.is_sqlite or database.proved.rows:
        return
    for left in reversed(range(_CONFLICTS)):
        try:
            _prove_rows(database, version_table)
        except StorageConflict:
            # Another process runs its proof, or upgrades.
            if not left:
                raise
        else:
            return


def _prove_rows(database: Database, version_table: Table) -> None:
    with _pair(database) as (first, second):
        try:
            _require_skipped(database, first, second, version_table)
            _require_counts(database, first, version_table)
        except exc.DBAPIError as error:
            if not is_right_missing(error):
                raise
            logger.info(
                "proof could not test the row locks of %s: %s",
                database.describe(),
                error.orig,
                extra={"event": "row_locks_unproved"},
            )
            return
    database.proved.rows = True


def _require_one_writer(database: Database, connection: Connection) -> None:
    if database.dialect.name not in {"mysql", "mariadb"} or database.settings.single_writer:
        return
    with connection.begin():
        found = connection.execute(text("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")).first()
    if found is not None and int(found[1]) > 1:
        raise CombinationRefused(
            f"a Galera cluster of {found[1]} nodes ({database.describe()})",
            "row locks and session locks are each node's own, so that two nodes that take writes "
            "send messages twice",
            "Have every process write to one node and set database.single_writer = true.",
        )


def _require_versioned_reads(database: Database, connection: Connection) -> None:
    """Raise CombinationRefused for a SQL Server database whose readers wait for writers."""
    if database.dialect.name != "mssql":
        return
    with connection.begin():
        read = text(f"SELECT is_read_committed_snapshot_on {_OF_MSSQL}")
        if connection.execute(read).scalar_one():
            return
    raise CombinationRefused(
        f"{database.describe()} without READ_COMMITTED_SNAPSHOT",
        "each read would wait for all transactions that have changed a row",
        "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON",
    )


def _require_sessions(database: Database, first: Connection, second: Connection) -> None:
    """Check that *first* keeps its session and lock while *second* has an open transaction."""
    sql = SESSION_LOCKS[database.dialect.name]
    lock = {"name": lock_name(database.dialect.name, f"proof {uuid4().hex}")}
    first = first.execution_options(isolation_level="AUTOCOMMIT")
    own = first.execute(text(f"SELECT {sql.session}")).scalar_one()
    _require_no_pooler(database, first, own)
    if not first.execute(text(sql.acquire), lock).scalar():
        raise _lock_refused(database, "does not grant a session lock that is free")
    try:
        with second.begin():
            if not second.execute(text(f"SELECT {sql.is_held}"), lock).scalar():
                raise _lock_refused(database, "does not show a session lock to another session")
            for _ in range(_STATEMENTS):
                _require_kept(database, first, sql, lock, own)
    finally:
        if not first.invalidated:
            first.execute(text(sql.release), lock)


def _require_no_pooler(database: Database, connection: Connection, session: int) -> None:
    greeted = _session_of_greeting(connection)
    if greeted is None or greeted == session or database.settings.pooler is not None:
        return
    raise CombinationRefused(
        f"{database.describe()} behind a connection pooler",
        f"the connection was greeted as session {greeted} and works in session {session}, and a "
        "pooler that shares sessions between clients mixes up their prepared statements and locks",
        _POOLER_REMEDY,
    )


def _session_of_greeting(connection: Connection) -> int | None:
    """Return the session's number in the server's greeting; None if the driver does not keep it."""
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "thread_id"):
        return int(driver.thread_id())
    info = getattr(driver, "info", None)
    return None if info is None else int(info.backend_pid)


def _require_kept(
    database: Database, connection: Connection, sql: SessionLockSql, lock: dict[str, Any], own: int
) -> None:
    question = text(f"SELECT {sql.session}, {sql.is_ours}")
    session, is_ours = connection.execute(question, lock).one()
    if session == own and is_ours:
        return
    lost = f"moved from session {own} to {session}" if session != own else "lost its session lock"
    raise CombinationRefused(
        f"{database.describe()} behind a pooler that shares sessions",
        f"while another connection held a transaction open, ours {lost}, and {_LOCK_REASON}",
        "Connect to the server itself, or set the pooler to keep one session for each client (in "
        "PgBouncer pool_mode = session).",
    )


def _lock_refused(database: Database, fault: str) -> CombinationRefused:
    return CombinationRefused(f"{database.describe()}, which {fault},", _LOCK_REASON, _ENGINES)


def _require_skipped(
    database: Database, first: Connection, second: Connection, table: Table
) -> None:
    """Check that *second* skips the row that *first* has locked, and sees it when it is free."""
    rows = select(table.c.version_num).with_for_update(skip_locked=True)
    with first.begin() as holding:
        _lock_when_free(database, first, rows)
        if not _is_skipped(second, rows):
            raise CombinationRefused(
                f"{database.describe()}, which does not skip a locked row,",
                "two processes would dispatch the same timeout",
                _ENGINES,
            )
        holding.rollback()
    with second.begin():
        _lock_when_free(database, second, rows)


def _is_skipped(connection: Connection, rows: Select[Any]) -> bool:
    """Return whether the locked *rows* are skipped; false if they are returned or waited for."""
    try:
        with connection.begin():
            if connection.dialect.name == POSTGRESQL.name:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}s'")
            return connection.execute(rows).first() is None
    except exc.SQLAlchemyError as error:
        if classify(error) is Failure.CONFLICT:
            return False
        raise


def _lock_when_free(database: Database, connection: Connection, rows: Select[Any]) -> None:
    """Lock the single row, which another process may have locked during its own start."""
    for _ in range(_TRIES):
        if connection.execute(rows).first() is not None:
            return
        time.sleep(_PAUSE)
    raise StorageUnavailable(
        f"a row of {database.describe()} that no process locks for long was not free within "
        f"{_TRIES * _PAUSE:g} s; end the session that holds it"
    )


def _require_counts(database: Database, connection: Connection, table: Table) -> None:
    """Check that statements return their row counts, and that RETURNING works where it is used."""
    with connection.begin() as undone:
        version = connection.execute(select(table.c.version_num)).scalar_one()
        again = count_inserted(connection, *_insert_if_missing(connection, table, version))
        touch = update(table).values(version_num=version)
        met = connection.execute(touch).rowcount
        returned = [version]
        if connection.dialect.update_returning:
            returned = list(connection.execute(touch.returning(table.c.version_num)).scalars())
        undone.rollback()
    if (again, met, returned) != (0, 1, [version]):
        raise CombinationRefused(
            f"{database.describe()}, which miscounts rows,",
            f"of one row it inserted {again} again, updated {met} and returned {returned}, where "
            f"0, 1 and {[version]} are right; by such counts a repeated message is told",
            _ENGINES,
        )


def _insert_if_missing(
    connection: Connection, table: Table, version: str
) -> tuple[Any, dict[str, str]]:
    if connection.dialect.name == "mssql":
        from timeoutmgr.database.sqlserver import insert_missing_statement

        row = {"version_num": version}
        return insert_missing_statement(table, tuple(row), tuple(row)), {"version_num_": version}
    if connection.dialect.name == POSTGRESQL.name:
        return postgresql.insert(table).values(version_num=version).on_conflict_do_nothing(), {}
    return insert(table).values(version_num=version).prefix_with("IGNORE"), {}


@contextmanager
def _pair(database: Database) -> Iterator[tuple[Connection, Connection]]:
    """Yield two connections; if the server does not know a statement, refuse the server."""
    try:
        with database.engine.connect() as first, database.engine.connect() as second:
            yield first, second
    except exc.SQLAlchemyError as error:
        if is_unknown_statement(error):
            raise CombinationRefused(
                f"{database.describe()}, which does not know a statement of ours,",
                f"the proof at start ended with: {error.orig}",
                _ENGINES,
            ) from error
        if classify(error) is Failure.CONFLICT:
            raise conflict(error, database.describe()) from error
        raise unavailable(error, database.describe()) from error
