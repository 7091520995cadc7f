"""Support of Microsoft SQL Server: its engine, and T-SQL for statements that differ.

Experimental: golden files test the statements, which were not run on a server. Changes of the
stores' statements for SQL Server belong here, if possible in the compiler.

* A locking SELECT has table hints in place of FOR UPDATE SKIP LOCKED. READCOMMITTEDLOCK goes with
  READPAST, which SQL Server refuses beside READ_COMMITTED_SNAPSHOT otherwise. Plain reads wait for
  no writer only in a database with READ_COMMITTED_SNAPSHOT: the proof at start requires it.
* SYSUTCDATETIME() is read once for each statement. A statement that waits for a lock compares with
  a time that has passed: nothing is early for it.
* Texts that are keys are VARBINARY: to every collation of SQL Server, also to a binary collation,
  a text is equal to the same text with spaces behind it.
* An UPDATE or DELETE locks the rows that its plan reads, as on MySQL; the stores use the same
  statements, each on a whole primary key (``StoreContext.locks_what_it_reads``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    VARBINARY,
    ColumnElement,
    Connection,
    Engine,
    Insert,
    LargeBinary,
    Select,
    Table,
    bindparam,
    cast,
    event,
    exists,
    insert,
    literal_column,
    select,
)
from sqlalchemy.dialects.mssql.base import MSSQLCompiler
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler

from timeoutmgr.contracts.answers import LONGEST

LOCK_TIMEOUT: Final = "SET LOCK_TIMEOUT 30000"
"""Milliseconds that a statement waits for a lock; without this setting it waits forever."""


def connect_arguments(connect_timeout: int) -> dict[str, Any]:
    """Return the driver's arguments, with which a silent server causes an error."""
    return {"login_timeout": connect_timeout, "timeout": int(LONGEST), "appname": "timeoutmgr"}


def prepare_engine(engine: Engine) -> None:
    """Make *engine* compile our statements for SQL Server, and limit its connections' waits."""
    dialect: Any = engine.dialect
    dialect.statement_compiler = SqlServerCompiler
    dialect.colspecs = {**dialect.colspecs, LargeBinary: _Body, VARBINARY: _Key}

    @event.listens_for(engine, "connect")
    def bound_waits(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(LOCK_TIMEOUT)
        connection.commit()


class _Body(LargeBinary):
    """Bytes of any length. The driver writes empty bytes as a text, which would be refused."""

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        """Have the server read the value as bytes."""
        return cast(bindvalue, self)


class _Key(VARBINARY):
    """Bytes of a key; see ``_Body``."""

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        """Have the server read the value as bytes."""
        return cast(bindvalue, self)


_base: Any = MSSQLCompiler  # its methods have no types


class SqlServerCompiler(_base):  # type: ignore[misc]  # its base is Any
    """Compiles locking SELECTs, limits, conditions as columns, and the size of bytes."""

    def visit_select(self, select_stmt: Any, *args: Any, **kw: Any) -> Any:
        """Give the tables of a locking SELECT their hints."""
        lock = select_stmt._for_update_arg
        if lock is not None:
            passing = "READCOMMITTEDLOCK, READPAST, " if lock.skip_locked else ""
            for table in lock.of or select_stmt.get_final_froms():
                hint = f"WITH ({passing}UPDLOCK, ROWLOCK)"
                select_stmt = select_stmt.with_hint(table, hint, "mssql")
        return super().visit_select(select_stmt, *args, **kw)

    def _use_top(self, select: Any) -> bool:
        return select._offset_clause is None and select._limit_clause is not None

    def get_select_precolumns(self, select: Any, **kw: Any) -> Any:
        """Limit by TOP, which unlike OFFSET keeps the order of a subquery."""
        words = SQLCompiler.get_select_precolumns(self, select, **kw)
        if not self._use_top(select):
            return words
        return f"{words}TOP ({self.process(select._limit_clause, **kw)}) "

    def visit_unary(self, unary: Any, *args: Any, **kw: Any) -> Any:
        """Convert a condition that is a column to a number, because there are no boolean values."""
        if unary.operator is operators.exists and kw.get("within_columns_clause"):
            condition = super().visit_unary(unary, *args, **{**kw, "within_columns_clause": False})
            return f"CASE WHEN ({condition}) THEN 1 ELSE 0 END"
        return super().visit_unary(unary, *args, **kw)

    def visit_length_func(self, function: Any, **kw: Any) -> str:
        """Return the number of bytes; LEN ignores bytes at the end that look like spaces."""
        return f"DATALENGTH{self.function_argspec(function, **kw)}"


@cache
def insert_missing_statement(table: Table, names: tuple[str, ...], key: tuple[str, ...]) -> Insert:
    """Return the insert of a row with the columns *names*, unless its *key* exists.

    Its parameters are *names*, each followed by an underscore. The lock on the range of the key
    makes another transaction that inserts the same key wait. MERGE would need the same lock.
    """
    present = table.alias("present")
    given = {name: bindparam(f"{name}_", type_=table.c[name].type) for name in names}
    found: Select[Any] = (
        select(literal_column("1"))
        .select_from(present)
        .where(*(present.c[name] == given[name] for name in key))
        .with_hint(present, "WITH (UPDLOCK, HOLDLOCK, ROWLOCK)", "mssql")
    )
    return insert(table).from_select(list(names), select(*given.values()).where(~exists(found)))


def insert_missing_rows(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], key: tuple[str, ...]
) -> int:
    """Insert the members of *rows*, all of the same columns, whose *key* is free; return how many.

    Each row has its own statement, so that locks are requested in the order of the rows.
    """
    statement = insert_missing_statement(table, tuple(rows[0]), key)
    return sum(
        connection.execute(statement, {f"{name}_": value for name, value in row.items()}).rowcount
        for row in rows
    )
