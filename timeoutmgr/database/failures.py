"""Classification of database errors: an outage, "try again", or the fault of a value.

The product's own statements are correct. So their errors come from the state of the server: a
missing permission, column or table is repaired without a change to any message, and is an outage
until then. Only a value can be a message's fault.
"""

import re
from collections.abc import Set
from enum import Enum, auto
from typing import Final, TypeGuard

from sqlalchemy import exc

from timeoutmgr.errors import StorageConflict, StorageUnavailable


class Failure(Enum):
    """Kind of a database failure."""

    CONFLICT = auto()
    """A deadlock, or a lock wait that timed out: the same transaction may succeed now."""
    AWAY = auto()
    """The database cannot be reached, or cannot work (a full disk, a missing permission)."""
    STATEMENT = auto()
    """A value is wrong, or the transaction had failed before; a repeat will fail again."""


# 1061: the server has completed an index that a killed install began.
_MYSQL_CONFLICTS: Final = frozenset({1061, 1205, 1213})
_MSSQL_CONFLICTS: Final = frozenset({1205, 1222, 3902, 3903, 3960, 6401})
"""A deadlock, a lock wait that timed out, an update of rows that a snapshot did not see; and a
refused COMMIT, ROLLBACK or savepoint, after the server undid the transaction for such a reason."""
_POSTGRESQL_CONFLICTS: Final = frozenset({"40001", "40P01", "55P03"})
_SQLITE_BINDING: Final = "Error binding parameter"
_SQLITE_CONFLICTS: Final = ("database is locked", "database table is locked")
_MYSQL_DENIED: Final = frozenset({1044, 1142, 1143, 1227, 1370})
_MSSQL_DENIED: Final = frozenset({229, 230, 262, 297, 300, 916})
_MSSQL_UNKNOWN_STATEMENT: Final = frozenset({102, 156, 195, 319, 321, 2812})
_MSSQL_LOGIN: Final = frozenset({4060, 4064, 18452, 18456, 18470, 18486})
_MSSQL_VALUES: Final = frozenset({220, 241, 242, 245, 1946, 2628, 8114, 8115, 8152})
"""Conversions, overflows, texts that are too long, and a key above the 900 bytes of an index."""
_MSSQL_ABSENCE: Final = frozenset({207, 208})
_POSTGRESQL_UNKNOWN_STATEMENT: Final = frozenset({"0A000", "42601", "42883"})
_MYSQL_UNKNOWN_STATEMENT: Final = frozenset({1064, 1235, 1305})
_MYSQL_LOGIN: Final = frozenset({1044, 1045, 1049, 1698})
"""Wrong user or password, no access to the database, unknown database, a user without password."""
_POSTGRESQL_LOGIN: Final = frozenset({"28000", "28P01", "3D000"})
_POSTGRESQL_LOGIN_TEXT: Final = re.compile(
    r"FATAL: +(\w+ authentication failed for user|role .* does not exist"
    r"|role .* is not permitted to log in|database .* does not exist"
    r"|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r"|no such (user|database))"  # PgBouncer's
    r"|no password supplied"
)
_MYSQL_READ_ONLY: Final = frozenset({1290, 1792, 1836})
_MYSQL_VALUES: Final = frozenset(
    {1264, 1265, 1292, 1365, 1366, 1367, 1406, 1411, 1416, 1426, 1441, 1690}
)
"""Codes of class 22, of any error class of the driver."""
_MYSQL_CONSTRAINTS: Final = frozenset({3819, 4025})
"""Violated CHECK constraints of MySQL and MariaDB, which are operational errors of the driver."""

_HINTS: Final = {
    # SQLite gives no reason here; the folder is by far the most common.
    "unable to open database file": "; does its folder exist, and may it be written?",
    # libpq gives no reason if the process has no file descriptor for the connection.
    "no error details available": "; does the process have a free file descriptor (ulimit -n)?",
    "only transaction": "; begin the transaction READ WRITE, on a server that takes writes",
    "statement pooling mode": (
        # A name and "=" after a semicolon would be masked, as a parameter of a URL.
        ". Connect to the server itself, or have PgBouncer keep one session for each client "
        "(pool_mode = session)"
    ),
}


def classify(error: exc.SQLAlchemyError) -> Failure:
    """Return the kind of failure of *error*."""
    if isinstance(error, exc.TimeoutError | exc.DisconnectionError):
        return Failure.AWAY
    if not isinstance(error, exc.DBAPIError):
        return Failure.STATEMENT
    if _is_conflict(error):
        return Failure.CONFLICT
    if error.connection_invalidated:
        return Failure.AWAY
    if error.statement is None and is_refusal(error):
        # At the commit: a deferred constraint; the product's tables have none.
        return Failure.STATEMENT
    return Failure.STATEMENT if is_aborted(error) or _is_value(error) else Failure.AWAY


def is_aborted(error: exc.SQLAlchemyError) -> bool:
    """Return whether the transaction refuses statements, because a caller suppressed its error."""
    return _sqlstate(error) == "25P02"


def is_refusal(error: exc.SQLAlchemyError) -> bool:
    """Return whether *error* is of class 23: a constraint, or a partition that is missing.

    ``classify`` treats it as an outage; ``soundness`` finds out whether it is a message's fault.
    """
    return isinstance(error, exc.IntegrityError) or _mysql_code(error) in _MYSQL_CONSTRAINTS


def _is_value(error: exc.DBAPIError) -> bool:
    """Return whether a value is refused, by the server (class 22) or by the driver."""
    sqlstate = _sqlstate(error)
    if sqlstate is not None:
        return sqlstate.startswith("22")
    code = _mysql_code(error)
    if code is not None:
        return code in _MYSQL_VALUES
    number = _mssql_number(error)
    if number is not None:
        return number in _MSSQL_VALUES
    if isinstance(error, exc.DataError) or str(error.orig).startswith(_SQLITE_BINDING):
        return True
    # By name: importing the driver would cost a worker on another database half a megabyte.
    is_of_sqlite = type(error.orig).__module__ == "sqlite3"
    # Without an answer of the server, psycopg could not convert a value.
    return isinstance(error, exc.ProgrammingError) and not is_of_sqlite


def fails_again(error: exc.SQLAlchemyError) -> bool:
    """Return whether a statement of the user's program is to blame for *error*.

    ``classify`` is for our own statements: they are correct, so an operational error is an outage.
    A user's statement may name a missing column, which SQLite and MySQL also report as operational.
    On SQLite no statement conflicts with another, because the transaction is the only writer. If
    this takes an outage for the statement's fault, our own statements meet the outage right after.
    """
    if not isinstance(error, exc.DBAPIError):
        return True
    return not (error.connection_invalidated or _is_conflict_of_servers(error))


def unavailable(error: exc.SQLAlchemyError, where: str) -> StorageUnavailable:
    """Return a StorageUnavailable for *error*; *where* has no secrets."""
    if is_login_refused(error):
        return StorageUnavailable(
            f"{where} refuses the connection: {_code_of(error)}; correct user, password and "
            "database in its URL, or the user's rights on the server"
        )
    known = str(_cause(error)).lower()
    hint = next((hint for text, hint in _HINTS.items() if text in known), "")
    return StorageUnavailable(f"{where} cannot be used now: {_code_of(error)}{hint}")


def conflict(error: exc.SQLAlchemyError, where: str) -> StorageConflict:
    """Return a StorageConflict for *error*."""
    return StorageConflict(f"a transaction in {where} lost against another: {_code_of(error)}")


def is_right_missing(error: BaseException | None) -> bool:
    """Return whether the user lacks a permission for the statement of *error*."""
    return isinstance(error, exc.SQLAlchemyError) and _has_code(
        error, {"42501"}, _MYSQL_DENIED, _MSSQL_DENIED
    )


def is_read_only(error: exc.SQLAlchemyError) -> bool:
    """Return whether the session or server of *error* refuses writes."""
    return _has_code(error, {"25006"}, _MYSQL_READ_ONLY)


def is_unknown_statement(error: exc.SQLAlchemyError) -> TypeGuard[exc.DBAPIError]:
    """Return whether the server does not know the statement of *error*, or a function in it."""
    unknown = _POSTGRESQL_UNKNOWN_STATEMENT, _MYSQL_UNKNOWN_STATEMENT, _MSSQL_UNKNOWN_STATEMENT
    return _has_code(error, *unknown)


def is_login_refused(error: BaseException | None) -> bool:
    """Return whether a server refused the user, password or database of the URL behind *error*.

    The server answers, and refuses again until the URL or the server's permissions change.
    """
    if not isinstance(error, exc.OperationalError) or error.statement is not None:
        return False
    if _has_code(error, _POSTGRESQL_LOGIN, _MYSQL_LOGIN, _MSSQL_LOGIN):
        return True
    # psycopg has no SQLSTATE for a connection that fails.
    return _POSTGRESQL_LOGIN_TEXT.search(str(error.orig)) is not None


def _cause(error: BaseException) -> BaseException | None:
    return error.orig if isinstance(error, exc.DBAPIError) else None


def _code_of(error: exc.SQLAlchemyError) -> str:
    cause = _cause(error) or error
    return f"{type(cause).__name__}: {cause}"


def _is_conflict(error: exc.DBAPIError) -> bool:
    if _is_conflict_of_servers(error):
        return True
    return isinstance(error, exc.OperationalError) and str(error.orig).startswith(_SQLITE_CONFLICTS)


def _is_conflict_of_servers(error: exc.DBAPIError) -> bool:
    return _has_code(error, _POSTGRESQL_CONFLICTS, _MYSQL_CONFLICTS, _MSSQL_CONFLICTS)


def _has_code(
    error: exc.SQLAlchemyError, sqlstates: Set[str], mysql: Set[int], mssql: Set[int] = frozenset()
) -> bool:
    """Return whether *error* has an SQLSTATE, or a number, of its server's set."""
    numbers = (_mysql_code(error) in mysql, _mssql_number(error) in mssql)
    return _sqlstate(error) in sqlstates or any(numbers)


def _sqlstate(error: exc.SQLAlchemyError) -> str | None:
    cause = _cause(error)
    return getattr(cause, "sqlstate", None)


def _mysql_code(error: exc.SQLAlchemyError) -> int | None:
    cause = _cause(error)
    args = cause.args if cause is not None and not _is_of_mssql(cause) else ()
    return args[0] if args and isinstance(args[0], int) else None


def _mssql_number(error: exc.SQLAlchemyError) -> int | None:
    cause = _cause(error)
    args = cause.args if cause is not None and _is_of_mssql(cause) else ()
    # The driver gives number and text, for a failed connection inside another tuple.
    given = args[0] if args and isinstance(args[0], tuple) else args
    return given[0] if given and isinstance(given[0], int) else None


def _is_of_mssql(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "pymssql"


_POSTGRESQL: Final = frozenset({"42P01", "42703", "3F000"})
_MYSQL: Final = frozenset({1054, 1146})
_SQLITE: Final = ("no such table", "no such column")


def tells_of_absence(error: BaseException | None) -> bool:
    """Return whether *error*, or a cause of it, names a table, column or schema as missing."""
    while error is not None:
        if isinstance(error, exc.DBAPIError) and error.orig is not None:
            text = str(error.orig)
            is_said = text.startswith(_SQLITE) or "has no column named" in text
            return is_said or _has_code(error, _POSTGRESQL, _MYSQL, _MSSQL_ABSENCE)
        error = error.__cause__
    return False
