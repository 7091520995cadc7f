"""Take a session lock away from its owner, as a server or an administrator can."""

from __future__ import annotations

from sqlalchemy import text

from timeoutmgr.database import Database
from timeoutmgr.database.session_locks import SESSION_LOCKS, lock_name

_HOLDER = {
    "postgresql": "SELECT pid FROM pg_locks WHERE locktype = 'advisory' "
    "AND ((classid::bigint << 32) | objid::bigint) = :name",
    "mysql": "SELECT IS_USED_LOCK(:name)",
}
_END = {"postgresql": "SELECT pg_terminate_backend(:session)", "mysql": "KILL :session"}


def end_session_of(database: Database, owner: str) -> None:
    """End the session that holds the lock of *owner*; returns when the lock is free."""
    kind = database.dialect.name
    lock = {"name": lock_name(kind, owner)}
    with database.begin() as connection:
        session = connection.execute(text(_HOLDER[kind]), lock).scalar_one()
        connection.execute(text(_END[kind]), {"session": session})
        held = text(f"SELECT {SESSION_LOCKS[kind].is_held}")
        while connection.execute(held, lock).scalar():
            pass
