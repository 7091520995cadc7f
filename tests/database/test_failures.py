from __future__ import annotations

import sqlite3

import psycopg
import psycopg.errors
import pymysql
import pytest
from sqlalchemy import create_engine, exc, text

from timeoutmgr.database.failures import Failure, classify, fails_again, unavailable
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
    ],
)
def test_a_database_that_cannot_be_reached_or_used_is_away(
    kind: type[exc.DBAPIError], original: Exception
) -> None:
    assert classify(wrapped(kind, original)) is Failure.AWAY


@pytest.mark.parametrize(
    ("kind", "original"),
    [
        (exc.IntegrityError, sqlite3.IntegrityError("UNIQUE constraint failed")),
        (exc.IntegrityError, psycopg.errors.UniqueViolation("duplicate")),
        (exc.DataError, pymysql.DataError(1406, "Data too long")),
        (exc.DataError, psycopg.errors.StringDataRightTruncation("too long")),
        (exc.ProgrammingError, psycopg.errors.SyntaxError("syntax")),
        (exc.ProgrammingError, psycopg.errors.UndefinedColumn("no such column")),
        (exc.InternalError, psycopg.errors.InFailedSqlTransaction("aborted")),
    ],
)
def test_what_is_wrong_with_the_statement_is_the_statements_own(
    kind: type[exc.DBAPIError], original: Exception
) -> None:
    assert classify(wrapped(kind, original)) is Failure.STATEMENT


def test_a_connection_that_was_lost_is_away_whatever_the_driver_called_it() -> None:
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
def test_what_is_wrong_with_a_statement_that_is_not_ours_stays_wrong(
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


def test_a_real_missing_table_is_away(sqlite_url: str) -> None:
    engine = create_engine(sqlite_url)
    with engine.connect() as connection, pytest.raises(exc.SQLAlchemyError) as failed:
        connection.execute(text("SELECT * FROM timeouts"))
    engine.dispose()

    assert classify(failed.value) is Failure.AWAY
