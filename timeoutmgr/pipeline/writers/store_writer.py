"""A chunk into any store of ours, by the store's own ``store_many``."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Join, Select, bindparam, select, update

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.database.engine import execute_many
from timeoutmgr.instants import to_micros
from timeoutmgr.message import Message
from timeoutmgr.pipeline.errors import ContentDiffers
from timeoutmgr.pipeline.sameness import same_headers
from timeoutmgr.pipeline.stores import Store

_IDS_AT_ONCE: Final = 500


class StorePut:
    """Stores chunks as an endpoint does, and marks the rows with the run."""

    def __init__(self, store: Store, run_id: str | None, on_conflict: str) -> None:
        self._store = store
        self._run_id = run_id
        self._on_conflict = on_conflict
        timeouts = store.tables.timeouts
        self._mark = (
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
        """Store what is new of *chunk*; return how many rows that was."""
        rows = chunk.sort_by([("endpoint", "ascending"), ("id", "ascending")]).to_pylist()

        def work(connection: Connection) -> int:
            return sum(
                self._of_endpoint(connection, endpoint, [_timeout(row) for row in group])
                for endpoint, group in groupby(rows, key=lambda row: row["endpoint"])
            )

        return self._store.database.run(work)

    def _of_endpoint(
        self, connection: Connection, endpoint: str, timeouts: Sequence[Timeout]
    ) -> int:
        known = self._known(connection, endpoint, timeouts)
        self._refuse(connection, endpoint, [one for one in timeouts if one.id in known])
        new = [one for one in timeouts if one.id not in known]
        store = self._store.persistence.timeouts(endpoint, SystemClock())
        store.store_many(new, transaction=connection)
        if self._run_id is None or not new:
            return len(new)
        # Another run may have stored some of them since they were looked for: they are its own.
        marks = [{"of": endpoint, "at_due": one.due, "at_id": one.id} for one in new]
        return execute_many(connection, self._mark, marks)

    def _known(
        self, connection: Connection, endpoint: str, timeouts: Sequence[Timeout]
    ) -> set[str]:
        keys = self._store.tables.keys
        wanted = select(keys.c.id).where(keys.c.endpoint == endpoint)
        return {
            str(one)
            for ids in _pages([one.id for one in timeouts])
            for one in connection.execute(wanted.where(keys.c.id.in_(ids))).scalars()
        }

    def _refuse(self, connection: Connection, endpoint: str, known: Sequence[Timeout]) -> None:
        if self._on_conflict == "error" and known:
            own = self._of_this_run(connection, endpoint, known)
            ids = [one.id for one in known if one.id not in own]
            if ids:
                raise ContentDiffers(ids, "and on_conflict=error wants none to be")
        if self._on_conflict != "ignore":
            stored = self._pending(connection, endpoint, known)
            differing = [
                one.id for one in known if one.id in stored and not _same(one, stored[one.id])
            ]
            if differing:
                raise ContentDiffers(differing, "with other contents")

    def _of_this_run(
        self, connection: Connection, endpoint: str, known: Sequence[Timeout]
    ) -> set[str]:
        """Return the ids that this run has stored: a task that is tried again meets its own."""
        if self._run_id is None:
            return set()
        tables, keys = self._store.tables, self._store.tables.keys
        pending = select(keys.c.id).select_from(self._keyed()).where(keys.c.endpoint == endpoint)
        return {
            str(one)
            for ids in _pages([one.id for one in known])
            for wanted in (
                pending.where(tables.timeouts.c.run_id == self._run_id, keys.c.id.in_(ids)),
                # A timeout that was sent since is in the history alone.
                self.told_of(endpoint, ids),
            )
            for one in connection.execute(wanted).scalars()
        }

    def told_of(self, endpoint: str, ids: Sequence[str]) -> Select[str]:
        """Return the statement for those of *ids* that the history has of this run.

        They are found by their ids: on a table without statistics a database would walk all of the
        endpoint's history, once for each page.
        """
        history = self._store.tables.history
        return select(history.c.id).where(
            history.c.endpoint.concat("") == endpoint,
            history.c.run_id == self._run_id,
            history.c.id.in_(ids),
        )

    def _keyed(self) -> Join:
        """Return keys and timeouts, joined: these have no index on ids, but those know the due."""
        keys, timeouts = self._store.tables.keys, self._store.tables.timeouts
        return keys.join(
            timeouts,
            (timeouts.c.endpoint == keys.c.endpoint)
            & (timeouts.c.due == keys.c.due)
            & (timeouts.c.id == keys.c.id),
        )

    def _pending(
        self, connection: Connection, endpoint: str, known: Sequence[Timeout]
    ) -> dict[str, Any]:
        keys, timeouts = self._store.tables.keys, self._store.tables.timeouts
        wanted = select(timeouts).select_from(self._keyed()).where(keys.c.endpoint == endpoint)
        return {
            row.id: row
            for ids in _pages([one.id for one in known])
            for row in connection.execute(wanted.where(keys.c.id.in_(ids)))
        }


def _pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _IDS_AT_ONCE):
        yield ids[start : start + _IDS_AT_ONCE]


def _same(given: Timeout, stored: Any) -> bool:
    # One that was rescheduled since is due at another time, rightly.
    due = stored.due if stored.original_due is None else stored.original_due
    is_due_alike = stored.version > 0 or due == given.due
    if not is_due_alike or not same_headers(given.message.headers, json.loads(stored.headers)):
        return False
    return (
        given.destination,
        given.saga_id,
        given.message.body,
        given.message.content_type,
        given.message.content_encoding,
    ) == (
        stored.destination,
        stored.saga_id,
        bytes(stored.body),
        stored.content_type,
        stored.content_encoding,
    )


def _timeout(row: dict[str, Any]) -> Timeout:
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
