"""Timeouts that leave a SQL store for another place, or arrive in one; and the ledger of that."""

from .arriving import SqlTarget
from .leaving import SqlSource
from .ledger import SqlLedger

__all__ = ["SqlLedger", "SqlSource", "SqlTarget"]
