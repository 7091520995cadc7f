"""Delayed messages in SQLite, PostgreSQL, MySQL or MariaDB: one table for each endpoint."""

from .store import SqlDelayedMessageStore

__all__ = ["SqlDelayedMessageStore"]
