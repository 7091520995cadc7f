"""A SQL database as queues and stores share it: one engine, one clock, one owner's life."""

from timeoutmgr.database.engine import Database, DatabaseSettings, as_connection, as_database
from timeoutmgr.database.places import one_connection_serves, same_database
from timeoutmgr.database.texts import checked_identifier

__all__ = [
    "Database",
    "DatabaseSettings",
    "as_connection",
    "as_database",
    "checked_identifier",
    "one_connection_serves",
    "same_database",
]
