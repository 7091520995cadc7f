"""A driver for SQL Server's dialect without a server: SQLite runs the statements, in translation.

It shows that each statement is T-SQL, what it means, and its parameters as pymssql writes them. Of
locks it knows the rows that a SELECT with UPDLOCK has returned, until their transaction ends: it
shows what the stores do about them, and nothing of what SQL Server would lock.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlglot
from pymssql import _mssql
from pymssql.exceptions import IntegrityError, OperationalError
from sqlalchemy import event
from sqlglot import exp

from timeoutmgr.database import Database, DatabaseSettings

_CLOCK = "DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME())"
READPAST = "READPAST"
_APPLOCK = re.compile(r"EXEC @answer = sp_(get|release)applock @Resource = N'([^']*)'")
_ANSWERS: dict[str, Any] = {
    "select @@version": "Microsoft SQL Server 2022 - 16.0.1000.6 (X64)",
    "SELECT schema_name()": "dbo",
    "SELECT is_read_committed_snapshot_on": 1,
    "SELECT delayed_durability_desc": "DISABLED",
    "SELECT CAST('test max support'": "test max support",
    "SELECT name FROM sys.system_views": "dm_exec_sessions",
    "SELECT CASE transaction_isolation_level": "READ COMMITTED",
    "SELECT 1 FROM fn_listextendedproperty": 1,
}
_IGNORED = ("SET ", "IF @@TRANCOUNT")


class Server:
    """One database in a file; *statements* are the templates that were executed, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statements: dict[str, None] = {}
        self.locks: dict[str, int] = {}
        self.row_locks: dict[tuple[str, int], int] = {}
        self.answers = dict(_ANSWERS)
        self.sessions = 50

    def connect(self, *_arguments: Any) -> Connection:
        """Open a connection: a listener for SQLAlchemy's ``do_connect``."""
        self.sessions += 1
        return Connection(self, self.sessions)

    def install(self, ddl: str) -> None:
        """Run *ddl*, in whose place a server is asked for its tables and indexes."""
        session = self.connect()
        for statement in re.split(r";\s*(?:GO)?\s*\n\n", re.sub(r"(?m)^--.*$", "", ddl)):
            if statement.strip() not in {"", "GO", "BEGIN TRANSACTION", "COMMIT"}:
                session.cursor().execute(statement.strip())
        session.commit()
        session.close()
        self.statements.clear()

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """Note *title* before the statements of the block."""
        self.statements[f"-- {title}"] = None
        yield


class Connection:
    """A DB-API connection of one session; transactions begin with their first change."""

    def __init__(self, server: Server, session: int) -> None:
        self.server, self.session = server, session
        self.is_autocommit = False
        self.file = sqlite3.connect(
            server.path, isolation_level=None, check_same_thread=False, timeout=1
        )
        self.file.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")
        functions: dict[str, tuple[int, Callable[..., Any]]] = {
            "DATALENGTH": (1, lambda value: None if value is None else len(value)),
            "CONCATENATED": (2, lambda one, other: one + other),
            "CLOCK": (0, lambda: time.time_ns() // 1_000),
            "APPLOCK_TEST": (4, lambda _p, name, *_: int(name not in server.locks)),
            "APPLOCK_MODE": (
                3,
                lambda _p, name, _o: "Exclusive" if server.locks.get(name) == session else "NoLock",
            ),
        }
        for name, (count, function) in functions.items():
            self.file.create_function(name, count, function)

    def autocommit(self, is_on: bool) -> None:
        self.is_autocommit = is_on

    def cursor(self) -> Cursor:
        return Cursor(self)

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def close(self) -> None:
        self.rollback()
        _release(self.server.locks, self.session)
        self.file.close()

    def _end(self, how: str) -> None:
        if self.file.in_transaction:
            self.file.execute(how)
        _release(self.server.row_locks, self.session)


def _release(locks: dict[Any, int], session: int) -> None:
    for lock in [lock for lock, owner in locks.items() if owner == session]:
        del locks[lock]


class Cursor:
    """A DB-API cursor."""

    arraysize = 1

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid = None

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def close(self) -> None:
        pass

    def execute(self, statement: str, parameters: Any = None) -> None:
        written = statement
        if parameters:
            written = _mssql.substitute_params(statement, parameters).decode()
        if "FROM sys.objects" in statement:
            found = "SELECT name FROM sqlite_master WHERE name = ?"
            name = parameters["filter_names_1"]
            self._answer(self._connection.file.execute(found, [name]).fetchall(), ["name"])
            return
        canned = next(
            (
                v
                for k, v in self._connection.server.answers.items()
                if statement.strip().startswith(k)
            ),
            None,
        )
        if canned is not None:
            self._answer([(canned,)], ["answer"])
        elif "LOCK_ESCALATION" in statement or (
            statement.startswith(_IGNORED) and "applock" not in statement
        ):
            self._answer([], None)
        else:
            self._connection.server.statements[statement] = None
            self._run(written)

    def executemany(self, statement: str, rows: Sequence[Any]) -> None:
        for row in rows:
            self.execute(statement, row)

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    def fetchmany(self, size: int = 1) -> list[Any]:
        rows, self._rows = self._rows[:size], self._rows[size:]
        return rows

    def nextset(self) -> bool:
        return False

    def _answer(self, rows: list[Any], names: Sequence[str] | None) -> None:
        self._rows = rows
        self.description = None if names is None else [(n, *[None] * 6) for n in names]
        self.rowcount = -1

    def _run(self, written: str) -> None:
        lock = _APPLOCK.search(written)
        if lock is not None:
            self._answer([(self._applock(*lock.groups()),)], ["answer"])
            return
        file = self._connection.file
        if written.startswith("SAVE TRANSACTION "):
            self._begin()
            file.execute(f"SAVEPOINT {written.rpartition(' ')[2]}")
        elif written.startswith("ROLLBACK TRANSACTION "):
            file.execute(f"ROLLBACK TO {written.rpartition(' ')[2]}")
        else:
            self._translated(written)

    def _applock(self, what: str, name: str) -> int:
        locks, session = self._connection.server.locks, self._connection.session
        if what == "release":
            return int(locks.pop(name, None) is not None)
        return int(locks.setdefault(name, session) == session)

    def _begin(self) -> None:
        connection = self._connection
        if not connection.is_autocommit and not connection.file.in_transaction:
            connection.file.execute("BEGIN IMMEDIATE")

    def _translated(self, written: str) -> None:
        written = written.replace(_CLOCK, "CLOCK()").replace(
            "@@SPID", str(self._connection.session)
        )
        # The parser takes no bytes at all for a name.
        written = re.sub(r"\(0x AS ", "('' AS ", written)
        tree = sqlglot.parse_one(written, read="tsql")
        locking = _locking(tree)
        translated = in_sqlite(tree)
        if not isinstance(tree, exp.Select):
            self._begin()
        try:
            cursor = self._connection.file.execute(translated)
        except sqlite3.IntegrityError as error:
            raise IntegrityError(2627, str(error).encode()) from error
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise OperationalError(1205, b"was deadlocked on lock resources") from error
            raise OperationalError(50000, f"{error}: {translated}".encode()) from error
        rows, names = cursor.fetchall(), [name[0] for name in cursor.description or ()]
        if locking is not None:
            rows = [row[:-1] for row in rows if self._may_lock(locking, row[-1])]
            names.pop()
        if "Time" in names:  # SQLite keeps instants as text
            at = names.index("Time")
            rows = [(*row[:at], datetime.fromisoformat(row[at]), *row[at + 1 :]) for row in rows]
        self._answer(rows, names or None)
        self.rowcount = cursor.rowcount

    def _may_lock(self, table: exp.Table, row: int) -> bool:
        connection = self._connection
        owner = connection.server.row_locks.setdefault((table.name, row), connection.session)
        if owner != connection.session and READPAST not in table.sql("tsql"):
            raise OperationalError(1222, b"Lock request time out period exceeded.")
        return owner == connection.session


def _locking(tree: exp.Expr) -> exp.Table | None:
    """Return the table that *tree* locks rows of, whose row id is then its last column."""
    if not isinstance(tree, exp.Select):
        return None
    for table in tree.find_all(exp.Table):
        if "UPDLOCK" in table.sql("tsql"):
            row = exp.column("rowid", table=table.alias_or_name, quoted=True)
            tree.select(row, copy=False)
            return table
    return None


def in_sqlite(tree: exp.Expr) -> str:
    """Return the T-SQL *tree* as SQLite's."""
    for added in list(tree.find_all(exp.Add)):
        if isinstance(added.expression, exp.Cast):
            added.replace(exp.func("CONCATENATED", added.this, added.expression))
    for text in list(tree.find_all(exp.National)):
        text.replace(exp.Literal.string(text.name))
    for column in list(tree.find_all(exp.Column)):
        if column.table == "inserted":
            column.set("table", None)
    translated = tree.sql(dialect="sqlite").replace("(MAX)", "")
    return re.sub(r"^(DROP INDEX \w+) ON .*", r"\1", translated)


def translated_database(server: Server) -> Database:
    """Return the database of *server*."""
    database = Database("mssql+pymssql://user:secret@nowhere/timeouts", _EXPERIMENTAL)
    for engine in (database.engine, database.apart):
        event.listen(engine, "do_connect", server.connect)
    return database


_EXPERIMENTAL = DatabaseSettings(experimental=True)
