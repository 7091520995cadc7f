"""Transactions of a store in PostgreSQL: which have ended, and the events of a range of them.

Sequences follow the order of writes, not of commits: a row with a lower sequence may be committed
after a row with a higher sequence was read, and a reader that continues from the highest sequence
would never see it. So the offset is the id of the oldest open transaction. Below it no event can
appear any more; a long transaction delays events, but loses none.

Transaction ids are valid only within one timeline of one database system. A clone has another
system. A server that was restored to a point in time, or that took over from another server, has
another timeline, and may use ids a second time.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, func, select, text
from sqlalchemy.sql.elements import literal_column

from timeoutmgr.database.deadlines import be_patient
from timeoutmgr.database.session_locks import lock_number
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.stores import Store

# The control file shows a new timeline with a delay, but a standby has no other source for it.
_OLDEST_TRANSACTION: Final = text(
    "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint), "
    "(SELECT system_identifier FROM pg_control_system()), "
    "CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint()) ELSE "
    "CAST(CAST('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS bit(32)) AS int) END"
)


class OldestTransaction(NamedTuple):
    """The id of the oldest open transaction, with the database system and the timeline."""

    xid: int
    system: int
    timeline: int

    def is_counted_as(self, position: Mapping[str, int]) -> bool:
        """Whether transaction ids in *position* belong to the same system and timeline."""
        return (position.get("system"), position.get("timeline")) == (self.system, self.timeline)


def require_same(start: Mapping[str, int], now: OldestTransaction, *, any_timeline: bool) -> None:
    """Raise RunConflict if the position *start* is not valid on the server of *now*.

    An empty position, of a table without events, is valid on every server.
    """
    anew, start = "begin anew in another place", {**now._asdict(), **start}
    if now.system != start["system"]:
        raise RunConflict(
            f"the position is of database system {start['system']}, this is {now.system}; a "
            f"cloned database counts its transactions anew: {anew}"
        )
    if now.timeline != start["timeline"] and not any_timeline:
        raise RunConflict(
            f"the position is of timeline {start['timeline']}, this is {now.timeline}: the server "
            "was restored, or took over from another server, and may reuse ids of transactions "
            f"that were read already; {anew}, or, where no transaction was lost (synchronous "
            "replication), go on with --any-timeline"
        )
    if now.xid < start["xid"]:
        raise RunConflict(
            f"the position is at transaction {start['xid']}, and this database only at "
            f"{now.xid}: it was restored to an earlier time; {anew}"
        )


def oldest_transaction(store: Store) -> OldestTransaction:
    """Return the oldest open transaction: before it, no event can appear any more.

    Raises CombinationRefused if the database cannot tell.
    """
    if not store.is_postgresql:
        raise CombinationRefused(
            f"following {store.database.dialect.name}",
            "it does not tell which transactions are still open, so that late commits "
            "would be missed for ever",
            "Use `pipeline archive` there, which reads everything once it is old.",
        )
    store.require_tables()
    with store.database.read() as connection:
        return oldest_within(connection)


def oldest_within(connection: Connection) -> OldestTransaction:
    """Return the oldest open transaction as the transaction of *connection* sees it."""
    return OldestTransaction(*map(int, connection.execute(_OLDEST_TRANSACTION).one()))


def index_transactions(
    store: Store,
    *,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda _text: None,
) -> bool:
    """Create the index that finds events of a range of transactions; return false if *stopped*.

    The build takes time for a long history, and waits for open transactions; events are written
    meanwhile. An index whose build was interrupted is built anew: PostgreSQL maintains such an
    index, but never uses it. Only one of several processes builds; the others wait.

    Raises StorageUnavailable.
    """
    history = store.tables.history
    with store.database.connect_apart() as held:
        connection = held.execution_options(isolation_level="AUTOCOMMIT")
        if _next_step(connection, history) is None:
            return True
        connection.execute(_UNHURRIED)
        be_patient(connection)
        if not _has_build_lock(connection, history, stopped, progress):
            return False
        while (step := _next_step(connection, history)) is not None:
            statement, text_ = step
            progress(text_)
            if not _is_done(connection, statement, stopped):
                return False
        return True


_POLL_EVERY: Final = 0.5
"""Seconds between two checks of whether to stop a wait."""

# The cast to name cuts a long name exactly as the server does.
_INDEX: Final = text(
    "SELECT CAST(CAST(i.indexrelid AS regclass) AS text) AS name, i.indisvalid AS is_valid "
    "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "WHERE i.indrelid = to_regclass(:table) AND c.relname = CAST(:name AS name)"
)
# Only settings that this version of the server knows.
_UNHURRIED: Final = text(
    "SELECT set_config(name, '0', false) FROM pg_settings "
    "WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout')"
)


def _next_step(connection: Connection, history: Table) -> tuple[str, str] | None:
    """Return the next statement, with a text for people; None if the index exists.

    These statements cannot run in a transaction.
    """
    quoted = connection.dialect.identifier_preparer
    table, name = quoted.format_table(history), f"{history.name}_xid"
    found = connection.execute(_INDEX, {"table": table, "name": name}).one_or_none()
    if found is None:
        return (
            f"CREATE INDEX CONCURRENTLY {quoted.quote(name)} ON {table} (xid)",
            "building the index on transactions: it takes long where the history is long, and "
            "waits for transactions that are open",
        )
    if not found.is_valid:
        return (
            f"DROP INDEX CONCURRENTLY {found.name}",
            "removing what is left of an index on transactions whose build was cut off",
        )
    return None


def _has_build_lock(
    connection: Connection,
    history: Table,
    stopped: Callable[[], bool],
    progress: Callable[[str], None],
) -> bool:
    """Wait until no other process builds the index; return false if *stopped* before.

    An unfinished index looks like an index whose build was interrupted, and two builds of one table
    would wait for each other. Poll for the lock: a statement that waits for it would be another
    transaction for whose end the build waits.
    """
    lock = select(func.pg_try_advisory_lock(lock_number(f"timeoutmgr index {history.fullname}")))
    if connection.execute(lock).scalar_one():
        return True
    progress("waiting for another process, which builds the index on transactions")
    while not stopped():
        time.sleep(_POLL_EVERY)
        if connection.execute(lock).scalar_one():
            return True
    return False


def _is_done(connection: Connection, statement: str, stopped: Callable[[], bool]) -> bool:
    """Execute *statement*, however long it takes; once *stopped*, cancel it and return false."""
    driver: Any = connection.connection.driver_connection
    with ThreadPoolExecutor(1) as aside:
        running = aside.submit(connection.exec_driver_sql, statement)
        try:
            while not wait([running], _POLL_EVERY).done:
                if stopped():
                    return False
            running.result()
            return True
        finally:
            if not running.done():
                driver.cancel_safe()  # otherwise the server goes on, and this thread waits for it


def between(begin: int, end: int) -> list[ColumnElement[bool]]:
    """Return the conditions for events of transactions from *begin* to before *end*."""
    return [
        literal_column(f"xid >= CAST('{begin:d}' AS xid8)"),
        literal_column(f"xid < CAST('{end:d}' AS xid8)"),
    ]


def end_of_batch(store: Store, begin: int, end: int, most: int) -> int:
    """Return the end of about *most* events from *begin* on; whole transactions only.

    A batch has at least all events of the first transaction with events, however many: a batch
    without events would be repeated forever.
    """
    history = store.database.engine.dialect.identifier_preparer.format_table(store.tables.history)
    ordered = (
        f"SELECT CAST(CAST(xid AS text) AS bigint) FROM {history} "
        f"WHERE xid >= CAST('{begin:d}' AS xid8) AND xid < CAST('{end:d}' AS xid8) ORDER BY xid"
    )
    bounds = text(f"SELECT ({ordered} LIMIT 1), ({ordered} OFFSET {most:d} LIMIT 1)")
    with store.database.read() as connection:
        first, behind = connection.execute(bounds).one()
    return end if behind is None else max(behind, first + 1)
