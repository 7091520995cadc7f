"""Limits on the number of messages in a queue."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from timeoutmgr.transport.sql.options import QueueOptions
from timeoutmgr.transport.sql.statements import QueueStatements
from timeoutmgr.transport.work import parts

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 1_000
"""Messages that one statement names: each is a parameter, and SQLite allows some 32,000."""


class LimitedQueues:
    """The limits of the queues of one insertion, in its transaction."""

    def __init__(
        self,
        statements: QueueStatements,
        options: Mapping[str, QueueOptions],
        now: Mapping[str, int],
        connection: Connection,
    ) -> None:
        self._statements: Final = statements
        self._now = now
        self._connection = connection
        self._limits = {
            name: limit
            for name, each in sorted(options.items())
            if (limit := each.max_length) is not None
        }
        self._dropping = {name for name in self._limits if options[name].drop_head}

    def fitting(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return, for each queue, as many of the first *rows* as it has room for."""
        room = {
            name: limit - self._length(name)
            for name, limit in self._limits.items()
            if name not in self._dropping
        }
        if not room:
            return rows
        place: Counter[str] = Counter()
        kept = []
        for row in rows:
            place[row["queue"]] += 1
            if place[row["queue"]] <= room.get(row["queue"], len(rows)):
                kept.append(row)
        return kept

    def drop_oldest(self) -> None:
        """Delete, count and log the excess messages of queues that drop their oldest."""
        for name in sorted(self._dropping):
            excess = self._length(name) - self._limits[name]
            if excess > 0:
                self._drop(name, excess)

    def _drop(self, queue: str, excess: int) -> None:
        where = {"queue": queue, "limit": excess, **self._now}
        oldest = list(self._connection.execute(self._statements.oldest, where).scalars())
        for some in parts(oldest, _AT_ONCE):
            self._connection.execute(self._statements.delete_chosen, {"sequences": some})
        counted = {"queue": queue, "count": len(oldest)}
        self._connection.execute(self._statements.count_dropped, counted)
        fields = {"event": "messages_dropped"}
        logger.warning(
            "queue %s is full and dropped its %d oldest messages", queue, len(oldest), extra=fields
        )

    def _length(self, queue: str) -> int:
        # One at a time: two senders that count at once would both find the last free place.
        self._connection.execute(self._statements.lock_queue, {"queue": queue})
        where = {"queue": queue, **self._now}
        return int(self._connection.execute(self._statements.count, where).scalar_one())
