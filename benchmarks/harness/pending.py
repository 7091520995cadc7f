"""Pending timeouts, inserted into the product's tables by the server: a million in a minute."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass

from timeoutmgr.message import headers

from .figures import say
from .messages import BODY, DAY, HEADERS, micros
from .servers import connect

PREFIX = "timeoutmgr_"
_COLUMNS = (
    "endpoint, due, id, destination, message_id, headers, body, content_type, content_encoding, "
    "created, version, attempts"
)
_ROWS = """
WITH made AS (
    INSERT INTO {prefix}timeouts ({columns})
    SELECT %(endpoint)s, due, id, %(destination)s, id, replace(%(headers)s, 'DUE', to_char(
            timestamp 'epoch' + due * interval '1 us', 'YYYY-MM-DD HH24:MI:SS:US "Z"')),
        %(body)s, 'application/json', 'utf-8', %(now)s, 0, 0
    FROM (
        SELECT gen_random_uuid()::text AS id, {due} AS due FROM generate_series(1, %(count)s)
    ) ids
    RETURNING endpoint, id, due
)
INSERT INTO {prefix}timeout_keys (endpoint, id, due, version, state)
SELECT endpoint, id, due, 0, 'pending' FROM made
"""
_MADE_SQLITE = """
CREATE TEMP TABLE made AS
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
SELECT lower(hex(randomblob(16))) AS id, :from + abs(random()) % :over AS due FROM numbers
"""
_TIMEOUTS_SQLITE = f"""
INSERT INTO {PREFIX}timeouts ({_COLUMNS})
SELECT :endpoint, due, id, :destination, id, :headers, :body, 'application/json', 'utf-8', :now,
    0, 0 FROM made ORDER BY due, id
"""
_KEYS_SQLITE = f"""
INSERT INTO {PREFIX}timeout_keys (endpoint, id, due, version, state)
SELECT :endpoint, id, due, 0, 'pending' FROM made ORDER BY id
"""
_AT_ONCE = "%(from)s::bigint"
_SPREAD = "(%(from)s + random() * %(over)s)::bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Timeouts of one endpoint, due at one instant or spread evenly *over* some microseconds."""

    endpoint: str
    destination: str
    count: int
    due: int
    over: int = 0


def far_future(endpoint: str, count: int) -> Pending:
    """Return *count* timeouts spread over the year that begins tomorrow."""
    due = micros() + DAY
    destination = f"{endpoint}.destination"
    return Pending(endpoint=endpoint, destination=destination, count=count, due=due, over=365 * DAY)


def load(url: str, pending: Pending, *, batch: int = 250_000) -> None:
    """Insert *pending* into the PostgreSQL database at *url*, then refresh its statistics."""
    statement = _ROWS.format(
        prefix=PREFIX, columns=_COLUMNS, due=_SPREAD if pending.over else _AT_ONCE
    )
    now = micros()
    values = {
        "endpoint": pending.endpoint,
        "destination": pending.destination,
        "headers": json.dumps({**HEADERS, headers.DELIVER_AT: "DUE"}),
        "body": BODY,
        "now": now,
        "from": pending.due,
        "over": pending.over,
    }
    with connect(url) as connection:
        for start in range(0, pending.count, batch):
            count = min(batch, pending.count - start)
            connection.execute(statement, {**values, "count": count})
            if pending.count > batch:
                say(f"{start + count:,} of {pending.count:,} pending loaded")
        connection.execute(f"ANALYZE {PREFIX}timeouts, {PREFIX}timeout_keys")


def load_sqlite(path: str, pending: Pending) -> None:
    """Insert *pending* into the SQLite file at *path*."""
    values = {
        "endpoint": pending.endpoint,
        "destination": pending.destination,
        "headers": json.dumps(HEADERS),
        "body": BODY,
        "now": micros(),
        "from": pending.due,
        "over": max(pending.over, 1),
        "count": pending.count,
    }
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(_MADE_SQLITE, values)
        connection.execute(_TIMEOUTS_SQLITE, values)
        connection.execute(_KEYS_SQLITE, values)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ANALYZE")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def clear(url: str) -> None:
    """Remove all timeouts of all endpoints, with their history."""
    names = ("timeouts", "timeout_keys", "timeout_history", "claims")
    with connect(url) as connection:
        connection.execute(f"TRUNCATE {', '.join(PREFIX + name for name in names)}")
