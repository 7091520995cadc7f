"""Insert what is not there yet."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from timeoutmgr.database.packets import in_statements, misfit
from timeoutmgr.errors import MessageRejected


def require_fit(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Raise MessageRejected for a message that the database cannot be given."""
    reason = misfit(connection, rows)
    if reason is not None:
        raise MessageRejected(reason)


def insert_missing(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert those of *rows* whose primary key is free; return how many were.

    One that another open transaction is inserting is waited for. Raises MessageRejected for a
    message that is too large for the database.
    """
    if not rows:
        return 0
    if "body" in table.c:
        require_fit(connection, rows)
    # Without the option the count of an INSERT is lost with its cursor.
    options = {"preserve_rowcount": True}
    statement = _statement(connection.dialect.name, table)
    return sum(
        connection.execute(statement, part, execution_options=options).rowcount
        for part in in_statements(connection, rows)
    )


@cache
def _statement(dialect: str, table: Table) -> Insert:
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    # ON DUPLICATE KEY UPDATE would count a row that was there as one: SQLAlchemy asks the server
    # for rows found, not rows changed. IGNORE also hides values that do not fit; these tables
    # take only checked ones.
    return mysql.insert(table).prefix_with("IGNORE")
