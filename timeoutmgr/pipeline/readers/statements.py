"""The SELECT that reads a view, or a part of it; the same for every database and driver."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    Table,
    any_,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.engine import Dialect

from timeoutmgr.database.row_moves import BulkTables
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.load import load_of
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import Selection


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a table that one task reads; by default the whole table.

    On PostgreSQL a part is the blocks from *first* to before *end* (None: the last) of *relation*,
    one partition of the table: a range of blocks needs neither index nor statistics. With
    *is_window* a part is the events of the history from the instant *first* to before *end*, which
    an index finds without reading other events.
    """

    relation: str | None = None
    first: int = 0
    end: int | None = None
    is_window: bool = False


WHOLE = Part()


def statement(
    tables: BulkTables, view: str, columns: pa.Schema, which: Selection, part: Part = WHOLE
) -> Select[Any]:
    """Return the statement that reads *columns* of *view*, in their order."""
    if view == "load":
        return _load(tables.timeouts, columns, which)
    table = {"pending": tables.timeouts, "keys": tables.keys}.get(view, tables.history)
    if part.relation is not None:
        table = table.to_metadata(MetaData(), name=part.relation)
    wanted = select(*(_column(table, view, field.name) for field in columns))
    within = _window(table, which, part) if part.is_window else _blocks(part)
    return wanted.where(*_matching(table, view, which), *within)


def as_text(statement: Select[Any], dialect: Dialect) -> str:
    """Return *statement* as text including its values, for drivers without SQLAlchemy."""
    return str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _blocks(part: Part) -> list[ColumnElement[bool]]:
    if part.relation is None:
        return []
    found: list[ColumnElement[bool]] = [literal_column(f"ctid >= CAST('({part.first},0)' AS tid)")]
    if part.end is not None:
        found.append(literal_column(f"ctid < CAST('({part.end},0)' AS tid)"))
    return found


def _window(table: Table, which: Selection, part: Part) -> list[ColumnElement[bool]]:
    found = [table.c.at >= part.first]
    found += [table.c.at < part.end] if part.end is not None else []
    if which.endpoint is None:
        # The index begins with the endpoint. Look up each endpoint after the previous one, in the
        # reading transaction itself: then no endpoint of an event that it sees is missing.
        first = select(func.min(table.c.endpoint).label("endpoint")).cte("names", recursive=True)
        behind = select(func.min(table.c.endpoint)).where(table.c.endpoint > first.c.endpoint)
        names = first.union_all(
            select(behind.scalar_subquery()).where(first.c.endpoint.is_not(None))
        )
        every = func.array(select(names.c.endpoint).scalar_subquery())
        found.append(table.c.endpoint == any_(every))
    return found


def _matching(table: Table, view: str, which: Selection) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if which.endpoint is not None:
        found.append(table.c.endpoint == which.endpoint)
    if which.destination is not None and view != "keys":
        found.append(table.c.destination == which.destination)
    if which.saga_id is not None and view == "pending":
        found.append(table.c.saga_id == which.saga_id)
    if which.open_since is not None and view == "keys":
        closed = table.c.closed_at
        found.append(closed.is_(None) | (closed >= which.open_since))
    is_history = view == "history"
    instant: ColumnElement[Any] = table.c.at if is_history else table.c.due
    if view == "pending":
        # Also restrict the key's due time, which is never earlier, to select partitions.
        found += [instant >= which.due_from] if which.due_from is not None else []
        instant = _due_of_pending(table)
    begin = which.at_from if is_history else which.due_from
    end = which.at_before if is_history else which.due_before
    found += [instant >= begin] if begin is not None else []
    found += [instant < end] if end is not None else []
    if which.xid_from is not None:
        found.append(literal_column(f"xid >= CAST('{which.xid_from:d}' AS xid8)"))
    return found


def _column(table: Table, view: str, name: str) -> ColumnElement[Any]:
    if (view, name) == ("pending", "due"):
        return _due_of_pending(table).label("due")
    if name == "xid":  # of PostgreSQL alone; its type has no Arrow type
        return literal_column("CAST(CAST(xid AS text) AS bigint)", BigInteger).label("xid")
    return table.c[name]


def _due_of_pending(table: Table) -> ColumnElement[Any]:
    """Return the original due time of a timeout; its row has the time of the next attempt."""
    return func.coalesce(table.c.original_due, table.c.due)


def _load(table: Table, columns: pa.Schema, which: Selection) -> Select[Any]:
    grouped, known = load_of(table, which.bucket)
    wanted = grouped.with_only_columns(*(known[field.name] for field in columns))
    return wanted.where(*_matching(table, "load", which))


PARTITIONS: Final = 8
"""Number of tasks that read a table: more would wait for the database's disk and processors."""

_EVENTS: Final = 200_000
"""Maximum events of a window that is not cut: reading them is faster than another task."""
_FEW: Final = 10
"""The index is used for at most one in this number of all events."""

# The table itself if it is not partitioned, otherwise its partitions.
_LEAVES: Final = text(
    """
    SELECT c.relname,
        greatest(pg_relation_size(c.oid) / CAST(current_setting('block_size') AS bigint), 1)
    FROM pg_class c
    WHERE c.relkind = 'r' AND (c.oid = CAST(:name AS regclass) OR c.oid IN (
        SELECT relid FROM pg_partition_tree(CAST(:name AS regclass)) WHERE isleaf))
    ORDER BY 1
    """
)


def parts_of(
    store: Store, view: str, count: int, which: Selection, now: Micros | None = None
) -> list[Part]:
    """Return about *count* parts of *view* of similar size; a single part if it is not cut.

    If *which* selects few of the history's events, the parts are windows of time; if *now* is
    given, the last window begins shortly before it.
    """
    begin = which.at_from if view == "history" else None
    if not store.is_postgresql or view == "load" or (count <= 1 and begin is None):
        return [WHOLE]
    tables = store.tables
    with store.database.read() as connection:
        if begin is not None:
            few = _few_events(connection, tables.history, which)
            if few is not None:
                return windows(begin, which.at_before or now, min(count, few // _EVENTS))
            if count <= 1:
                return [WHOLE]
        table = {"pending": tables.timeouts, "keys": tables.keys}.get(view, tables.history)
        name = connection.dialect.identifier_preparer.format_table(table)
        found = connection.execute(_LEAVES, {"name": name})
        return cut([(row[0], int(row[1])) for row in found], count)


def _few_events(connection: Connection, table: Table, which: Selection) -> int | None:
    """Return PostgreSQL's estimate of how many events *which* selects; None if they are not few.

    For many events, each window would read the whole table.
    """
    every = select(table.c.at)
    some = every.where(*_matching(table, "history", which))
    wanted, of = (_estimated(connection, one) for one in (some, every))
    return wanted if wanted * _FEW <= of else None


def _estimated(connection: Connection, wanted: Select[Any]) -> int:
    # Use the driver directly: in SQLAlchemy's text a colon in a name would begin a parameter.
    explain = "EXPLAIN (FORMAT JSON) " + as_text(wanted, connection.dialect)
    return int(connection.exec_driver_sql(explain).scalar_one()[0]["Plan"]["Plan Rows"])


def windows(begin: Micros, end: Micros | None, count: int) -> list[Part]:
    """Return *count* windows from *begin* on, of equal length up to *end*; at least one window.

    Every event from *begin* on is in a window: the last window is open.
    """
    count = max(count, 1) if end is not None and end > begin else 1
    starts = [begin + ((end or begin) - begin) * number // count for number in range(count)]
    ends: list[Micros | None] = [*starts[1:], None]
    return [Part(None, *window, True) for window in zip(starts, ends, strict=True)]


def cut(sizes: Sequence[tuple[str, int]], count: int) -> list[Part]:
    """Return parts of tables whose *sizes* in blocks are given, about *count* in all.

    Each table has a part, and the last part of each table is open: rows that are added at its end
    meanwhile are not missed.
    """
    each = max(1, -(-sum(blocks for _name, blocks in sizes) // count))
    found = []
    for name, blocks in sizes:
        starts = list(range(0, blocks, each))
        ends: list[int | None] = [*starts[1:], None]
        found += [Part(name, first, end) for first, end in zip(starts, ends, strict=True)]
    return found


def number_option(options: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    """Return the option *name*; raise ConfigurationError unless it is a number from *least*."""
    given = options.get(name, str(default))
    if not given.isdecimal() or int(given) < least:
        raise ConfigurationError(f"option {name!r} is a whole number from {least}, got {given!r}")
    return int(given)


def as_option(parts: Sequence[Part]) -> str:
    """Return *parts* as the text of an option."""
    return json.dumps([astuple(part) for part in parts])


def from_option(text: str) -> list[Part]:
    """Return the parts that :func:`as_option` wrote."""
    return [Part(*fields) for fields in json.loads(text)]
