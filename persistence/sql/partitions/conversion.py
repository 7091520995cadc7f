"""Replace old partitions by new ones: small partitions at once, large ones by copying.

The pending timeouts of a large range are copied into separate tables, a chunk at a time, while all
processes keep working: a trigger on the range repeats each write on the copies. Then one
transaction replaces the range by the copies. Every transaction sees each row once: in the range
before the replacement, in the copies after it. No transaction runs during the replacement, which
locks the whole table for a few milliseconds.

Every step is a transaction that starts from the current catalog. A process that dies leaves either
the old partitions, or copies that the trigger keeps up to date; the next process continues. A step
waits only a moment for its locks, because later statements queue up behind it. If it does not get
them, it raises StorageConflict, and a later step tries again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as but
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, bindparam, exc, func, select, text

from timeoutmgr.crashpoints import reach
from timeoutmgr.database.session_locks import lock_number
from timeoutmgr.errors import StorageConflict

from .catalog import Change, DueRange, Ranged, Whole, bounds, condition, read_ranges

FEW: Final = 1_000
"""Maximum number of rows that are moved while the whole table is locked."""
CHUNK: Final = 500
"""Maximum rows copied in one transaction; their range accepts no writes meanwhile."""
SMALLEST: Final = 50
LOCK_WAIT: Final = "50ms"
"""How long a step, and other statements behind it, wait for a lock."""
AT_MOST: Final = "100ms"
"""How long a statement may take while the whole table, or a range, is locked."""

_COPIES: Final = "_copies"
_MIRROR: Final = "_mirror"
_CANCELED: Final = "57014"
_NO_TABLE: Final = "42P01"

_ALONE: Final = select(
    func.pg_try_advisory_xact_lock(bindparam("key", type_=BigInteger)),
    func.set_config("lock_timeout", LOCK_WAIT, True),
    func.set_config("statement_timeout", bindparam("most"), True),
)
_TRIGGER: Final = text(
    "SELECT CAST(t.oid AS bigint) FROM pg_trigger t WHERE t.tgrelid = to_regclass(:table)"
    " AND t.tgname = :name"
)

Key = tuple[str, int, str]


class TooLong(StorageConflict):
    """The change would keep other transactions waiting too long."""


class CopiesLost(StorageConflict):
    """The copies no longer match: another process has changed the partitions meanwhile."""


@dataclass(frozen=True, slots=True)
class Copying:
    """A change whose rows are being copied: rows up to *behind* are copied and kept up to date.

    *trigger* distinguishes these copies from another process' later copies. *chunk* rows come next.
    """

    change: Change
    trigger: int
    behind: Key | None = None
    done: bool = False
    chunk: int = CHUNK

    def smaller(self) -> Copying:
        """Return the same copying with a smaller chunk."""
        return but(self, chunk=max(self.chunk // 2, SMALLEST))


@contextmanager
def unhurried(whole: Whole) -> Iterator[tuple[Connection, Ranged | None]]:
    """Open a read that locks nothing; raises CopiesLost if a table disappears meanwhile."""
    with whole.database.read() as connection:
        try:
            yield connection, read_ranges(connection, whole)
        except exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _NO_TABLE:
                raise _lost(whole) from error
            raise


def holds_few(
    connection: Connection, ranged: Ranged, ranges: Sequence[DueRange], most: int
) -> bool:
    """Return whether *ranges* together hold at most *most* rows."""
    parts = " UNION ALL ".join(f"SELECT FROM ONLY {ranged.of(one)}" for one in ranges)
    statement = text(f"SELECT count(*) FROM (SELECT FROM ({parts}) AS x LIMIT {most + 1}) AS y")
    return int(connection.execute(statement).scalar_one()) <= most


def replace(whole: Whole, change: Change, most: int = FEW, at_most: str = AT_MOST) -> bool:
    """Make *change* in one transaction; return false if it has more than *most* rows.

    No statement may take longer than *at_most*.

    Raises StorageConflict if other transactions block the change, TooLong if it would block them.
    """
    with _alone(whole, at_most) as (connection, ranged):
        _lock(connection, ranged.whole, "ACCESS EXCLUSIVE")
        _require(whole, connection, change)
        if not holds_few(connection, ranged, change.old, most):
            return False
        connection.execute(text(";\n".join([*makes(ranged, change), *moves(ranged, change)])))
        reach("partitions.replaced")
    return True


def makes(ranged: Ranged, change: Change) -> Iterator[str]:
    """Yield the statements that make *change*; the old partitions are detached and remain."""
    for old in change.old:
        yield f"ALTER TABLE {ranged.whole} DETACH PARTITION {ranged.of(old)}"
    for new in change.new:
        of = f"PARTITION OF {ranged.whole} FOR VALUES {bounds(new)}"
        yield f"CREATE TABLE {ranged.of(new)} {of}"


def moves(ranged: Ranged, change: Change) -> Iterator[str]:
    """Yield the statements that move the rows of the old partitions, and drop them."""
    for old in change.old:
        columns = ranged.columns_of()
        yield f"INSERT INTO {ranged.whole} ({columns}) SELECT {columns} FROM {ranged.of(old)}"
        yield f"DROP TABLE {ranged.of(old)}"


def prepare(whole: Whole, change: Change) -> Copying:
    """Create the tables for copies, and their trigger; continue with existing tables.

    Raises StorageConflict if other transactions block it.
    """
    with _alone(whole) as (connection, ranged):
        _require(whole, connection, change)
        trigger = _trigger(connection, ranged, change)
        if trigger is None or not _are_for(connection, ranged, change):
            connection.execute(text(";\n".join(_preparations(ranged, change))))
            reach("partitions.prepared")
            trigger = _trigger(connection, ranged, change)
        assert trigger is not None, "it was just made"
        return Copying(change, trigger, chunk=CHUNK)


def copy(whole: Whole, copying: Copying) -> Copying:
    """Copy the next chunk.

    No transaction may write to the range meanwhile: if a row changed between reading and copying,
    its old version would come back. Rows are not locked for this, since a cancel takes a locked row
    for a running dispatch.
    """
    with _alone(whole) as (connection, ranged):
        _require(whole, connection, copying.change, copying.trigger)
        [old] = copying.change.old
        _lock(connection, ranged.of(old), "SHARE")
        behind = {} if copying.behind is None else dict(zip("edi", copying.behind, strict=True))
        chunk = {"size": copying.chunk}
        found = connection.execute(_copies_of(ranged, old, bool(behind)), behind | chunk).one()
        reach("partitions.copied")
    if found.endpoint is None:
        return but(copying, done=True)
    return but(copying, behind=(found.endpoint, found.due, found.id))


def verify(whole: Whole, copying: Copying) -> bool:
    """Return whether all rows have copies, by counting both in one snapshot.

    This may take long, but keeps no transaction waiting.
    """
    with _alone(whole, most="0") as (connection, ranged):
        _require(whole, connection, copying.change, copying.trigger)
        [old] = copying.change.old
        for new in copying.change.new:
            if holds_few(connection, ranged, [new], 0):
                continue
            # Until statistics are gathered automatically, plans would be guesses.
            connection.execute(text(f"ANALYZE {ranged.of(new)}"))
            reach("partitions.analyzed")
        difference = text(
            f"SELECT (SELECT count(*) FROM ONLY {ranged.of(old)})"
            f" - (SELECT count(*) FROM {ranged.table(_COPIES)})"
        )
        return int(connection.execute(difference).scalar_one()) == 0


def swap(whole: Whole, copying: Copying) -> None:
    """Replace the originals by their copies."""
    with _alone(whole) as (connection, ranged):
        _lock(connection, ranged.whole, "ACCESS EXCLUSIVE")
        _require(whole, connection, copying.change, copying.trigger)
        connection.execute(text(";\n".join(_swapping(ranged, copying.change))))
        reach("partitions.swapped")


def discard(whole: Whole) -> None:
    """Remove the copies and their trigger; the originals stay."""
    with _alone(whole) as (connection, ranged):
        connection.execute(text(";\n".join(_discarding(ranged))))
        reach("partitions.discarded")


def has_copies(connection: Connection, ranged: Ranged) -> bool:
    """Return whether there are copies that perhaps no process needs any more."""
    there = text("SELECT to_regclass(:name) IS NOT NULL")
    return bool(connection.execute(there, {"name": ranged.table(_COPIES)}).scalar_one())


@contextmanager
def _alone(whole: Whole, most: str = AT_MOST) -> Iterator[tuple[Connection, Ranged]]:
    """Open a transaction with exclusive rights to change partitions; yield their current state."""
    with whole.database.begin() as connection:
        try:
            key = lock_number(f"{whole.timeouts.fullname} partitions")
            mine, *_ = connection.execute(_ALONE, {"key": key, "most": most}).one()
            ranged = read_ranges(connection, whole)
            if ranged is None:
                raise _lost(whole)
            if not mine:
                raise StorageConflict(
                    f"another process changes partitions in {whole.database.describe()}"
                )
            yield connection, ranged
            # Do not time out the commit: an interrupted commit has an unknown outcome.
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        except exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _CANCELED:
                raise TooLong(
                    f"partitions in {whole.database.describe()} were not changed: it would take "
                    f"more than {AT_MOST} with the table locked; it is tried again"
                ) from error
            raise


def _lost(whole: Whole) -> CopiesLost:
    return CopiesLost(
        f"another process has changed partitions in {whole.database.describe()} meanwhile"
    )


def _require(
    whole: Whole, connection: Connection, change: Change, trigger: int | None = None
) -> None:
    """Raise CopiesLost unless both the originals and the copies still exist."""
    ranged = read_ranges(connection, whole)
    if ranged is None or not ranged.known or not set(change.old) <= set(ranged.ranges):
        raise _lost(whole)
    if trigger is not None and _trigger(connection, ranged, change) != trigger:
        raise _lost(whole)


def _lock(connection: Connection, table: str, mode: str) -> None:
    connection.exec_driver_sql(f"LOCK TABLE ONLY {table} IN {mode} MODE")


def _trigger(connection: Connection, ranged: Ranged, change: Change) -> int | None:
    given = {"table": ranged.of(change.old[0]), "name": ranged.name + _MIRROR}
    found: int | None = connection.execute(_TRIGGER, given).scalar_one_or_none()
    return found


def _are_for(connection: Connection, ranged: Ranged, change: Change) -> bool:
    """Return whether the existing copies have the ranges of *change*."""
    names = connection.execute(
        text(
            "SELECT CAST(CAST(inhrelid AS regclass) AS oid) FROM pg_inherits"
            " WHERE inhparent = to_regclass(:copies)"
        ),
        {"copies": ranged.table(_COPIES)},
    ).scalars()
    wanted = [
        connection.execute(
            text("SELECT CAST(to_regclass(:name) AS oid)"), {"name": ranged.of(one)}
        ).scalar_one()
        for one in change.new
    ]
    return sorted(names) == sorted(one for one in wanted if one is not None)


def _discarding(ranged: Ranged) -> Iterator[str]:
    # The range with its trigger first: a writer locks the range, then waits for the copies.
    yield f"DROP FUNCTION IF EXISTS {ranged.table(_MIRROR)}() CASCADE"
    yield f"DROP TABLE IF EXISTS {ranged.table(_COPIES)} CASCADE"


def _preparations(ranged: Ranged, change: Change) -> Iterator[str]:
    [old] = change.old
    copies, mirror = ranged.table(_COPIES), ranged.table(_MIRROR)
    yield from _discarding(ranged)
    yield (f"CREATE TABLE {copies} (LIKE {ranged.whole} INCLUDING ALL) PARTITION BY RANGE (due)")
    for new in change.new:
        yield f"CREATE TABLE {ranged.of(new)} PARTITION OF {copies} FOR VALUES {bounds(new)}"
        # This tells the later ATTACH, without a scan, that all rows are in the range.
        yield f"ALTER TABLE {ranged.of(new)} ADD CONSTRAINT in_range CHECK ({condition(new)})"
    key = "endpoint = {0}.endpoint AND due = {0}.due AND id = {0}.id"
    # With the rights of its creator: other users may write to the whole table, but have no rights
    # on the copies.
    yield f"""
        CREATE FUNCTION {mirror}() RETURNS trigger LANGUAGE plpgsql
        SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $mirror$
        BEGIN
            IF TG_OP <> 'INSERT' THEN
                DELETE FROM {copies} WHERE {key.format("OLD")};
            END IF;
            IF TG_OP <> 'DELETE' THEN
                DELETE FROM {copies} WHERE {key.format("NEW")};
                INSERT INTO {copies} ({ranged.columns_of()}) VALUES ({ranged.columns_of("NEW")});
            END IF;
            RETURN NULL;
        END $mirror$"""
    yield (
        f"CREATE TRIGGER {ranged.quoted(_MIRROR)} AFTER INSERT OR UPDATE OR DELETE"
        f" ON {ranged.of(old)} FOR EACH ROW EXECUTE FUNCTION {mirror}()"
    )


def _copies_of(ranged: Ranged, old: DueRange, goes_on: bool) -> Any:
    columns = ranged.columns_of()
    behind = "WHERE (endpoint, due, id) > (:e, :d, :i)" if goes_on else ""
    order = "ORDER BY endpoint, due, id"
    return text(
        f"WITH chunk AS MATERIALIZED (SELECT {columns} FROM ONLY {ranged.of(old)} {behind} {order}"
        " LIMIT :size),"
        f" copied AS (INSERT INTO {ranged.table(_COPIES)} ({columns}) SELECT {columns} FROM chunk"
        " ON CONFLICT DO NOTHING)"
        " SELECT l.* FROM (SELECT) AS one LEFT JOIN"
        " (SELECT endpoint, due, id FROM chunk ORDER BY endpoint DESC, due DESC, id DESC LIMIT 1)"
        " AS l ON true"
    )


def _swapping(ranged: Ranged, change: Change) -> Iterator[str]:
    [old] = change.old
    yield f"ALTER TABLE {ranged.whole} DETACH PARTITION {ranged.of(old)}"
    for new in change.new:
        part = ranged.of(new)
        yield f"ALTER TABLE {ranged.table(_COPIES)} DETACH PARTITION {part}"
        yield f"ALTER TABLE {ranged.whole} ATTACH PARTITION {part} FOR VALUES {bounds(new)}"
        yield f"ALTER TABLE {part} DROP CONSTRAINT in_range"
    yield f"DROP TABLE {ranged.of(old)}"
    yield from _discarding(ranged)
