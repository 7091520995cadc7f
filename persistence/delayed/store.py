"""The delayed messages of one endpoint in a SQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, inspect

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import (
    Clock,
    Key,
    StoreCapabilities,
    StoreMarker,
    Timeout,
    TransactionMode,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database, checked_identifier
from timeoutmgr.database import upgrade as migrations
from timeoutmgr.database.session_locks import Liveness
from timeoutmgr.database.soundness import refusals
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.persistence.sql.claim.hints import KeyCursor
from timeoutmgr.persistence.sql.markers import Markers
from timeoutmgr.persistence.sql.rows import from_row, refused_value, sound_timeout

from .rows import DelayedRows, marker_table, table_name

# --- without row locks: fetched rows are marked, and the mark fences their removal ----------------
# SQLite has one writer: a transaction that stays open while a message is sent would prevent all
# stores, or wait for itself if the queue is in the same file. So fetching commits a mark on the
# rows, and removing skips rows that another process has marked since. A mark names its process'
# owner (``timeoutmgr.database.session_locks``), and is void when that owner is dead; its time-out
# is for a process that is stopped but not dead.

CLAIM_TIME: Final = 60_000_000
"""Microseconds that a mark lasts if its process neither ends it nor dies."""


@dataclass(slots=True)
class FencingToken:
    """The rows of one fetch; used by one thread."""

    database: Database
    rows: DelayedRows
    liveness: Liveness
    owner: str
    _claim: str = field(default="", init=False)
    _held: set[str] = field(default_factory=set, init=False)

    def due(self, at: Micros, limit: int) -> Sequence[Any]:
        """Return up to *limit* due rows, and mark them."""
        owner = self.liveness.name_of(self.owner)
        self._claim = f"{uuid4().hex}@{owner}"
        with self.database.read() as connection:
            claims = self.rows.claims(connection)
        dead = self.liveness.dead_owners({_owner_of(claim) for claim in claims})
        freed = [claim for claim in claims if _owner_of(claim) in dead]

        def work(connection: Any) -> Sequence[Any]:
            self.rows.free(connection, freed)
            reach("fencing.freed")
            found = self.rows.due(connection, at, limit).rows
            ids = [row.id for row in found]
            if ids:
                self.rows.reserve(connection, ids, self._claim, at + CLAIM_TIME)
                reach("fencing.held")
            return found

        found = self.database.run(work)
        self._held = {row.id for row in found}
        return found

    def remove(self, timeouts: Sequence[Timeout]) -> int:
        """Remove the rows that are still ours; return how many."""
        ids = [timeout.id for timeout in timeouts]
        removed = self.database.run(
            lambda connection: self.rows.remove(connection, ids, self._claim)
        )
        self._held.difference_update(ids)
        return removed

    def close(self) -> None:
        """Free the rows that were not removed."""
        if self._held:
            ids, self._held = sorted(self._held), set()
            self.database.run(lambda connection: self.rows.release(connection, ids, self._claim))


@contextmanager
def fenced(
    database: Database, rows: DelayedRows, liveness: Liveness, owner: str
) -> Iterator[FencingToken]:
    """Yield a token; free the rows that it still has at the end."""
    token = FencingToken(database, rows, liveness, owner)
    try:
        yield token
    finally:
        token.close()


def _owner_of(claim: str) -> str:
    return claim.partition("@")[2]


_MIGRATIONS: Final = "timeoutmgr.persistence:delayed/migrations"
_FOLDS: Final = "SELECT @@lower_case_table_names"
_IGNORES_CASE: Final = {"sqlite": "SELECT 1", "mysql": _FOLDS, "mariadb": _FOLDS}
"""Queries whether a database treats table names that differ in case as the same."""


class SqlDelayedMessageStore:
    """Keeps delayed messages in SQLite, PostgreSQL, MySQL or MariaDB; one store per endpoint.

    Microsoft SQL Server is experimental, see ``DatabaseSettings``.

    *url* may be a Database that is also used elsewhere; for a URL, the process' shared Database is
    used. *table* defaults to the endpoint's name with ``.delayed``. Both names are quoted. See
    :class:`timeoutmgr.contracts.DelayedMessageStore` for the methods.
    """

    def __init__(
        self,
        url: str | Database,
        *,
        schema: str | None = None,
        table: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._database: Final = url if isinstance(url, Database) else Database.shared(url)
        self._database.used_by(self)
        if schema is not None:
            checked_identifier("schema", schema)
            self._database.refuse_attached(schema, "Name another table.")
        self._schema, self._table = schema, table
        if table is not None:
            self._name("")
        self._clock: Final = clock or SystemClock()
        self._liveness: Final = Liveness(self._database)
        self._me: Final = uuid4().hex
        self._cursor: Final = KeyCursor(SystemClock())
        self._mode: TransactionMode | None = None
        self._endpoint: str | None = None
        self._bound: DelayedRows | None = None

    @property
    def database(self) -> Database:
        """The database of the table."""
        return self._database

    @property
    def capabilities(self) -> StoreCapabilities:
        """Capabilities of the database."""
        row_locks = self._database.dialect.row_locks
        return StoreCapabilities(
            name=self._database.dialect.name,
            durable=True,
            row_locks=row_locks,
            note="" if row_locks else "one host; a pause longer than a minute can repeat a message",
        )

    def setup_infrastructure(self, endpoint_name: str) -> None:
        """Create or upgrade the table; twice and concurrently is fine.

        Raises ConfigurationError if the database confuses another store's table with this table.
        """
        self._refuse_lookalikes(self._name(endpoint_name))
        migrations.upgrade(self._database, *self._tables(endpoint_name), self._attributes())

    def initialize(self, endpoint_name: str, transaction_mode: TransactionMode) -> None:
        """Bind the store to *endpoint_name*; raise SchemaMissing if there is no table.

        Raises ConfigurationError as ``setup_infrastructure`` does.
        """
        tables = self._tables(endpoint_name)
        self._refuse_lookalikes(self._name(endpoint_name))
        migrations.check(self._database, *tables)
        self._mode = TransactionMode(transaction_mode)

    def ddl(self, endpoint_name: str) -> str:
        """Return the statements that ``setup_infrastructure`` would run on an empty database."""
        return migrations.ddl(self._database, *self._tables(endpoint_name), self._attributes())

    def marker(self, endpoint: str) -> StoreMarker | None:
        """Return the marker of *endpoint*, or None."""
        return self._markers(endpoint).read(endpoint)

    def propose_marker(self, endpoint: str, word: str, broker: str) -> StoreMarker:
        """Store *word*, unconfirmed, unless there is a marker; return the stored marker."""
        return self._markers(endpoint).propose(endpoint, word, broker)

    def confirm_marker(self, endpoint: str, word: str, broker: str) -> None:
        """Store *word* as the marker that *broker* bears."""
        self._markers(endpoint).confirm(endpoint, word, broker)

    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction; on SQLite, without row locks, fence the fetched rows."""
        if self._database.dialect.row_locks:
            return self._database.begin()
        return fenced(self._database, self._rows, self._liveness, self._me)

    def store(self, timeout: Timeout, *, transaction: Connection | None = None) -> None:
        """Store a message; an id that is already stored is left as it is."""
        self.store_many([timeout], transaction=transaction)

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Connection | None = None
    ) -> None:
        """Store all or none; raises MessageRejected for a message that cannot be stored."""

        def insert_sound_row(connection: Connection) -> None:
            self._rows.insert(connection, [sound_timeout(timeouts[0].due)])

        with refusals(self._database, transaction, insert_sound_row, refused_value):
            if transaction is not None:
                self._rows.insert(transaction, timeouts)
            else:
                self._database.run(lambda connection: self._rows.insert(connection, timeouts))
        if transaction is None:
            self.notify_stored(min((timeout.due for timeout in timeouts), default=LATEST))

    def fetch_next_due_timeout(
        self, at: Micros, *, transaction: Connection | FencingToken
    ) -> Timeout | None:
        """Return the oldest due message that no other process has."""
        return next(iter(self.fetch_due(at, 1, transaction=transaction)), None)

    def fetch_due(
        self, at: Micros, limit: int, *, transaction: Connection | FencingToken
    ) -> list[Timeout]:
        """Return up to *limit* due messages that no other process has, oldest first."""
        if isinstance(transaction, FencingToken):
            found = transaction.due(at, limit)
        else:
            found = self._due(transaction, at, limit)
        return [from_row(row) for row in found]

    def remove(
        self, timeout: Timeout, *, transaction: Connection | FencingToken | None = None
    ) -> bool:
        """Remove a message; return whether it was there."""
        return self.remove_many([timeout], transaction=transaction) == 1

    def remove_many(
        self, timeouts: Sequence[Timeout], *, transaction: Connection | FencingToken | None = None
    ) -> int:
        """Remove messages; return how many were there."""
        ids = [timeout.id for timeout in timeouts]
        if isinstance(transaction, FencingToken):
            return transaction.remove(timeouts)
        if transaction is not None:
            return self._rows.remove(transaction, ids)
        return self._database.run(lambda connection: self._rows.remove(connection, ids))

    def increment_failure_count(self, timeout: Timeout, not_before: Micros) -> bool:
        """Count a failed attempt; the row is not fetched before *not_before*."""
        counted = self._database.run(
            lambda connection: self._rows.failed(connection, timeout.id, not_before)
        )
        return counted == 1

    def next(self) -> Micros | None:
        """Return when the earliest message may be fetched, locked or not."""
        with self._database.read() as connection:
            return self._rows.next(connection)

    def count(self) -> int:
        """Return how many messages are stored."""
        with self._database.read() as connection:
            return self._rows.count(connection)

    def destinations(self, most: int) -> dict[str, int]:
        """Return the number of messages by destination, among the first *most* messages."""
        with self._database.read() as connection:
            return self._rows.destinations(connection, most)

    def now(self) -> Micros:
        """Return the time that due times are compared with."""
        return self._database.now(self._clock)

    def close(self) -> None:
        """Release this process' session lock here, and close idle connections."""
        self._liveness.release_all()
        self._database.leave(self)

    def notify_stored(self, due: Micros) -> None:
        """Note that a message due at *due* was stored in a caller's transaction and committed."""
        self._cursor.notify_stored(due)

    def _due(self, connection: Connection, at: Micros, limit: int) -> Sequence[Any]:
        """Search from the first known row; from the very beginning before answering "none due"."""
        position = self._cursor.position()
        found, is_cut = self._rows.due(connection, at, limit, position.start)
        if len(found) < limit and not is_cut and self._cursor.retreat():
            # Rows that we have locked are found again.
            return self._rows.due(connection, at, limit).rows
        if found:
            self._cursor.advance(position, Key(found[0].next_try, found[0].id))
        return found

    @property
    def _rows(self) -> DelayedRows:
        if self._bound is None:
            raise ConfigurationError(
                "this delayed message store is not initialized; the endpoint does it when it starts"
            )
        return self._bound

    def _tables(self, endpoint: str) -> tuple[str, str, str | None]:
        """Bind the store to *endpoint*, and return the tables for migrations."""
        if self._endpoint is not None and self._endpoint != endpoint:
            raise ConfigurationError(
                f"this delayed message store is that of endpoint {self._endpoint!r}; make "
                f"another store for {endpoint!r}"
            )
        name = self._name(endpoint)
        if self._bound is None:
            self._endpoint = endpoint
            self._bound = DelayedRows(self._database, self._schema, name)
        return _MIGRATIONS, f"{name}.version", self._schema

    def _markers(self, endpoint: str) -> Markers:
        return Markers(self._database, marker_table(self._schema, self._name(endpoint)))

    def _attributes(self) -> dict[str, str]:
        assert self._endpoint is not None, "bound by _tables"
        return {"table": self._name(self._endpoint)}

    def _name(self, endpoint: str) -> str:
        return table_name(endpoint, self._table, self._database.dialect.name)

    def _refuse_lookalikes(self, name: str) -> None:
        """Raise ConfigurationError for a table that the database confuses with the table *name*."""
        database, path = self._database, self._database.path
        ignores_case = _IGNORES_CASE.get(database.dialect.name)
        if ignores_case is None or (path is not None and not path.exists()):
            return
        with database.read() as connection:
            if not connection.exec_driver_sql(ignores_case).scalar():
                return
            tables = inspect(connection).get_table_names(schema=self._schema)
        wanted = name.encode().lower()  # of ASCII only, as SQLite does
        for each in tables:
            if each != name and each.encode().lower() == wanted:
                raise ConfigurationError(
                    f"{database.describe()} takes the table {each!r} of another delayed message "
                    f"store for {name!r}: each store would fetch the messages of the other; give "
                    f"a name of its own with table= (or table={each!r}, if the endpoint was called "
                    "so before)"
                )
