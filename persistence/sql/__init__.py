"""Timeouts in SQLite, PostgreSQL, MySQL or MariaDB."""

from .context import SqlSettings
from .persistence import SqlPersistence
from .store import SqlTimeoutStore

__all__ = ["SqlPersistence", "SqlSettings", "SqlTimeoutStore"]
