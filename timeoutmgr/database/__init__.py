"""A SQL database as queues and stores share it: one engine, one clock, one owner's life."""

from timeoutmgr.database.engine import Database, DatabaseSettings
from timeoutmgr.database.identifiers import checked_identifier
from timeoutmgr.database.places import one_connection_serves, same_database

__all__ = [
    "Database",
    "DatabaseSettings",
    "checked_identifier",
    "one_connection_serves",
    "same_database",
]
