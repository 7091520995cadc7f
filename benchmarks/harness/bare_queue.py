"""Requests and replies through a table of PostgreSQL with psycopg alone: a queue of few steps.

One statement commits a message to the disk and announces it, a second leases it, and a third
deletes it; the last two commit without the disk. The queue has no order, no check of owners, no
renewal and no limit.
"""

import threading
import time
from statistics import median
from typing import Any

from .servers import connect

_TABLE = """
CREATE TABLE IF NOT EXISTS bare_queue (
    sequence bigserial PRIMARY KEY, queue text, body bytea, owner text
)
"""
_SEND = """
WITH sent AS (INSERT INTO bare_queue (queue, body) VALUES (%s, 'x'))
SELECT pg_notify(%s, '')
"""
_LEASE = """
UPDATE bare_queue SET owner = 'me' WHERE sequence = (
    SELECT sequence FROM bare_queue WHERE queue = %s AND owner IS NULL
    ORDER BY sequence LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING sequence, body
"""
_DELETE = "DELETE FROM bare_queue WHERE sequence = %s"
_ASKED, _ANSWERED = "asked", "answered"


def bare_reply_time(url: str, count: int) -> float:
    """Return the median time from a request to its reply, in ms; a second thread replies."""
    with connect(url) as connection:
        connection.execute(_TABLE)
    replies = threading.Thread(target=_reply, args=(url, count))
    with _Side(url, _ANSWERED) as side:
        replies.start()
        took = [_ask(side) for _ in range(count)]
        replies.join()
    return median(took) * 1000


def _ask(side: "_Side") -> float:
    began = time.perf_counter()
    side.send(_ASKED)
    sequence = side.lease()
    took = time.perf_counter() - began
    side.delete(sequence)
    return took


def _reply(url: str, count: int) -> None:
    with _Side(url, _ASKED) as side:
        for _ in range(count):
            sequence = side.lease()
            side.send(_ANSWERED)
            side.delete(sequence)


class _Side:
    """One end of the exchange: a connection that sends, another that listens and leases."""

    def __init__(self, url: str, queue: str) -> None:
        self._queue = queue
        self._sending, self._leasing = connect(url), connect(url, prepare_threshold=0)
        self._leasing.execute("SET synchronous_commit = off")
        self._leasing.execute(f"LISTEN {queue}")

    def __enter__(self) -> "_Side":
        return self

    def __exit__(self, *_: object) -> None:
        self._sending.close()
        self._leasing.close()

    def send(self, queue: str) -> None:
        self._sending.execute(_SEND, (queue, queue), prepare=True)

    def lease(self) -> int:
        """Wait for a message; return its number."""
        while True:
            row: Any = self._leasing.execute(_LEASE, (self._queue,)).fetchone()
            if row is not None:
                return int(row[0])
            for _ in self._leasing.notifies(timeout=1, stop_after=1):
                pass

    def delete(self, sequence: int) -> None:
        self._leasing.execute(_DELETE, (sequence,))
