"""Messages that wait for the commit of a session of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, scoped_session

from timeoutmgr.database.commits import after_commit
from timeoutmgr.errors import Unsupported

if TYPE_CHECKING:
    from sqlalchemy.orm import SessionTransaction

    from timeoutmgr.sender.in_transaction import CallerSession


def on_commit(session: CallerSession, action: Callable[[], None]) -> None:
    """Call *action* once *session* has committed, and never if it rolls back.

    A session counts by itself: many tests keep it inside a transaction that they roll back. Raises
    Unsupported for a driver's own connection.
    """
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, Connection):
        after_commit(session, action)
        return
    if not isinstance(session, Session):
        raise Unsupported(
            f"session= with {session!r:.80} in a testing kit",
            "the kit cannot follow the commit of a driver's own connection",
            "Give a session or a connection of SQLAlchemy",
        )
    waiting = session.info.get(_KEY)
    if waiting is None:
        waiting = session.info[_KEY] = _WaitingActions()
        event.listen(session, "after_commit", waiting.committed)
        event.listen(session, "after_soft_rollback", waiting.rolled_back)
    session.connection()  # begins the transaction
    waiting.actions.append((session.get_nested_transaction() or session.get_transaction(), action))


_KEY = "timeoutmgr_kit"


class _WaitingActions:
    """The actions that wait on one session, each with the transaction that it belongs to."""

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
