"""A SQL database that queues and stores share: its engine, its clock and its session locks."""

from timeoutmgr.database.engine import Database as Database
from timeoutmgr.database.engine import DatabaseSettings as DatabaseSettings
from timeoutmgr.database.engine import as_connection as as_connection
from timeoutmgr.database.engine import as_database as as_database
from timeoutmgr.database.places import one_connection_serves as one_connection_serves
from timeoutmgr.database.places import same_database as same_database
from timeoutmgr.database.texts import checked_identifier as checked_identifier
