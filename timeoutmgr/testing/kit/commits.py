"""Messages that wait for the commit of the user's session."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.expression import RollbackToSavepointClause, SavepointClause

from timeoutmgr.database.commits import after_commit, run_committed
from timeoutmgr.errors import Unsupported
from timeoutmgr.sender.in_transaction import lent, require_endpoint_of

if TYPE_CHECKING:
    from sqlalchemy.orm import SessionTransaction

    from timeoutmgr.sender.in_transaction import CallerSession


def on_commit(session: CallerSession, action: Callable[[], None]) -> None:
    """Call *action* once *session* has committed, and never if it rolls back.

    The session's own commit counts, even inside an outer transaction that a test rolls back later.
    Raises Unsupported for a driver's own connection, and CombinationRefused.
    """
    require_endpoint_of(session, on_loop=False)
    if isinstance(session, scoped_session):
        session = session()
    if not isinstance(session, Session | Connection):
        raise Unsupported(
            f"session= with {session!r:.80} in a testing kit",
            "the kit follows the commits of SQLAlchemy, and not of a driver",
            "Give a session or a connection of SQLAlchemy",
        )
    connection = lent(session)
    if isinstance(session, Connection):
        _on_commit_of(connection, action)
        return
    waiting = session.info.get(_KEY)
    if waiting is None:
        waiting = session.info[_KEY] = _WaitingActions()
        event.listen(session, "after_commit", waiting.committed)
        event.listen(session, "after_soft_rollback", waiting.rolled_back)
    waiting.actions.append((session.get_nested_transaction() or session.get_transaction(), action))


def _on_commit_of(connection: Connection, action: Callable[[], None]) -> None:
    if not connection.in_transaction():
        connection.begin()
    savepoints = _SAVEPOINTS.get(connection)
    if savepoints is None:
        savepoints = _SAVEPOINTS[connection] = _Savepoints()
        event.listen(connection, "after_execute", savepoints.executed)
    savepoints.calls.append(call := [action])
    after_commit(connection, partial(_run, call))


def _run(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


class _Savepoints:
    """The calls that wait on one connection: a rollback to a savepoint drops those since."""

    def __init__(self) -> None:
        self.calls: list[list[Callable[[], None]]] = []
        self._number: dict[str, int] = {}

    def executed(self, _connection: Connection, statement: object, *_rest: object) -> None:
        # The events of savepoints do not name a savepoint that begins.
        if isinstance(statement, SavepointClause):
            self._number[statement.ident] = len(self.calls)
        elif isinstance(statement, RollbackToSavepointClause):
            before = self._number.get(statement.ident, 0)  # begun before the first call, perhaps
            for call in self.calls[before:]:
                call.clear()
            del self.calls[before:]


_SAVEPOINTS: Final[WeakKeyDictionary[Connection, _Savepoints]] = WeakKeyDictionary()


def act_on_commits() -> None:
    """Do what waits for a commit that a connection has made since, although it stays open."""
    for found in _SAVEPOINTS.keyrefs():  # a list, to which other threads add nothing meanwhile
        connection = found()
        if connection is not None and not connection.closed and not connection.invalidated:
            run_committed(connection)


_KEY = "timeoutmgr_kit"


class _WaitingActions:
    """The actions that wait for one session, each with its transaction."""

    def __init__(self) -> None:
        self.actions: list[tuple[SessionTransaction | None, Callable[[], None]]] = []

    def committed(self, session: Session) -> None:
        if session.in_nested_transaction():
            return  # a savepoint is released; the transaction around it may still roll back
        actions, self.actions = self.actions, []
        committed = session.get_transaction()
        for owner, action in actions:
            if _is_inside(owner, committed):  # not in a transaction that a close has ended
                action()

    def rolled_back(self, _session: Session, ended: SessionTransaction) -> None:
        self.actions = [
            (owner, action) for owner, action in self.actions if not _is_inside(owner, ended)
        ]


def _is_inside(owner: SessionTransaction | None, ended: SessionTransaction | None) -> bool:
    walked: Any = owner
    while walked is not None:
        if walked is ended:
            return True
        walked = walked.parent
    return False
