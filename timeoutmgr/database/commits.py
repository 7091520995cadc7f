"""Calls after the commit of a caller's transaction, and commits that do not wait for the disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, ExceptionContext, Function, Select, event, func

_KEY: Final = "timeoutmgr_after_commit"
_FOLLOW: Final = "timeoutmgr_follow"


@dataclass(slots=True)
class AfterCommitCalls:
    """The calls that wait for the commit on a database connection."""

    open: list[Callable[[], None]] = field(default_factory=list)
    committed: list[Callable[[], None]] = field(default_factory=list)


def follow_by(
    connection: Connection, register: Callable[[Callable[[], None]], object] | None
) -> None:
    """Pass calls after a commit of *connection* to *register*; None if commits cannot be observed.

    For a connection whose caller commits on the driver, without SQLAlchemy.
    """
    connection.info[_FOLLOW] = register


def after_commit(connection: Connection, call: Callable[[], None]) -> bool:
    """Run *call* after the open transaction of *connection* has committed.

    Never run it if the transaction rolls back, or if the commit fails or has no answer. Return
    False, and drop the call, if commits of *connection* cannot be observed.

    SQLAlchemy announces a commit just before it happens. The call therefore runs when the
    connection returns to its pool or begins again, which happens next in a ``with`` block. *call*
    must be quick and must not raise.
    """
    if _FOLLOW in connection.info:
        register = connection.info[_FOLLOW]
        if register is not None:
            register(call)
        return register is not None
    pending = connection.info.get(_KEY)
    if pending is None:
        pending = connection.info[_KEY] = AfterCommitCalls()
        event.listen(connection, "commit", _on_commit)
        event.listen(connection, "rollback", _on_rollback)
        event.listen(connection, "begin", run_committed)
        # Not event.contains: it compares addresses of pools, and may find a deleted pool's.
        pool, dialect = connection.engine.pool, connection.dialect
        if _on_checkin not in list(pool.dispatch.checkin):
            event.listen(pool, "checkin", _on_checkin)
        if _on_error not in list(dialect.dispatch.handle_error):
            event.listen(dialect, "handle_error", _on_error)
    pending.open.append(call)
    return True


def _on_commit(connection: Connection) -> None:
    pending: AfterCommitCalls | None = connection.info.get(_KEY)
    if pending is not None:
        pending.committed += pending.open
        pending.open = []


def _on_rollback(connection: Connection) -> None:
    # If the server is gone, there is no driver connection with an info.
    pending = None if connection.invalidated else connection.info.get(_KEY)
    if pending is not None:
        pending.open = []


def _on_error(context: ExceptionContext) -> None:
    # Between a commit and the next transaction, the failed statement is the commit.
    connection = context.connection
    if connection is not None and not connection.closed and not connection.invalidated:
        pending: AfterCommitCalls | None = connection.info.get(_KEY)
        if pending is not None:
            pending.committed = []


def run_committed(connection: Connection) -> None:
    """Run the calls of a commit that *connection* has made, without waiting for the next begin."""
    _run(connection.info)


def _on_checkin(driver: Any, record: Any) -> None:
    if driver is not None:  # otherwise it was lost, perhaps during the commit
        _run(record.info)
    record.info.pop(_KEY, None)


def _run(info: dict[Any, Any]) -> None:
    pending: AfterCommitCalls | None = info.get(_KEY)
    if pending is None:
        return
    calls, pending.committed = pending.committed, []
    for call in calls:
        call()


# --- lazy commits, which do not wait for PostgreSQL's disk --------------------------------------
# A crash of the server shortly afterwards may undo the transaction and each later transaction, but
# no earlier transaction: the database is as it was a moment before. So a transaction that only
# moves a message inside the database may commit lazily. The next durable commit, such as of a
# handler, writes every transaction before it to the disk.

LAZILY: Final = {"synchronous_commit": "off"}


def commit_lazily(connection: Connection) -> None:
    """Make the open transaction commit lazily."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit = off")


def committed_lazily(statement: Select[Any]) -> Select[Any]:
    """Return *statement* for PostgreSQL, made to commit lazily if it finds a row.

    The setting is repeated for each row, which costs nothing.
    """
    [set_lazily] = set_locally(LAZILY)
    return statement.where(set_lazily == LAZILY["synchronous_commit"])


def set_locally(settings: Mapping[str, str]) -> list[Function[Any]]:
    """Return the calls that give PostgreSQL *settings* until the end of the transaction."""
    return [func.set_config(name, value, True) for name, value in settings.items()]
