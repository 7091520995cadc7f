"""How each server spells a session lock: take it, release it, and ask whether it is ours.

The server lets go of a session lock when its session ends. Behind a pooler that shares one session
between clients the lock stays with the session, and the client that took it goes on in another.
"""

import hashlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

SESSION_LOCK_PREFIX: Final = "timeoutmgr-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLockSql:
    """The expressions of a server, with the lock's name as the parameter ``name``.

    *is_ours* asks the server, by the lock's name and by the session that runs the statement.
    """

    take: str
    release: str
    session: str
    is_ours: str
    is_held: str


_POSTGRESQL_LOCK: Final = (
    "EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND ((classid::bigint << 32) | objid::bigint) = :name"
)
_POSTGRESQL: Final = SessionLockSql(
    take="pg_try_advisory_lock(:name)",
    release="pg_advisory_unlock(:name)",
    session="pg_backend_pid()",
    is_ours=f"{_POSTGRESQL_LOCK} AND pid = pg_backend_pid())",
    is_held=f"{_POSTGRESQL_LOCK})",
)
_MYSQL: Final = SessionLockSql(
    take="GET_LOCK(:name, 0)",
    release="RELEASE_LOCK(:name)",
    session="CONNECTION_ID()",
    is_ours="IS_USED_LOCK(:name) = CONNECTION_ID()",
    is_held="IS_USED_LOCK(:name) IS NOT NULL",
)
SESSION_LOCKS: Final = MappingProxyType(
    {"postgresql": _POSTGRESQL, "mysql": _MYSQL, "mariadb": _MYSQL}
)
"""By the name of the dialect; SQLite has none."""


def lock_name(dialect: str, owner: str) -> int | str:
    """Return the lock of *owner* as the server of *dialect* names it."""
    return lock_number(owner) if dialect == "postgresql" else lock_text(owner)


def lock_number(owner: str) -> int:
    """Return the number of the lock of *owner* on PostgreSQL."""
    digest = hashlib.sha256(owner.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def lock_text(owner: str) -> str:
    """Return the name of the lock of *owner* on MySQL, and of its file beside SQLite."""
    return SESSION_LOCK_PREFIX + hashlib.sha256(owner.encode()).hexdigest()[:40]
