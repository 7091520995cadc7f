"""A history of dispatched messages in PostgreSQL, and a count of its rows that were read."""

import time

from harness.figures import say
from harness.messages import micros
from harness.servers import connect

from timeoutmgr.pipeline.stores import Store

from .bench import HISTORY, KEYS

LATE = 1_000
"""One in this number of messages is late, so that there are examples."""
KEPT_DAYS = 7
"""Days for which there are also keys."""
_HISTORY = f"""
INSERT INTO {HISTORY} (id, event, at, due, endpoint, destination, attempt, node)
SELECT id, event, due + offset_, due, 'bench', destination, 0, 'node'
FROM (SELECT gen_random_uuid()::text AS id, n, 'q' || (n %% 50) AS destination,
    (%(now)s - (0.01 + random() * %(days)s) * 86400e6)::bigint AS due
    FROM generate_series(1, %(messages)s) n) AS made,
LATERAL (VALUES ('scheduled', -3600000000),
    ('dispatched', CASE WHEN n %% %(late)s = 0 THEN 90000000 ELSE 2000 END)) AS of (event, offset_)
"""
_CLOSED = f"""
INSERT INTO {KEYS} (endpoint, id, due, version, state, closed_at)
SELECT endpoint, id, due, 0, 'dispatched', at FROM {HISTORY}
WHERE event = 'dispatched' AND at > %(now)s - %(kept)s * 86400e6
"""
_READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_user_tables
WHERE relid = %(history)s::regclass
    OR relid IN (SELECT relid FROM pg_partition_tree(%(history)s::regclass))
"""


def fill(store: Store, *, rows: int, days: int) -> None:
    """Store *rows* of history: two rows for each message, due in the last *days*."""
    values = {"now": micros(), "days": days, "messages": rows // 2, "late": LATE, "kept": KEPT_DAYS}
    with connect(str(store.database.url)) as sql:
        say(f"{rows:,} rows of history are made")
        sql.execute(_HISTORY, values)
        sql.execute(_CLOSED, values)
        sql.execute(f"VACUUM ANALYZE {HISTORY}, {KEYS}")


def rows_read(store: Store) -> int:
    """Return how many rows of history were read, as the server has counted so far."""
    time.sleep(1.5)  # the server reports its counts a second late
    with connect(str(store.database.url)) as sql:
        row = sql.execute(_READ, {"history": HISTORY}).fetchone()
    assert row is not None
    return int(row[0])
