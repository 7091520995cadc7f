"""The statements on one table of delayed messages, each built once."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    SmallInteger,
    Table,
    Text,
    any_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from timeoutmgr.contracts import Key, Timeout
from timeoutmgr.database import Database
from timeoutmgr.database.arrays import TextArray
from timeoutmgr.database.dialects import MSSQL
from timeoutmgr.database.engine import execute_many
from timeoutmgr.database.places import OwnTable
from timeoutmgr.database.texts import KeyText, checked_metadata
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.sql.batch_writes import insert_missing
from timeoutmgr.persistence.sql.claim.hints import FROM_THE_BEGINNING
from timeoutmgr.persistence.sql.dispatch.lock import columns_with_size, fitting
from timeoutmgr.persistence.sql.rows import to_row

SUFFIX: Final = ".delayed"
NAME_BYTES: Final = 55
"""Maximum length of a table name; with the suffix of its version it fits PostgreSQL's 63."""


def table_name(endpoint: str, given: str | None, dialect: str) -> str:
    """Return the table's name: the *given* name, or the default for *endpoint*.

    Any printable text is allowed, since it is quoted. Raises ConfigurationError for a name that
    some database would truncate (two endpoints would share a table), or that *dialect* forbids.
    """
    name = endpoint + SUFFIX if given is None else given
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < size <= NAME_BYTES or not name.isprintable():
        raise ConfigurationError(
            f"a delayed message store's table is printable text of 1 to {NAME_BYTES} bytes, got "
            f"{name!r:.120}; give another name with table="
        )
    if dialect in {"mysql", "mariadb"} and (max(name) > "\uffff" or name.endswith(" ")):
        raise ConfigurationError(
            "a table of MySQL or MariaDB has no character beyond U+FFFF in its name, and no space "
            f"at its end, got {name!r:.120}; give another name with table="
        )
    return name


# ``next_try`` is when a row may be fetched: its due time, postponed by each failed attempt. The key
# begins with it, so that the next rows are adjacent, however many follow.
def delayed_table(schema: str | None, name: str) -> Table:
    """Return the table *name* in *schema* (None: the connection's own)."""
    return OwnTable(
        name,
        checked_metadata(schema),
        _instant("next_try", key=True),
        _text("id", key=True),
        _instant("due"),
        _text("destination"),
        _text("saga_id"),
        _text("message_id"),
        Column("headers", Text),
        Column("body", LargeBinary),
        _text("content_type"),
        _text("content_encoding"),
        _instant("created"),
        Column("attempts", Integer),
        _text("claimed_by"),
        _instant("claimed_until"),
    )


def marker_table(schema: str | None, name: str) -> Table:
    """Return the table for the marker of the store whose messages are in the table *name*."""
    return OwnTable(
        f"{name}.marker",
        MetaData(schema=schema),
        _text("endpoint", key=True),
        _text("marker"),
        Column("broker", Text),
        Column("marker_confirmed", SmallInteger),
    )


def _text(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, KeyText(255), primary_key=key)


def _instant(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, BigInteger, primary_key=key, autoincrement=False)


# The start of the statement, unlike the store's own clock: an index cannot compare a value that
# changes during a statement. It is behind that clock, so nothing is early.
_STATEMENT_NOW: Final = {
    "postgresql": "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000000) AS bigint)",
    "mysql": "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
    "mariadb": "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
    "mssql": MSSQL.now,
}


class Due(NamedTuple):
    """Due rows, whose columns are attributes.

    *is_cut*: more rows are due, and their bodies would have exceeded the limit of a fetch.
    """

    rows: Sequence[Any]
    is_cut: bool


class DelayedRows:
    """Reads and writes one table on the caller's connection."""

    def __init__(self, database: Database, schema: str | None, name: str) -> None:
        self._table: Final = delayed_table(schema, name)
        rows = self._table.c
        dialect = database.dialect.name
        self._uses_our_clock = dialect not in _STATEMENT_NOW
        self._removes_by_array = dialect == "postgresql"
        self._starts_at_key = dialect == "postgresql"
        # Without statistics, PostgreSQL expects few due rows, and would read and sort all of them
        # for the first batch.
        self._in_order = (
            select(func.set_config("enable_sort", "off", True)) if dialect == "postgresql" else None
        )
        self._due = self._due_statement(database)
        self._bodies = select(rows.id, rows.body).where(
            rows.id.in_(bindparam("ids", expanding=True))
        )
        self._next = select(rows.next_try).order_by(rows.next_try).limit(1)
        first = (
            select(rows.destination)
            .order_by(rows.next_try, rows.id)
            .limit(bindparam("most", type_=Integer))
            .subquery()
        )
        self._destinations = select(first.c.destination, func.count()).group_by(first.c.destination)
        self._count = select(func.count()).select_from(self._table)
        self._prepare_outcomes()
        self._prepare_claims()

    def _due_statement(self, database: Database) -> Select[Any]:
        rows = self._table.c
        clock = _STATEMENT_NOW.get(database.dialect.name)
        now: Any = bindparam("at", type_=BigInteger) if clock is None else literal_column(clock)
        conditions = [rows.next_try <= now]
        if self._starts_at_key:
            # The instant again, separately: without statistics, the pair alone gives no such plan.
            start = bindparam("from_due", type_=BigInteger), bindparam("from_id", type_=Text)
            conditions += [
                rows.next_try >= start[0],
                tuple_(rows.next_try, rows.id) >= tuple_(*start),
            ]
        if not database.dialect.row_locks:
            conditions.append(or_(rows.claimed_by.is_(None), rows.claimed_until <= now))
        return (
            select(*columns_with_size(self._table, rows.keys()))
            .where(*conditions)
            .order_by(rows.next_try, rows.id)
            .limit(bindparam("limit", type_=Integer))
            .with_for_update(skip_locked=True)
        )

    def _prepare_outcomes(self) -> None:
        rows = self._table.c
        by_id = rows.id == bindparam("id_")
        self._remove_all = delete(self._table).where(
            rows.id == any_(bindparam("ids", type_=TextArray()))
        )
        self._remove_one = delete(self._table).where(by_id)
        self._remove_claimed = delete(self._table).where(
            by_id, rows.claimed_by == bindparam("claim_")
        )
        # Leave the claim: the row is already free, or another process has claimed it by now.
        self._failed = (
            update(self._table)
            .where(by_id)
            .values(attempts=rows.attempts + 1, next_try=bindparam("next_try_"))
        )

    def _prepare_claims(self) -> None:
        rows = self._table.c
        by_id, claimed = rows.id == bindparam("id_"), rows.claimed_by == bindparam("claim_")
        free = {"claimed_by": None, "claimed_until": 0}
        self._claim_rows = (
            update(self._table)
            .where(by_id)
            .values(claimed_by=bindparam("claim_"), claimed_until=bindparam("until_"))
        )
        self._release = update(self._table).where(by_id, claimed).values(**free)
        self._claims = select(rows.claimed_by).where(rows.claimed_by.is_not(None)).distinct()
        self._free_claim = update(self._table).where(claimed).values(**free)

    def insert(self, connection: Connection, timeouts: Sequence[Timeout]) -> None:
        """Insert the rows whose id is new."""
        rows = [_row(timeout) for timeout in timeouts]
        insert_missing(connection, self._table, rows, key=("id",))

    def due(
        self, connection: Connection, at: Micros, limit: int, start: Key = FROM_THE_BEGINNING
    ) -> Due:
        """Return up to *limit* due, unclaimed rows, locked if the database has row locks.

        Their bodies together stay within the limit of a fetch. The search starts at *start*: before
        that key the index may be full of removed rows.
        """
        if self._in_order is not None:
            connection.execute(self._in_order)
        parameters: dict[str, Any] = {"limit": limit}
        if self._uses_our_clock:
            parameters["at"] = at
        if self._starts_at_key:
            parameters |= {"from_due": start.due, "from_id": start.id}
        there = connection.execute(self._due, parameters).all()
        fit = fitting(there)
        return Due(self._whole(connection, fit), is_cut=len(fit) < len(there))

    def _whole(self, connection: Connection, rows: Sequence[Row[Any]]) -> Sequence[Any]:
        large = [row.id for row in rows if row.body is None]
        if not large:
            return rows
        bodies = {id_: body for id_, body in connection.execute(self._bodies, {"ids": large})}
        return [
            row
            if row.body is not None
            else SimpleNamespace(**{**row._mapping, "body": bodies[row.id]})
            for row in rows
        ]

    def remove(self, connection: Connection, ids: Sequence[str], claim: str | None = None) -> int:
        """Remove rows, with *claim* only rows still under that claim; return their number."""
        if not ids:
            return 0
        if claim is None and self._removes_by_array:
            return connection.execute(self._remove_all, {"ids": list(ids)}).rowcount
        if claim is None:
            return execute_many(connection, self._remove_one, [{"id_": one} for one in ids])
        held = [{"id_": one, "claim_": claim} for one in ids]
        return execute_many(connection, self._remove_claimed, held)

    def failed(self, connection: Connection, one: str, not_before: Micros) -> int:
        """Count a failed attempt; return the number of rows."""
        return connection.execute(self._failed, {"id_": one, "next_try_": not_before}).rowcount

    def next(self, connection: Connection) -> Micros | None:
        """Return when the first row may be fetched."""
        found: Micros | None = connection.execute(self._next).scalar()
        return found

    def count(self, connection: Connection) -> int:
        """Return the number of rows."""
        return int(connection.execute(self._count).scalar_one())

    def destinations(self, connection: Connection, most: int) -> dict[str, int]:
        """Return the number of rows by destination, among the first *most* rows."""
        found = connection.execute(self._destinations, {"most": most})
        return {destination: count for destination, count in found}

    def reserve(
        self, connection: Connection, ids: Sequence[str], claim: str, until: Micros
    ) -> None:
        """Set *claim* on rows."""
        given = [{"id_": one, "claim_": claim, "until_": until} for one in ids]
        connection.execute(self._claim_rows, given)

    def release(self, connection: Connection, ids: Sequence[str], claim: str) -> None:
        """Release the rows of *ids* that are still under *claim*."""
        connection.execute(self._release, [{"id_": one, "claim_": claim} for one in ids])

    def claims(self, connection: Connection) -> set[str]:
        """Return the claims that have rows."""
        return set(connection.execute(self._claims).scalars())

    def free(self, connection: Connection, claims: Sequence[str]) -> None:
        """Release all rows of *claims*."""
        if claims:
            connection.execute(self._free_claim, [{"claim_": claim} for claim in claims])


def _row(timeout: Timeout) -> dict[str, Any]:
    row = to_row("", timeout)
    for name in ("endpoint", "version", "maybe_sent"):
        del row[name]
    return row | {"next_try": timeout.due}
