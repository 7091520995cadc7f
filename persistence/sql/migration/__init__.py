"""Source, target and ledger of migrations in a SQL store."""

from .ledger import SqlMigrationLedger
from .source import SqlSource
from .target import SqlTarget

__all__ = ["SqlMigrationLedger", "SqlSource", "SqlTarget"]
