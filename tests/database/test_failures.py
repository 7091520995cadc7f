from __future__ import annotations

import sqlite3

import psycopg
import psycopg.errors
import pymysql
import pytest
from sqlalchemy import create_engine, exc, text

from timeoutmgr.database.failures import (
    Failure,
    classify,
    fails_again,
    is_login_refused,
    is_refusal,
    unavailable,
)
from timeoutmgr.errors import StorageUnavailable


def wrapped(kind: type[exc.DBAPIError], original: Exception, lost: bool = False) -> exc.DBAPIError:
    return kind("SELECT 1", {}, original, connection_invalidated=lost)


@pytest.mark.behaviour(125)
@pytest.mark.parametrize(
    ("kind", "original"),
    [
        (exc.OperationalError, sqlite3.OperationalError("database is locked")),
        (exc.OperationalError, sqlite3.OperationalError("database table is locked: timeouts")),
        (exc.OperationalError, pymysql.OperationalError(1213, "Deadlock found")),
        (exc.OperationalError, pymysql.OperationalError(1205, "Lock wait timeout exceeded")),
        (exc.OperationalError, psycopg.errors.DeadlockDetected("deadlock")),
        (exc.OperationalError, psycopg.errors.SerializationFailure("serialize")),
        (exc.OperationalError, psycopg.errors.LockNotAvailable("lock timeout")),
    ],
)
def test_a_deadlock_or_a_lock_not_had_is_a_conflict(
    kind: type[exc.DBAPIError], original: Exception
) -> None:
    assert classify(wrapped(kind, original)) is Failure.CONFLICT


def test_an_index_that_the_server_ended_after_a_kill_is_a_conflict(mysql_url: str) -> None:
    engine = create_engine(mysql_url, isolation_level="AUTOCOMMIT")
    index = text("CREATE INDEX ended ON indexed (id)")
    with engine.connect() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE indexed (id INT)"))
        connection.execute(index)

        with pytest.raises(exc.OperationalError) as refused:
            connection.execute(index)

    assert classify(refused.value) is Failure.CONFLICT
    engine.dispose()


@pytest.mark.parametrize(
    ("kind", "original"),
    [
        (exc.OperationalError, sqlite3.OperationalError("disk I/O error")),
        (exc.OperationalError, sqlite3.OperationalError("database or disk is full")),
        (exc.OperationalError, sqlite3.OperationalError("unable to open database file")),
        (exc.OperationalError, sqlite3.OperationalError("no such table: timeouts")),
        (exc.OperationalError, pymysql.OperationalError(2003, "Can't connect")),
        (exc.OperationalError, pymysql.OperationalError(2013, "Lost connection")),
        (exc.InterfaceError, pymysql.InterfaceError(0, "")),
        (exc.ProgrammingError, pymysql.ProgrammingError(1146, "Table doesn't exist")),
        (exc.OperationalError, psycopg.OperationalError("server closed the connection")),
        (exc.OperationalError, psycopg.errors.AdminShutdown("terminating")),
        (exc.OperationalError, psycopg.errors.DiskFull("no space")),
        (exc.ProgrammingError, psycopg.errors.UndefinedTable("no such table")),
        (exc.ProgrammingError, psycopg.errors.InvalidSchemaName("no such schema")),
        (exc.ProgrammingError, psycopg.errors.InsufficientPrivilege("permission denied")),
        (exc.ProgrammingError, psycopg.errors.UndefinedColumn("no such column")),
        (exc.ProgrammingError, psycopg.errors.UndefinedFunction("no such function")),
        (exc.ProgrammingError, psycopg.errors.SyntaxError("syntax")),
        (exc.InternalError, psycopg.errors.ReadOnlySqlTransaction("read-only")),
        (exc.NotSupportedError, psycopg.errors.FeatureNotSupported("not here")),
        (exc.OperationalError, pymysql.OperationalError(1142, "INSERT command denied")),
        (exc.OperationalError, pymysql.OperationalError(1054, "Unknown column")),
        (exc.OperationalError, pymysql.OperationalError(1290, "read-only")),
        (exc.OperationalError, pymysql.OperationalError(1364, "has no default value")),
        (exc.OperationalError, pymysql.OperationalError(1526, "no partition for value")),
        (exc.OperationalError, sqlite3.OperationalError("no such column: x")),
        (exc.OperationalError, sqlite3.OperationalError("attempt to write a readonly database")),
        (exc.IntegrityError, sqlite3.IntegrityError("UNIQUE constraint failed")),
        (exc.IntegrityError, psycopg.errors.UniqueViolation("duplicate")),
        (exc.IntegrityError, psycopg.errors.CheckViolation("no partition found for row")),
    ],
)
def test_a_database_that_cannot_be_reached_or_used_is_away(
    kind: type[exc.DBAPIError], original: Exception
) -> None:
    assert classify(wrapped(kind, original)) is Failure.AWAY


@pytest.mark.parametrize(
    ("kind", "original"),
    [
        (exc.DataError, pymysql.DataError(1406, "Data too long")),
        (exc.OperationalError, pymysql.OperationalError(1366, "Incorrect string value")),
        (exc.DataError, psycopg.errors.StringDataRightTruncation("too long")),
        (exc.DataError, psycopg.errors.CharacterNotInRepertoire("invalid byte sequence")),
        (exc.DataError, psycopg.DataError("cannot contain NUL (0x00) bytes")),
        (exc.ProgrammingError, psycopg.ProgrammingError("cannot adapt type 'object'")),
        (exc.DataError, sqlite3.DataError("string or blob too big")),
        (exc.InterfaceError, sqlite3.InterfaceError("Error binding parameter 0")),
        (exc.ProgrammingError, sqlite3.ProgrammingError("Error binding parameter 1: type")),
        (exc.InternalError, psycopg.errors.InFailedSqlTransaction("aborted")),
    ],
)
def test_a_value_that_is_refused_is_the_statements_own(
    kind: type[exc.DBAPIError], original: Exception
) -> None:
    assert classify(wrapped(kind, original)) is Failure.STATEMENT


@pytest.mark.parametrize(
    ("kind", "original", "is_one"),
    [
        (exc.IntegrityError, psycopg.errors.NotNullViolation("null"), True),
        (exc.IntegrityError, psycopg.errors.CheckViolation("check"), True),
        (exc.IntegrityError, sqlite3.IntegrityError("CHECK constraint failed"), True),
        (exc.IntegrityError, pymysql.IntegrityError(1048, "cannot be null"), True),
        (exc.OperationalError, pymysql.OperationalError(4025, "CONSTRAINT failed"), True),
        (exc.OperationalError, pymysql.OperationalError(3819, "Check constraint"), True),
        (exc.DataError, pymysql.DataError(1406, "Data too long"), False),
        (exc.ProgrammingError, psycopg.errors.UndefinedColumn("no such column"), False),
    ],
)
def test_class_23_is_a_refusal(
    kind: type[exc.DBAPIError], original: Exception, is_one: bool
) -> None:
    assert is_refusal(wrapped(kind, original)) is is_one


def test_a_lost_connection_is_an_outage_for_each_error_of_the_driver() -> None:
    error = wrapped(exc.ProgrammingError, pymysql.ProgrammingError(1064, "x"), lost=True)

    assert classify(error) is Failure.AWAY


def test_a_pool_that_gave_no_connection_in_time_is_away() -> None:
    assert classify(exc.TimeoutError("QueuePool limit reached")) is Failure.AWAY


def test_an_error_of_sqlalchemy_itself_is_the_statements_own() -> None:
    assert classify(exc.ArgumentError("no such argument")) is Failure.STATEMENT


@pytest.mark.parametrize(
    ("kind", "original"),
    [
        (exc.OperationalError, sqlite3.OperationalError("no such column: x")),
        (exc.OperationalError, sqlite3.OperationalError('near "SELEC": syntax error')),
        # By another connection than that of its transaction, which has the writer's turn.
        (exc.OperationalError, sqlite3.OperationalError("database is locked")),
        (exc.OperationalError, pymysql.OperationalError(1054, "Unknown column")),
        (exc.OperationalError, psycopg.errors.ExternalRoutineException("as it says")),
        (exc.InternalError, psycopg.errors.InFailedSqlTransaction("aborted")),
        (exc.IntegrityError, sqlite3.IntegrityError("UNIQUE constraint failed")),
    ],
)
def test_an_error_in_a_foreign_statement_will_fail_again(
    kind: type[exc.DBAPIError], original: Exception
) -> None:
    assert fails_again(wrapped(kind, original))


@pytest.mark.parametrize(
    "error",
    [
        wrapped(exc.OperationalError, psycopg.OperationalError("server closed"), lost=True),
        wrapped(exc.OperationalError, pymysql.OperationalError(2013, "Lost"), lost=True),
        wrapped(exc.OperationalError, pymysql.OperationalError(1213, "Deadlock found")),
        wrapped(exc.OperationalError, pymysql.OperationalError(1205, "Lock wait timeout")),
        wrapped(exc.OperationalError, psycopg.errors.DeadlockDetected("deadlock")),
        wrapped(exc.OperationalError, psycopg.errors.SerializationFailure("serialize")),
    ],
)
def test_a_lost_connection_or_transaction_is_nobodys_fault(error: exc.DBAPIError) -> None:
    assert not fails_again(error)


def test_the_callers_error_names_place_and_cause() -> None:
    error = unavailable(
        wrapped(exc.OperationalError, pymysql.OperationalError(2003, "refused")), "mysql://h/d"
    )

    assert isinstance(error, StorageUnavailable)
    assert str(error).startswith("mysql://h/d cannot be used now: OperationalError: (2003")


@pytest.mark.parametrize(
    "original",
    [
        psycopg.OperationalError('FATAL:  password authentication failed for user "clerk"'),
        psycopg.OperationalError('FATAL:  role "clerk" does not exist'),
        psycopg.OperationalError('FATAL:  database "sales" does not exist'),
        psycopg.OperationalError('FATAL:  no pg_hba.conf entry for host "10.0.0.1"'),
        psycopg.OperationalError("fe_sendauth: no password supplied"),
        psycopg.OperationalError("FATAL:  no such user: clerk"),
        psycopg.errors.InvalidPassword("localised"),
        pymysql.OperationalError(1044, "Access denied to database"),
        pymysql.OperationalError(1045, "Access denied"),
        pymysql.OperationalError(1049, "Unknown database"),
    ],
)
def test_a_refused_login_names_the_url_as_its_remedy(original: Exception) -> None:
    refused = exc.OperationalError(None, None, original)

    assert is_login_refused(refused)
    assert "correct user, password and database in its URL" in str(unavailable(refused, "x://h"))


@pytest.mark.parametrize(
    "error",
    [
        exc.OperationalError(None, None, psycopg.OperationalError("FATAL:  too many clients")),
        exc.OperationalError(None, None, psycopg.OperationalError("FATAL:  starting up")),
        exc.OperationalError(None, None, pymysql.OperationalError(2003, "refused")),
        exc.OperationalError(None, None, sqlite3.OperationalError("unable to open database file")),
        wrapped(exc.OperationalError, pymysql.OperationalError(1044, "Access denied: DROP")),
    ],
)
def test_an_outage_is_no_refused_login(error: exc.DBAPIError) -> None:
    assert not is_login_refused(error)


def test_a_real_missing_table_is_away(sqlite_url: str) -> None:
    engine = create_engine(sqlite_url)
    with engine.connect() as connection, pytest.raises(exc.SQLAlchemyError) as failed:
        connection.execute(text("SELECT * FROM timeouts"))
    engine.dispose()

    assert classify(failed.value) is Failure.AWAY
