"""Writes a chunk into any timeoutmgr store, by the store's own ``store_many``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
from sqlalchemy import Connection, Join, Select, bindparam, select, update

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message.instants import to_micros
from timeoutmgr.message.message import Message
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.writers.conflicts import (
    DIFFERENT,
    KNOWN,
    KnownIdRule,
    refuse,
    same_content,
)

Row: TypeAlias = Mapping[str, Any]
"""A row of ``views.TO_STORE``."""

_AT_ONCE: Final = 500
Item = TypeVar("Item")


class StoreWriter:
    """Stores chunks like an endpoint, and marks the rows with the run."""

    def __init__(self, store: Store, run_id: str | None, on_conflict: KnownIdRule) -> None:
        self._store = store
        self._run_id = run_id
        self._on_conflict = on_conflict
        timeouts = store.tables.timeouts
        self._note_run = (
            update(timeouts)
            .where(
                timeouts.c.endpoint == bindparam("of"),
                timeouts.c.due == bindparam("at_due"),
                timeouts.c.id == bindparam("at_id"),
                timeouts.c.run_id.is_(None),
            )
            .values(run_id=run_id)
        )

    def __call__(self, chunk: pa.Table) -> int:
        """Store the new rows of *chunk*; return their number."""
        rows = chunk.sort_by([("endpoint", "ascending"), ("id", "ascending")]).to_pylist()

        def work(connection: Connection) -> int:
            return sum(
                self._of_endpoint(connection, endpoint, [*group])
                for endpoint, group in groupby(rows, key=lambda row: row["endpoint"])
            )

        return self._store.database.run(work)

    def _of_endpoint(self, connection: Connection, endpoint: str, rows: Sequence[Row]) -> int:
        known = self._known(connection, endpoint, _ids(rows))
        self._refuse(connection, endpoint, [row for row in rows if row["id"] in known])
        new = [_timeout(row) for row in rows if row["id"] not in known]
        store = self._store.persistence.timeouts(endpoint, SystemClock())
        store.store_many(new, transaction=connection)
        if self._run_id is None or not new:
            return len(new)
        # Another run may have stored some rows since the search: those rows keep its mark.
        marks = [{"of": endpoint, "at_due": one.due, "at_id": one.id} for one in new]
        return execute_many(connection, self._note_run, marks)

    def _known(self, connection: Connection, endpoint: str, ids: Sequence[str]) -> set[str]:
        keys = self._store.tables.keys
        wanted = select(keys.c.id).where(keys.c.endpoint == endpoint)
        return {
            str(one)
            for some in pages(ids)
            for one in connection.execute(wanted.where(keys.c.id.in_(some))).scalars()
        }

    def _refuse(self, connection: Connection, endpoint: str, known: Sequence[Row]) -> None:
        if self._on_conflict is KnownIdRule.ERROR and known:
            own = self._of_this_run(connection, endpoint, _ids(known))
            refuse([id_ for id_ in _ids(known) if id_ not in own], KNOWN)
        if self._on_conflict.compares:
            stored = self._pending(connection, endpoint, _ids(known))
            pairs = ((row, stored[row["id"]]) for row in known if row["id"] in stored)
            refuse([row["id"] for row, there in pairs if not _same(row, there)], DIFFERENT)

    def _of_this_run(self, connection: Connection, endpoint: str, ids: Sequence[str]) -> set[str]:
        """Return the ids that this run has stored: a retried task meets its own ids."""
        if self._run_id is None:
            return set()
        tables, keys = self._store.tables, self._store.tables.keys
        pending = select(keys.c.id).select_from(self._keyed()).where(keys.c.endpoint == endpoint)
        return {
            str(one)
            for some in pages(ids)
            for wanted in (
                pending.where(tables.timeouts.c.run_id == self._run_id, keys.c.id.in_(some)),
                # A timeout that was sent since is only in the history.
                self.in_history(endpoint, some),
            )
            for one in connection.execute(wanted).scalars()
        }

    def in_history(self, endpoint: str, ids: Sequence[str]) -> Select[str]:
        """Return the statement for the *ids* of this run in the history.

        Look them up by ids: without statistics a database would otherwise read all of the
        endpoint's history for each page.
        """
        history = self._store.tables.history
        return select(history.c.id).where(
            history.c.endpoint.concat("") == endpoint,
            history.c.run_id == self._run_id,
            history.c.id.in_(ids),
        )

    def _keyed(self) -> Join:
        """Return the join of keys and timeouts: only keys have an index on ids, and have due."""
        keys, timeouts = self._store.tables.keys, self._store.tables.timeouts
        return keys.join(
            timeouts,
            (timeouts.c.endpoint == keys.c.endpoint)
            & (timeouts.c.due == keys.c.due)
            & (timeouts.c.id == keys.c.id),
        )

    def _pending(
        self, connection: Connection, endpoint: str, ids: Sequence[str]
    ) -> dict[str, Mapping[str, Any]]:
        keys, timeouts = self._store.tables.keys, self._store.tables.timeouts
        wanted = select(timeouts).select_from(self._keyed()).where(keys.c.endpoint == endpoint)
        return {
            row.id: row._asdict()
            for some in pages(ids)
            for row in connection.execute(wanted.where(keys.c.id.in_(some)))
        }


def _ids(rows: Sequence[Row]) -> list[str]:
    return [row["id"] for row in rows]


def pages(items: Sequence[Item], size: int = _AT_ONCE) -> Iterator[Sequence[Item]]:
    """Yield *items* in parts of *size*, by default as many as one statement looks up."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _same(given: Row, stored: Mapping[str, Any]) -> bool:
    first_due = stored["due"] if stored["original_due"] is None else stored["original_due"]
    # A rescheduled timeout (version > 0) may have another due time.
    is_due_alike = stored["version"] > 0 or first_due == to_micros(given["due"])
    return is_due_alike and same_content(given, {**stored, "body": bytes(stored["body"])})


def _timeout(row: Row) -> Timeout:
    return Timeout(
        id=row["id"],
        due=to_micros(row["due"]),
        destination=row["destination"],
        saga_id=row["saga_id"],
        created=to_micros(row["created"]),
        message=Message(
            id=row["message_id"],
            headers=json.loads(row["headers"]),
            body=row["body"],
            content_type=row["content_type"],
            content_encoding=row["content_encoding"],
        ),
    )
