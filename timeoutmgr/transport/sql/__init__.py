"""Our own queue: tables in SQLite, PostgreSQL, MySQL or MariaDB."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeoutmgr.transport.sql.settings import SqlQueueSettings
    from timeoutmgr.transport.sql.transport import SqlTransport

__all__ = ["SqlQueueSettings", "SqlTransport"]


def __getattr__(name: str) -> Any:
    # On demand: who registers the transport with kombu need not load the whole of it.
    if name == "SqlTransport":
        from timeoutmgr.transport.sql.transport import SqlTransport

        return SqlTransport
    if name == "SqlQueueSettings":
        from timeoutmgr.transport.sql.settings import SqlQueueSettings

        return SqlQueueSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
