"""Timeouts in SQLite, PostgreSQL, MySQL or MariaDB."""

from .persistence import SqlPersistence
from .settings import SqlSettings
from .store import SqlTimeoutStore

__all__ = ["SqlPersistence", "SqlSettings", "SqlTimeoutStore"]
