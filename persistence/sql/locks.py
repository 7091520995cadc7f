"""The order in which transactions lock keys and rows.

A dispatcher locks *rows* of ``timeouts`` with ``FOR UPDATE SKIP LOCKED``: a row in other hands is
passed by, not waited for, so that many dispatchers run side by side. It holds them over the
publish and locks their *keys* (``timeout_keys``) only to close. A change of a timeout (cancel,
reschedule) locks its key first, waiting, and then its row without waiting. So no transaction ever
waits for a row, and there is no circle to wait in. (MySQL's SKIP LOCKED does wait, for a moment.
There a change takes the endpoint's lock, then its row, then its key, like a dispatcher.) SQLite has
no row locks: its one writer is the lock, and SQLAlchemy leaves these clauses out there.

Claims of one endpoint are made in turn, under the endpoint's lock.
"""

import hashlib
from typing import Final

from sqlalchemy import BigInteger, Connection, bindparam, func, select, text
from sqlalchemy.dialects import mysql

from timeoutmgr.message.instants import Micros

from .context import StoreContext

PATIENCE: Final = "5s"
"""How long a claim may be without any sign of its process, while all other claims wait for it."""

BY_KEY: Final = {"enable_sort": "off", "plan_cache_mode": "force_generic_plan"}
"""Settings that have PostgreSQL read in the order of the key.

Until a table has statistics the planner takes an endpoint's rows for a few, and would read and
sort them all for the first hundred. And to plan over dozens of partitions takes longer than to
read by a plan that leaves most of them out when it runs.
"""

_ADVISORY_LOCK: Final = text("SELECT pg_advisory_xact_lock(:key)")


class ClaimLock:
    """The endpoint's lock, as a claim takes it."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        # PostgreSQL prepares a claim by a single statement, since a claim is nothing but round
        # trips: it locks, reads from now on in the order of the key, and lets go of the lock for a
        # process that is stopped while it holds it, as all other claims wait for it.
        self._at_once = select(
            func.pg_advisory_xact_lock(bindparam("key", type_=BigInteger)),
            *(func.set_config(name, value, True) for name, value in BY_KEY.items()),
            func.set_config("idle_in_transaction_session_timeout", PATIENCE, True),
            context.now_column,
        )
        self._key = _lock_key(context)

    def wait(self, connection: Connection, now: Micros) -> Micros:
        """Wait for the lock, and hold it until the transaction ends.

        Return the time that counts once it is held: *now* (the host's) where the database's
        clock does not.
        """
        context = self._context
        if context.database.dialect.name == "postgresql":
            found = connection.execute(self._at_once, {"key": self._key}).one()
            return int(found.now) if context.has_database_clock else now
        lock_endpoint(connection, context)
        return context.now(connection) if context.has_database_clock else now


def lock_endpoint(connection: Connection, context: StoreContext) -> None:
    """Wait for the endpoint's lock and hold it until the transaction ends."""
    dialect = context.database.dialect.name
    if dialect == "postgresql":
        connection.execute(_ADVISORY_LOCK, {"key": _lock_key(context)})
    elif dialect in {"mysql", "mariadb"}:
        endpoints = context.tables.endpoints
        row = select(endpoints.c.endpoint).where(endpoints.c.endpoint == context.endpoint)
        if connection.execute(row.with_for_update()).first() is None:
            # The first ever. An insert that meets another's row must wait for it exclusively:
            # IGNORE would leave each waiting insert a shared lock, and a deadlock when they want
            # more.
            first = mysql.insert(endpoints).values(endpoint=context.endpoint)
            connection.execute(first.on_duplicate_key_update(endpoint=endpoints.c.endpoint))


def _lock_key(context: StoreContext) -> int:
    name = f"{context.tables.claims.fullname} {context.endpoint}"
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
