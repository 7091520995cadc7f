"""The context that the parts of one endpoint's store share."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Connection, literal, literal_column, select
from sqlalchemy.sql.selectable import Select

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.database import Database
from timeoutmgr.database.binary_copy import can_copy
from timeoutmgr.database.session_locks import Liveness
from timeoutmgr.message.instants import Micros

from .batch_writes import BatchWrites, PostgreSQLBatchWrites
from .settings import SqlSettings
from .tables import TimeoutTables


@dataclass(frozen=True, kw_only=True)
class StoreContext:
    """One endpoint in one database.

    *atomic*: the queue is in the same database and transaction as the store, so that a
    dispatch that was not closed was not sent. *me* is this store's own owner name.
    """

    endpoint: str
    database: Database
    tables: TimeoutTables
    settings: SqlSettings
    clock: Clock
    liveness: Liveness
    atomic: bool
    node: str
    me: str

    @cached_property
    def writing(self) -> BatchWrites:
        """How batches are written here."""
        if self.settings.copy and can_copy(self.database.engine):
            return PostgreSQLBatchWrites(self.tables, self.endpoint)
        return BatchWrites(self.tables, self.endpoint, locks_what_it_reads=self.locks_what_it_reads)

    @cached_property
    def claims(self) -> Select[tuple[Any, ...]]:
        """All claims of the endpoint, also ended claims; made once, for it is hot.

        Their columns are in the order in which ``claims_of`` reads them.
        """
        claims = self.tables.claims.c
        ends = claims.from_due, claims.from_id, claims.to_due, claims.to_id
        columns = claims.token, *ends, claims.owner, claims.claimed_until, claims.size
        return select(*columns, claims.taken_by).where(claims.endpoint == self.endpoint)

    @property
    def has_database_clock(self) -> bool:
        """Whether due times are compared with the database's clock, not the host's."""
        return self.settings.clock == "database" and self.database.dialect.now is not None

    @property
    def locks_what_it_reads(self) -> bool:
        """Whether an UPDATE or DELETE locks, and waits for, each row that its plan reads.

        So it is in MySQL, and the plan is not ours to choose: while other transactions lock rows,
        only statements on a whole primary key are free of deadlocks.
        """
        return self.database.dialect.name in {"mysql", "mariadb"}

    @property
    def now_column(self) -> ColumnElement[int]:
        """The database's clock as a column; where the host's counts, a zero to be ignored."""
        now = self.database.dialect.now if self.has_database_clock else None
        return literal_column(now or "0").label("now")

    @property
    def now_value(self) -> ColumnElement[int]:
        """The time that counts, as a value to be written."""
        return self.now_column.element if self.has_database_clock else literal(self.clock.now())

    def now(self, connection: Connection) -> Micros:
        """Return the time that counts."""
        if not self.has_database_clock:
            return self.clock.now()
        return int(connection.execute(select(self.now_column)).scalar_one())


@dataclass(frozen=True, slots=True)
class Interval:
    """Keys from *first* to *last*, both included."""

    first: Key
    last: Key

    def covers(self, key: Key) -> bool:
        """Return whether *key* lies inside."""
        return self.first <= key <= self.last
