"""A custom delayed message store without batch methods: one table in a SQLite file."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from uuid import uuid4

from timeoutmgr import TransactionMode
from timeoutmgr.contracts import Timeout
from timeoutmgr.errors import ConfigurationError, StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message

HOLDS_FOR = 60_000_000  # microseconds; then another process may fetch the message


class FileStore:
    """One endpoint's delayed messages. A flag replaces a row lock, which SQLite lacks."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialize(self, endpoint_name: str, transaction_mode: TransactionMode) -> None:
        if transaction_mode is TransactionMode.TRANSACTION_SCOPE:
            raise ConfigurationError(
                "FileStore shares no transaction with a queue; use receive_only"
            )
        columns = "id PRIMARY KEY, due, try_at, failures, destination, message, body, held, until"
        self._run(f"CREATE TABLE IF NOT EXISTS delayed ({columns})")
        self._run("CREATE INDEX IF NOT EXISTS delayed_try_at ON delayed (try_at)")

    @contextmanager
    def transaction(self) -> Iterator[str]:
        owner = uuid4().hex
        try:
            yield owner
        finally:
            self._run("UPDATE delayed SET held = NULL, until = 0 WHERE held = ?", owner)

    def store(self, timeout: Timeout, *, transaction: str | None = None) -> None:
        it = timeout.message
        kept = json.dumps([it.id, dict(it.headers), it.content_type, it.content_encoding])
        row = (timeout.id, timeout.due, timeout.due, 0, timeout.destination, kept, it.body)
        self._run("INSERT OR IGNORE INTO delayed VALUES (?, ?, ?, ?, ?, ?, ?, NULL, 0)", *row)

    def fetch_next_due_timeout(self, at: Micros, *, transaction: str) -> Timeout | None:
        first = "SELECT id FROM delayed WHERE try_at <= ? AND until <= ? ORDER BY try_at LIMIT 1"
        statement = f"UPDATE delayed SET held = ?, until = ? WHERE id = ({first}) RETURNING *"
        rows = self._run(statement, transaction, at + HOLDS_FOR, at, at)
        for id_, due, _, failures, destination, message, body, *_ in rows:
            name, headers, kind, encoding = json.loads(message)
            kept = Message(
                id=name, headers=headers, body=body, content_type=kind, content_encoding=encoding
            )
            return Timeout(
                id=id_, due=due, destination=destination, message=kept, attempts=failures
            )
        return None

    def remove(self, timeout: Timeout, *, transaction: str | None = None) -> bool:
        mine = "DELETE FROM delayed WHERE id = ? AND coalesce(?, held) IS held RETURNING id"
        return bool(self._run(mine, timeout.id, transaction))

    def increment_failure_count(self, timeout: Timeout, not_before: Micros) -> bool:
        count = "UPDATE delayed SET failures = failures + 1, try_at = ? WHERE id = ? RETURNING id"
        return bool(self._run(count, not_before, timeout.id))

    def next(self) -> Micros | None:
        return next((found for (found,) in self._run("SELECT min(try_at) FROM delayed")), None)

    def _run(self, statement: str, *values: object) -> list[tuple]:
        try:
            with closing(sqlite3.connect(self._path, timeout=20)) as connection, connection:
                return connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            raise StorageUnavailable(f"{self._path}: {error}") from error
