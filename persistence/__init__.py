"""Storage of timeouts: in an SQL database, or in memory for tests."""

from .delayed import SqlDelayedMessageStore
from .memory import MemoryPersistence
from .memory_store import MemoryTimeoutStore
from .sql import SqlPersistence, SqlSettings, SqlTimeoutStore

__all__ = [
    "MemoryPersistence",
    "MemoryTimeoutStore",
    "SqlDelayedMessageStore",
    "SqlPersistence",
    "SqlSettings",
    "SqlTimeoutStore",
]
