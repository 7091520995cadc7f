"""The consumer's ledger: a row for each delivery."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from sqlalchemy import (
    BigInteger,
    Boolean,
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
from sqlalchemy.pool import NullPool

from timeoutmgr.message.instants import Micros

LEDGER: Final = "ledger.db"
_PATIENCE: Final = 60.0


class LedgerLocation(Protocol):
    """Store and files of a run, as its ledger needs them."""

    @property
    def store(self) -> str:
        """The URL of the store."""
        ...

    @property
    def one_database(self) -> bool:
        """Whether queues and store share a database."""
        ...

    @property
    def prefix(self) -> str:
        """The prefix of all table names."""
        ...

    def file(self, name: str) -> Path:
        """Return the path of a file of this run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery. *redelivered* counts earlier deliveries by the broker.

    The producer chose *name*; *dispatched_at* is by the store's clock; *sent_by* names the
    incarnation of the sender, if senders add trace headers. A message *through_levels* was sent
    before its due time, into RabbitMQ's delay levels: *dispatched_at* is then its sender's time.
    *received_by* names the incarnation of a receiver that sends the message on. *batch* names the
    transaction that messages share, *at_once* counts the coroutines that ran; zero for a function.
    A *foreign* message is of another program.
    """

    message_id: str
    name: str
    dispatched_at: Micros
    received_at: Micros
    redelivered: int
    sent_by: str = ""
    through_levels: bool = False
    received_by: str = ""
    batch: str = ""
    at_once: int = 0
    foreign: bool = False


class ConsumerLedger:
    """The consumer's record of every delivery.

    If queues and store share a database, the ledger is a table beside them, and a row is written
    in the transaction that settles the message. Otherwise it is a SQLite file of the consumer.
    """

    def __init__(self, environment: LedgerLocation) -> None:
        self._engine = (
            create_engine(environment.store, poolclass=NullPool)
            if environment.one_database
            else _own_file(f"sqlite:///{environment.file(LEDGER)}")
        )
        self._table = Table(
            f"{environment.prefix}ledger",
            MetaData(),
            Column("row", Integer, primary_key=True, autoincrement=True),
            Column("message_id", String(200), nullable=False),
            Column("name", String(200), nullable=False),
            Column("dispatched_at", BigInteger, nullable=False),
            Column("sent_by", String(200), nullable=False),
            Column("received_at", BigInteger, nullable=False),
            Column("redelivered", Integer, nullable=False),
            Column("through_levels", Boolean, nullable=False),
            Column("received_by", String(200), nullable=False),
            Column("batch", String(200), nullable=False),
            Column("at_once", Integer, nullable=False),
            Column("foreign", Boolean, nullable=False),
        )
        self._rows: dict[int, Delivery] = {}

    def create(self) -> None:
        """Create the table."""
        self._table.metadata.create_all(self._engine)

    def write(self, delivery: Delivery, session: Session | None) -> None:
        """Add a row in the transaction of *session*; without a session, commit it."""
        values = {name: getattr(delivery, name) for name in Delivery.__slots__}
        with self._transaction(session) as connection:
            connection.execute(self._table.insert(), values)

    def read(self) -> list[Delivery]:
        """Return all deliveries in order; read only new rows."""
        statement = select(self._table)
        # Rows of several writers may appear out of order: read the latest rows again.
        known = max(self._rows, default=0)
        statement = statement.where(self._table.c.row > known - 1_000)
        with self._engine.connect() as connection:
            self._keep(connection, statement)
        return [self._rows[number] for number in sorted(self._rows)]

    def read_all(self) -> list[Delivery]:
        """Return every delivery, read afresh."""
        self._rows.clear()
        return self.read()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _keep(self, connection: Connection, statement: Any) -> None:
        for row in connection.execute(statement).mappings():
            fields: dict[str, Any] = dict(row)
            number = fields.pop("row")
            self._rows[number] = Delivery(**fields)

    @contextmanager
    def _transaction(self, session: Session | None) -> Iterator[Connection]:
        if session is not None:
            yield session.connection()
            return
        with self._engine.begin() as connection:
            yield connection


def _own_file(url: str) -> Engine:
    # A process that is paused in the middle of a commit blocks all processes until it continues.
    engine = create_engine(url, connect_args={"timeout": _PATIENCE})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # survives a killed process

    return engine
