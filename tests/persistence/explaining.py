"""Statements as the product ran them, the rows that they read, and PostgreSQL's plans of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

_FORM = "ANALYZE, COSTS OFF"
USES = 12
"""Uses of a statement until it has a plan for good: the driver prepares it after five uses, the
server decides after five more."""
_ROWS_READ = (
    "SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_user_tables"
    " WHERE starts_with(relname, %s)"
)


@contextmanager
def statements(engine: Engine, but: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Note each statement that *engine* runs, *but* for those that begin so."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith(but):
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def rows_read(engine: Engine, prefix: str) -> Iterator[dict[str, int]]:
    """Note for each statement how many rows it has read at most.

    PostgreSQL counts the rows of tables with *prefix*; MariaDB adds a dozen of its own.
    """
    read: dict[str, int] = {}
    before: dict[Any, int] = {}  # by cursor: another thread may use the engine meanwhile

    def count(connection: Connection) -> int:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor:
            if connection.dialect.name == "postgresql":
                return int(cursor.execute(_ROWS_READ, (prefix,)).fetchone()[0])
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(number) for _name, number in cursor.fetchall())

    def begin(connection: Connection, cursor: Any, *_: Any) -> None:
        before[cursor] = count(connection)

    def end(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        rows = count(connection) - before.pop(cursor)
        read[statement] = max(read.get(statement, 0), rows)

    event.listen(engine, "before_cursor_execute", begin)
    event.listen(engine, "after_cursor_execute", end)
    try:
        yield read
    finally:
        event.remove(engine, "before_cursor_execute", begin)
        event.remove(engine, "after_cursor_execute", end)


def explained(
    engine: Engine,
    sql: str,
    values: Mapping[str, Any],
    settings: Mapping[str, str],
    form: str = _FORM,
) -> list[str]:
    """Return the plan that ran, of a statement as psycopg prepares it.

    The transaction of the statement is rolled back.
    """
    with _prepared(engine, sql, values, settings) as (connection, execute):
        return list(connection.exec_driver_sql(f"EXPLAIN ({form}) {execute}").scalars())


def planning_milliseconds(
    engine: Engine, sql: str, values: Mapping[str, Any], settings: Mapping[str, str]
) -> float:
    """Return the processor time that the server takes to plan a statement as psycopg prepares it.

    No other process on the machine counts, as they do in the time that EXPLAIN shows.
    """
    notices: list[str] = []
    with _prepared(engine, sql, values, settings) as (connection, execute):
        driver: Any = connection.connection.driver_connection

        def listen(notice: Any) -> None:
            if notice.message_primary == "PLANNER STATISTICS":
                notices.append(notice.message_detail)

        driver.add_notice_handler(listen)
        try:
            connection.exec_driver_sql("SET LOCAL client_min_messages = log")
            connection.exec_driver_sql("SET LOCAL log_planner_stats = on")
            connection.exec_driver_sql(f"EXPLAIN {execute}")
        finally:
            driver.remove_notice_handler(listen)
    planner = max(notices, key=_processor_seconds)
    return _processor_seconds(planner) * 1_000


def _processor_seconds(statistics: str) -> float:
    found = re.search(r"([\d.]+) s user, ([\d.]+) s system, [\d.]+ s elapsed", statistics)
    assert found is not None, statistics
    return float(found[1]) + float(found[2])


@contextmanager
def _prepared(
    engine: Engine, sql: str, values: Mapping[str, Any], settings: Mapping[str, str]
) -> Iterator[tuple[Connection, str]]:
    """Lend a connection on which *sql* is prepared, and how to execute it; roll back in the end."""
    order = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
    for number, name in enumerate(order, 1):
        sql = sql.replace(f"%({name})s", f"${number}")
    given = ", ".join(_literal(values[name]) for name in order)
    execute = f"EXECUTE looked_at({given})" if order else "EXECUTE looked_at"
    with engine.connect() as connection:
        transaction = connection.begin()
        for name, value in settings.items():
            connection.exec_driver_sql(f"SET LOCAL {name} = {value}")
        connection.exec_driver_sql(f"PREPARE looked_at AS {sql}")
        try:
            yield connection, execute.replace("%", "%%")
        finally:
            transaction.rollback()
            connection.exec_driver_sql("DEALLOCATE ALL")  # the driver may have done so


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return f"ARRAY[{', '.join(_literal(one) for one in value)}]"
    return str(value) if isinstance(value, int) else f"'{value}'"
