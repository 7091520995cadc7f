"""Which database errors mean "away", which mean "try again", and which are the statement's own."""

from enum import Enum, auto
from typing import Final

from sqlalchemy import exc

from timeoutmgr.errors import StorageConflict, StorageUnavailable


class Failure(Enum):
    """What kind of failure a database error is."""

    CONFLICT = auto()
    """A deadlock or a lock not had in time: the same transaction may well succeed now."""
    AWAY = auto()
    """The database cannot be reached, or cannot work (full disk, shutting down)."""
    STATEMENT = auto()
    """The statement or its values are wrong; it will fail again."""


_MYSQL_CONFLICTS: Final = frozenset({1205, 1213})
_POSTGRESQL_CONFLICTS: Final = frozenset({"40001", "40P01", "55P03"})
_SQLITE_CONFLICTS: Final = ("database is locked", "database table is locked")


def classify(error: exc.SQLAlchemyError) -> Failure:
    """Return what kind of failure *error* is."""
    if isinstance(error, exc.TimeoutError | exc.DisconnectionError):
        return Failure.AWAY
    if not isinstance(error, exc.DBAPIError):
        return Failure.STATEMENT
    if _is_conflict(error):
        return Failure.CONFLICT
    if error.connection_invalidated or isinstance(
        error, exc.OperationalError | exc.InterfaceError | exc.InternalError
    ):
        # A missing table is among these on SQLite: for a message it is an outage all the same,
        # since the message will be fine once the table is there.
        return Failure.AWAY
    if getattr(error.orig, "sqlstate", None) in {"42P01", "3F000"}:  # no such table, schema
        return Failure.AWAY
    if _mysql_code(error) == 1146:  # no such table
        return Failure.AWAY
    return Failure.STATEMENT


def unavailable(error: exc.SQLAlchemyError, where: str) -> StorageUnavailable:
    """Return *error* as the StorageUnavailable that callers know; *where* has no secrets."""
    return StorageUnavailable(f"{where} cannot be used now: {_told(error)}")


def conflict(error: exc.SQLAlchemyError, where: str) -> StorageConflict:
    """Return *error*, a conflict, as the StorageConflict that callers know."""
    return StorageConflict(f"a transaction in {where} lost against another: {_told(error)}")


def _told(error: exc.SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig else error
    return f"{type(cause).__name__}: {cause}"


def _is_conflict(error: exc.DBAPIError) -> bool:
    if getattr(error.orig, "sqlstate", None) in _POSTGRESQL_CONFLICTS:
        return True
    if _mysql_code(error) in _MYSQL_CONFLICTS:
        return True
    return isinstance(error, exc.OperationalError) and str(error.orig).startswith(_SQLITE_CONFLICTS)


def _mysql_code(error: exc.DBAPIError) -> int | None:
    args = error.orig.args if error.orig is not None else ()
    return args[0] if args and isinstance(args[0], int) else None
