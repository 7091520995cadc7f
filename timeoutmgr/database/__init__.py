"""A SQL database as queues and stores share it: one engine, one clock, one owner's life."""

from timeoutmgr.database.engine import Database, DatabaseSettings, same_database
from timeoutmgr.database.identifiers import checked_identifier

__all__ = ["Database", "DatabaseSettings", "checked_identifier", "same_database"]
