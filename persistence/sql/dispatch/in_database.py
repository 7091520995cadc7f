"""Move due timeouts into queues of the same database, without reading them into this process.

Two statements run in the transaction that also acknowledges the order. The first locks the movable
rows, and returns only keys. The second deletes the rows, puts their messages into the queues, and
writes tombstones and history. The commit does not wait for the disk: no message leaves the
database, and a server crash that undoes the commit also undoes all that receivers did since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import CTE, BigInteger, Insert, Text, bindparam, select

from timeoutmgr.contracts import Key, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.commits import committed_lazily
from timeoutmgr.database.row_moves import MessageRows
from timeoutmgr.message.headers import DISPATCHED_AT, RELATED_TO_TIMEOUT
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.labels import is_labelled
from timeoutmgr.persistence.sql.pauses import parked_at
from timeoutmgr.persistence.sql.rows import OnKeys

from .lock import is_free
from .outcomes import closing


class InDatabaseDispatch:
    """Moves timeouts of one endpoint *into* queues; ``move_many`` is a ``row_moves.Move``.

    The first statement returns destinations, so that *allows*, which caches its answers, can say
    for each whether a message may go there.
    """

    def __init__(
        self, context: StoreContext, into: MessageRows, allows: Callable[[str], bool]
    ) -> None:
        self._context = context
        self._into = into
        self._allows = allows
        timeouts = context.tables.timeouts
        found = select(timeouts.c.due, timeouts.c.id, timeouts.c.destination, context.now_column)
        # The dispatcher handles rows with labels, which it closes too, and rows that it parks.
        can_go = (
            *is_free(context),
            parked_at(context).element.is_(None),
            into.takes(timeouts),
            ~is_labelled(timeouts),
        )
        locked = found.order_by(timeouts.c.due, timeouts.c.id).with_for_update(
            skip_locked=True, of=timeouts
        )
        self._lock: Final = OnKeys(
            context, lambda keyed: committed_lazily(locked.where(keyed, *can_go))
        )
        announcing = into.announcing()
        self._is_announced: Final = announcing is not None
        self._move: Final = OnKeys(
            context, lambda keyed: closing(context, keyed, self._passed_on, announcing)
        )

    def move_many(
        self, token: str, keys: Sequence[Key], at: Micros, transaction: Transaction
    ) -> tuple[Micros, dict[Key, str]]:
        """Move the movable rows of *keys*; return the instant, and their destinations.

        *at* is the host's time, and counts only if the database's clock does not.
        """
        if not keys:
            return at, {}
        asked = set(keys)
        others: dict[str, Any] = {}
        if not self._context.has_database_clock:
            others["now"] = self._context.clock.now()
        connection = as_connection(transaction)
        found = connection.execute(*self._lock.of(keys, **others)).all()
        # A search by id may have found another row, see ``OnKeys``.
        rows = [row for row in found if (row[0], row[1]) in asked and self._allows(row[2])]
        moved = {Key(row[0], row[1]): row[2] for row in rows}
        if not moved:
            return at, {}
        reach("moving.locked")
        if self._context.has_database_clock:
            at = max(row[3] for row in rows)
        ended = token if len(moved) == len(asked) else ""
        given: dict[str, Any] = {"token": ended, "at": at, "stamp": to_wire(at)}
        announced = self._into.announce(set(moved.values()), transaction)
        if self._is_announced:
            given["announced"] = announced
        connection.execute(*self._move.of(list(moved), **given))
        reach("moving.moved")
        return at, moved

    def _passed_on(self, removed: CTE) -> Insert:
        # As ``satellites.delivery.forwarder.delivered`` does for a sent message.
        added = {RELATED_TO_TIMEOUT: removed.c.id, DISPATCHED_AT: bindparam("stamp", type_=Text)}
        at = bindparam("at", type_=BigInteger)
        return self._into.insert(removed, added, at, removed.c.due, removed.c.id)
