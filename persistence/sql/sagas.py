"""Memory of cleared sagas and labels, which also affects messages that were on their way.

A clear and a batch of timeouts may run concurrently. The clear locks its endpoint's memory
exclusively, a batch shares the lock with other batches: so either the clear finds the rows of the
batch, or the batch finds the memory of the clear. On SQLite, the single writer suffices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, text, update
from sqlalchemy.dialects import mysql

from timeoutmgr.contracts import Place, Timeout
from timeoutmgr.contracts.sagas import (
    Cleared,
    SagaClear,
    memories_of,
    reaching,
    remembered,
    remembered_from,
)
from timeoutmgr.database.session_locks import lock_number
from timeoutmgr.message.instants import Micros

from .batch_writes import insert_missing
from .context import StoreContext

_ALONE: Final = text("SELECT pg_advisory_xact_lock(:key)")
_TOGETHER: Final = text("SELECT pg_advisory_xact_lock_shared(:key)")
_LOCK_ROW: Final = ""
"""No saga has this id: the row is the lock on MySQL and SQL Server."""
_RECEIVERS: Final = 1 << 16


class ClearedSagas:
    """Reads and writes the memory of one endpoint's clears, each within a transaction."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        sagas = context.tables.sagas
        mine = sagas.c.endpoint == context.endpoint
        columns = ("saga_id", "order_id", "cleared_at", "sent", "receiver", "kept", "channel")
        self._read = select(*(sagas.c[name] for name in columns)).where(
            mine, sagas.c.saga_id.in_(bindparam("sagas", expanding=True))
        )
        self._lock_row = select(sagas.c.saga_id).where(mine, sagas.c.saga_id == _LOCK_ROW)
        self._change = update(sagas).where(mine, sagas.c.saga_id == bindparam("saga"))
        self._key = lock_number(f"{sagas.fullname} {context.endpoint}")

    def lock(self, connection: Connection, *, alone: bool) -> None:
        """Lock the memory until the transaction ends: *alone* to clear, shared to store."""
        dialect = connection.dialect.name
        if dialect == "postgresql":
            connection.execute(_ALONE if alone else _TOGETHER, {"key": self._key})
        elif self._context.locks_what_it_reads:
            sagas = self._context.tables.sagas
            row = {"endpoint": self._context.endpoint, "saga_id": _LOCK_ROW}
            locked = self._lock_row.with_for_update(read=not alone)
            if connection.execute(locked).first() is not None:
                return
            if dialect == "mssql":
                insert_missing(connection, sagas, [row])
            else:
                # Like ``lock_endpoint``: an insert that meets the row waits for it exclusively.
                first = mysql.insert(sagas).values(row)
                connection.execute(first.on_duplicate_key_update(saga_id=_LOCK_ROW))

    def reaching(self, connection: Connection, timeouts: Iterable[Timeout]) -> dict[str, Cleared]:
        """Return the clears that affect *timeouts*, which arrive now, by timeout id."""
        arriving = [(one, memories_of(one)) for one in timeouts if one.place is not None]
        names = {name for _, some in arriving for name in some}
        if not names:
            return {}
        self.lock(connection, alone=False)
        known = self.read(connection, names)
        found = ((one.id, reaching(one, known)) for one, _ in arriving) if known else ()
        return {id_: cleared for id_, cleared in found if cleared is not None}

    def read(self, connection: Connection, sagas: Iterable[str]) -> dict[str, Cleared]:
        """Return the memory of *sagas*, given by id or by the name of a cancel."""
        found = connection.execute(self._read, {"sagas": sorted(sagas)})
        return {
            row.saga_id: Cleared(
                order_id=row.order_id,
                at=row.cleared_at,
                sent=row.sent,
                receiver=row.receiver,
                kept=frozenset(json.loads(row.kept or "[]")),
                channel=row.channel,
            )
            for row in found
        }

    def remember(self, connection: Connection, order: SagaClear, *, is_complete: bool) -> None:
        """Record that *order* was handled; the memory is locked."""
        before = self.read(connection, [order.saga_id]).get(order.saga_id)
        cleared = remembered(before, order, self._context.now(connection), is_complete=is_complete)
        self._write(connection, order.saga_id, before, cleared)

    def remember_cancel(
        self, connection: Connection, name: str, sent: Micros, channel: str | None
    ) -> None:
        """Record a cancel as *name* for messages sent until *sent*; the memory is locked."""
        before = self.read(connection, [name]).get(name)
        until = sent if before is None else max(sent, before.sent)
        cancelled = Cleared(
            order_id=None,
            at=remembered_from(self._context.now(connection)),
            sent=until,
            channel=channel,
        )
        self._write(connection, name, before, cancelled)

    def _write(
        self, connection: Connection, name: str, before: Cleared | None, cleared: Cleared
    ) -> None:
        values: dict[str, Any] = {
            "order_id": cleared.order_id,
            "cleared_at": cleared.at,
            "sent": cleared.sent,
            "receiver": cleared.receiver,
            "kept": json.dumps(sorted(cleared.kept)) if cleared.kept else None,
            "channel": cleared.channel,
        }
        if before is not None:
            connection.execute(self._change.values(values), {"saga": name})
        else:
            key = {"endpoint": self._context.endpoint, "saga_id": name}
            connection.execute(insert(self._context.tables.sagas).values({**key, **values}))


def packed(place: Place | None) -> int | None:
    """Return *place* as the number stored in a row: milliseconds, and the consumer."""
    return None if place is None else place.at // 1000 * _RECEIVERS + place.receiver % _RECEIVERS


def unpacked(number: int | None) -> Place | None:
    """Return the place stored in *number*, which lacks the time of delivery."""
    if number is None:
        return None
    return Place(receiver=number % _RECEIVERS, since=None, at=number // _RECEIVERS * 1000)
