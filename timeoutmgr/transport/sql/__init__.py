"""Our own queue, also for kombu and Celery: tables in SQLite, PostgreSQL, MySQL or MariaDB."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from timeoutmgr.transport.sql.settings import SqlQueueSettings
    from timeoutmgr.transport.sql.transport import SqlTransport

__all__ = ["SqlQueueSettings", "SqlTransport", "register"]

ALIAS: Final = "timeoutmgr"
_CLASS: Final = "timeoutmgr.transport.sql.kombu_transport:KombuSqlTransport"


def register() -> bool:
    """Make ``kombu.Connection("timeoutmgr+sqlite:///…")`` work; return False without kombu.

    Twice is fine. Imports no database.
    """
    try:
        from kombu.transport import TRANSPORT_ALIASES
    except ImportError:
        return False
    TRANSPORT_ALIASES[ALIAS] = _CLASS
    return True


def __getattr__(name: str) -> Any:
    # Imported on demand: registering with kombu need not load the whole transport.
    if name == "SqlTransport":
        from timeoutmgr.transport.sql.transport import SqlTransport

        return SqlTransport
    if name == "SqlQueueSettings":
        from timeoutmgr.transport.sql.settings import SqlQueueSettings

        return SqlQueueSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
