"""Finds out whether a refused row is at fault or the table, by inserting a sound row.

A constraint that refuses a row (class 23) may be new in the table, or the row's partition may be
missing: then every row is refused, until the table is repaired. If the table refuses a sound row
too, this is an outage. The sound row is never kept.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, exc

from timeoutmgr.database.engine import Database
from timeoutmgr.database.failures import is_refusal, unavailable
from timeoutmgr.errors import StorageUnavailable, TimeoutManagerError


@contextmanager
def refusals(
    database: Database,
    transaction: Connection | None,
    insert_sound_row: Callable[[Connection], object],
    fault: Callable[[str], TimeoutManagerError],
) -> Iterator[None]:
    """If a row is refused, but a sound row is not, raise *fault*, made of the server's message.

    If the sound row is refused too, raise StorageUnavailable. *transaction* is the caller's own, in
    which the refused rows were inserted; None if they had their own transaction.
    """
    try:
        yield
    except (exc.SQLAlchemyError, StorageUnavailable) as error:
        refusal = error.__cause__ if isinstance(error, StorageUnavailable) else error
        if not isinstance(refusal, exc.SQLAlchemyError) or not is_refusal(refusal):
            raise
        if _is_refused(database, transaction, insert_sound_row):
            raise unavailable(refusal, database.describe()) from refusal
        raise fault(str(getattr(refusal, "orig", refusal))) from refusal


def _is_refused(
    database: Database,
    transaction: Connection | None,
    insert_sound_row: Callable[[Connection], object],
) -> bool:
    try:
        if transaction is None or database.dialect.name == "postgresql":
            # PostgreSQL refuses all further statements in a transaction after a failed statement.
            with database.begin() as own:
                _insert_and_undo(own, insert_sound_row)
        else:
            with transaction.begin_nested():
                _insert_and_undo(transaction, insert_sound_row)
    except _NotRefused:
        return False
    except (exc.SQLAlchemyError, StorageUnavailable):
        return True
    raise AssertionError("unreachable: the sound row is undone or refused")


def _insert_and_undo(connection: Connection, insert: Callable[[Connection], object]) -> None:
    insert(connection)
    raise _NotRefused


class _NotRefused(Exception):
    """The sound row was inserted; this error rolls it back."""
