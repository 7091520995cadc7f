"""What was accepted and what was delivered, written down by those who did it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scene import Scene
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    select,
)
from sqlalchemy.orm import Session

from timeoutmgr.instants import Micros

SYNC_EVERY: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A notice that the producer's send returned for; instants of the producer's clock."""

    id: str
    due: Micros
    at: Micros


class AcceptedFile:
    """The producer's own record, on disk before the producer says that it is done."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._unsynced = 0

    def add(self, accepted: Accepted) -> None:
        line = {"id": accepted.id, "due": accepted.due, "at": accepted.at}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._unsynced += 1
        if self._unsynced >= SYNC_EVERY:
            self.sync()

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._unsynced = 0

    def close(self) -> None:
        self.sync()
        self._file.close()


def read_accepted(path: Path) -> list[Accepted]:
    """Return what is recorded; a last line that is still being written is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Accepted(**json.loads(line)) for line in lines if line.endswith("\n")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One delivery to the board; *redelivered* is how often its broker had handed it out before."""

    message_id: str
    notice: str
    due: Micros
    dispatched_at: Micros
    received_at: Micros
    redelivered: int


class Ledger:
    """The board's record of every delivery.

    Where queues and store share a database it is a table beside them, and a row is written in
    the transaction that settles the message. Else it is a SQLite file of the board's own.
    """

    def __init__(self, scene: Scene) -> None:
        self._engine = (
            create_engine(scene.store)
            if scene.one_database
            else _own_file(f"sqlite:///{scene.file('ledger.db')}")
        )
        self._table = Table(
            f"{scene.prefix}ledger",
            MetaData(),
            Column("row", Integer, primary_key=True, autoincrement=True),
            Column("message_id", String(200), nullable=False),
            Column("notice", String(200), nullable=False),
            Column("due", BigInteger, nullable=False),
            Column("dispatched_at", BigInteger, nullable=False),
            Column("received_at", BigInteger, nullable=False),
            Column("redelivered", Integer, nullable=False),
        )
        self._rows: dict[int, Delivery] = {}

    def create(self) -> None:
        self._table.metadata.create_all(self._engine)

    def write(self, delivery: Delivery, session: Session | None) -> None:
        """Add a row: in the *session*'s transaction, or committed on return without one."""
        values = {name: getattr(delivery, name) for name in Delivery.__slots__}
        with self._transaction(session) as connection:
            connection.execute(self._table.insert(), values)

    def read(self) -> list[Delivery]:
        """Return all deliveries so far, oldest first."""
        # Rows of several writers may be seen out of order, so that a gap is looked at again.
        newest_in_a_row = next(n for n in range(len(self._rows) + 1) if n + 1 not in self._rows)
        statement = select(self._table).where(self._table.c.row > newest_in_a_row)
        with self._engine.connect() as connection:
            for row in connection.execute(statement).mappings():
                fields: dict[str, Any] = dict(row)
                number = fields.pop("row")
                self._rows[number] = Delivery(**fields)
        return [self._rows[number] for number in sorted(self._rows)]

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self, session: Session | None) -> Iterator[Connection]:
        if session is not None:
            yield session.connection()
            return
        with self._engine.begin() as connection:
            yield connection


def _own_file(url: str) -> Engine:
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # survives a killed process

    return engine
