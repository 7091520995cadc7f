"""Who may touch what, and in which order.

A dispatcher locks *rows* of ``timeouts`` with ``FOR UPDATE SKIP LOCKED``: a row in other hands is
passed by, not waited for, so that many dispatchers run side by side. It holds them over the
publish and locks their *keys* (``timeout_keys``) only to close. Whoever else changes a timeout
(cancel, reschedule) locks its key first, waiting, and then its row without waiting. So nobody
ever waits for a row, and there is no circle to wait in. (MySQL's SKIP LOCKED does wait, for a
moment. There a change takes the endpoint's lock, then its row, then its key, like a dispatcher.)
SQLite has no row locks: its one writer is the lock, and SQLAlchemy leaves these clauses out there.

Claims of one endpoint are made one at a time, under the endpoint's lock.
"""

import hashlib

from sqlalchemy import Connection, select, text

from .context import StoreContext
from .inserting import insert_missing


def lock_endpoint(connection: Connection, context: StoreContext) -> None:
    """Wait for the endpoint's lock and hold it until the transaction ends."""
    dialect = context.database.dialect.name
    if dialect == "postgresql":
        name = f"{context.tables.claims.fullname} {context.endpoint}"
        digest = hashlib.sha256(name.encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
    elif dialect in {"mysql", "mariadb"}:
        endpoints = context.tables.endpoints
        row = select(endpoints.c.endpoint).where(endpoints.c.endpoint == context.endpoint)
        if connection.execute(row.with_for_update()).first() is None:
            insert_missing(connection, endpoints, [{"endpoint": context.endpoint}])
            connection.execute(row.with_for_update())
