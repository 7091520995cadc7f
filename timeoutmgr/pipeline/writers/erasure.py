"""Erasure of timeouts from a store's tables: rows are removed, but their ids stay used."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, delete, false, insert, or_, select, update

from timeoutmgr.contracts import TimeoutState
from timeoutmgr.database import Database
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.routes import is_delayed_retry, timeout_id
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.writers.store_writer import pages

Key = tuple[str, str]
"""Endpoint and id of a timeout."""
_AT_ONCE: Final = 500
ERASED: Final = TimeoutState.ERASED.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonSelection:
    """Selects the timeouts of a person, which have any of these values."""

    saga_ids: frozenset[str] = frozenset()
    destinations: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)

    def among(self, rows: Iterable[Mapping[str, Any]], known: Iterable[Key] = ()) -> set[Key]:
        """Return the timeouts of the person among *rows*, and delayed retries of these or *known*.

        Each row has the columns of its table.
        """
        found, retries = set[Key](), dict[Key, tuple[str, str, str, str]]()
        managers = defaultdict[str, set[str]](set)
        for row in rows:
            key, given, queue = (row["endpoint"], row["id"]), self._headers(row), row["destination"]
            if self._has(row, given):
                found.add(key)
                managers[queue].add(row["endpoint"])
            elif is_delayed_retry(given):
                before = given.get(headers.RELATED_TO_TIMEOUT, "")
                sender = given.get(headers.ORIGINATING_ENDPOINT, "")
                retries[key] = (row["message_id"], queue, before, sender)
        ids = self.ids.union(id_ for _endpoint, id_ in found.union(known))
        return found.union(
            (own, id_)
            for (own, id_), (message_id, queue, before, sender) in retries.items()
            if before in ids
            # A retry of a retry names the earlier retry. The first timeout has the id of its
            # message, which another person's message may have at another endpoint and queue.
            or any(timeout_id(one, message_id) in ids for one in {own, sender, *managers[queue]})
        )

    def _has(self, row: Mapping[str, Any], given: Mapping[str, str]) -> bool:
        # A delayed retry is stored without its saga, which its header keeps.
        saga = given.get(headers.SAGA_ID) if is_delayed_retry(given) else row.get("saga_id")
        return (
            row["id"] in self.ids
            or row["destination"] in self.destinations
            or saga in self.saga_ids
            or any(given.get(name) == value for name, value in self.headers.items())
        )

    def _headers(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers of *row* if they matter: parsing all headers takes long."""
        text = row.get("headers") or ""
        is_needed = text and (self.headers or headers.RETRIES_TIMESTAMP in text)
        return dict(json.loads(text)) if is_needed else {}


class Erasure:
    """Finds and removes the timeouts of a person in *store*."""

    def __init__(self, store: Store, batch: int = _AT_ONCE) -> None:
        self._store, self._batch = store, batch
        self._tables = store.tables

    def rows(self, subject: PersonSelection) -> Iterator[Mapping[str, Any]]:
        """Yield pending timeouts and events that may be of *subject*, and all delayed retries."""
        for wanted in (self._pending(subject), self._events(subject)):
            with self._store.database.read() as connection:
                by_parts = connection.execution_options(yield_per=self._batch)
                found: Iterable[Any] = by_parts.execute(wanted).mappings()
                yield from found

    def erase(self, keys: Sequence[Key], at: Micros, run_id: str) -> dict[str, int]:
        """Remove all rows of *keys*, a batch in a transaction; return the counts by table.

        Each id keeps a tombstone and an event ``erased``, without any data of the message: if the
        message is delivered again it is not stored, and ``reconcile`` does not miss it.
        """
        counts = Counter[str]()
        for endpoint, ids in _batches(keys, self._batch):
            work = partial(self._erase, endpoint=endpoint, ids=ids, at=at, run_id=run_id)
            counts.update(self._store.database.run(work))
        return dict(counts)

    def overwrite(self, others: Iterable[Database] = ()) -> bool:
        """Make SQLite rewrite its file and empty its log; return whether no old data is left.

        Do the same for *others*, which may be in the same file. Raises StorageUnavailable.
        """
        places = {one.describe(): one for one in (self._store.database, *others)}
        return False not in [one.is_sqlite and one.write_anew() for one in places.values()]

    def _erase(
        self, connection: Connection, endpoint: str, ids: Sequence[str], at: Micros, run_id: str
    ) -> dict[str, int]:
        tables = self._tables
        counts = {}
        for name in ("labels", "timeouts", "history"):
            table = getattr(tables, name)
            doomed = delete(table).where(table.c.endpoint == endpoint, table.c.id.in_(ids))
            if name == "history":
                doomed = doomed.where(table.c.event != ERASED)
            counts[name] = connection.execute(doomed).rowcount
        new = self._close(connection, endpoint, ids, at)
        if new:
            event = {"endpoint": endpoint, "event": ERASED, "at": at, "due": at, "run_id": run_id}
            event |= {"destination": "", "attempt": 0, "node": ""}
            connection.execute(insert(tables.history), [{**event, "id": id_} for id_ in new])
        return {**counts, "keys": len(new)}

    def _close(
        self, connection: Connection, endpoint: str, ids: Sequence[str], at: Micros
    ) -> list[str]:
        """Write tombstones for *ids*; return the ids that no earlier run has erased."""
        keys = self._tables.keys
        here = (keys.c.endpoint == endpoint, keys.c.id.in_(ids))
        stored = select(keys.c.id, keys.c.state).where(*here)
        known = {row[0]: row[1] for row in connection.execute(stored)}
        blank: dict[str, Any] = {"state": ERASED, "closed_at": at, "content": None}
        connection.execute(update(keys).where(*here, keys.c.state != ERASED).values(**blank))
        missing = [
            {"endpoint": endpoint, "id": id_, "due": at, "version": 0, "maybe_sent": 0, **blank}
            for id_ in ids
            if id_ not in known
        ]
        if missing:
            connection.execute(insert(keys), missing)
        return [id_ for id_ in ids if known.get(id_) != ERASED]

    def _pending(self, subject: PersonSelection) -> Any:
        table = self._tables.timeouts
        names = ("endpoint", "id", "destination", "saga_id", "message_id", "headers")
        columns = [table.c[name] for name in names]
        in_headers = [
            table.c.headers.contains(json.dumps(name, ensure_ascii=is_ascii)[1:-1], autoescape=True)
            for name in (*subject.headers, headers.RETRIES_TIMESTAMP)
            for is_ascii in (True, False)  # an endpoint escapes ö, Spark does not
        ]
        found = or_(table.c.saga_id.in_(subject.saga_ids), *_common(table, subject), *in_headers)
        return select(*columns).where(found)

    def _events(self, subject: PersonSelection) -> Any:
        table = self._tables.history
        columns = (table.c.endpoint, table.c.id, table.c.destination)
        return select(*columns).where(or_(*_common(table, subject)), table.c.event != ERASED)


def _common(table: Any, subject: PersonSelection) -> Iterable[ColumnElement[bool]]:
    yield false()
    if subject.destinations:
        yield table.c.destination.in_(subject.destinations)
    if subject.ids:
        yield table.c.id.in_(subject.ids)


def _batches(keys: Sequence[Key], size: int) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield endpoints with up to *size* of their ids each, in order."""
    for endpoint, some in groupby(sorted(keys), key=itemgetter(0)):
        for part in pages([id_ for _endpoint, id_ in some], size):
            yield endpoint, part
