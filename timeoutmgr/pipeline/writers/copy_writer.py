"""Writes a chunk to PostgreSQL: by binary COPY, or through a staging table if ids are known."""

import json
import re
import socket
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from timeoutmgr.contracts import TimeoutState
from timeoutmgr.errors import StorageConflict
from timeoutmgr.message.headers import LABELS
from timeoutmgr.message.labels import labels_of
from timeoutmgr.message.message import Message
from timeoutmgr.pipeline.adbc import postgresql_connection
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import in_numbers
from timeoutmgr.pipeline.writers.conflicts import (
    COMPARED,
    DIFFERENT,
    KNOWN,
    TIME_HEADERS,
    KnownIdRule,
    refuse,
    same_headers,
)

_STAGE: Final = "timeoutmgr_stage"
_STAGED_LABELS: Final = "timeoutmgr_staged_labels"
_KNOWN: Final = "23505"
_CONFLICTS: Final = ("40P01", "40001", "55P03")
_TRIES: Final = 8

_KEY_COLUMNS: Final = ("endpoint", "id", "due", "version", "state")
_ROW_COLUMNS: Final = (
    *("endpoint", "due", "id", "destination", "saga_id", "message_id", "headers", "body"),
    *("content_type", "content_encoding", "created", "version", "attempts", "run_id"),
)
_HISTORY_COLUMNS: Final = (
    *("id", "event", "at", "due", "endpoint", "destination", "attempt", "node", "run_id"),
)
_LABEL_COLUMNS: Final = ("endpoint", "label", "due", "id")


class CopyWriter:
    """Stores chunks in PostgreSQL, each in a separate connection and transaction."""

    def __init__(self, store: Store, run_id: str | None, on_conflict: KnownIdRule) -> None:
        self._store = store
        self._run_id = run_id
        self._on_conflict = on_conflict
        self._schema = store.tables.timeouts.schema
        self._tells = store.tables.history_kept == "full"

    def __call__(self, chunk: pa.Table) -> int:
        """Store the new rows of *chunk*; return their number."""
        from adbc_driver_manager import Error

        put = self._copy
        for _ in range(_TRIES):
            try:
                with postgresql_connection(self._store.database) as connection:
                    with connection.cursor() as cursor:
                        new = put(cursor, self._rows(chunk, cursor))
                    connection.commit()
                    return new
            except Error as error:
                state = getattr(error, "sqlstate", None)
                if state == _KNOWN and put == self._copy:
                    put = self._merge
                elif state not in _CONFLICTS:
                    raise
        raise StorageConflict(f"{self._store.database.describe()}: conflict with other writers")

    def _rows(self, chunk: pa.Table, cursor: Any) -> pa.Table:
        """Return *chunk* with the columns of all three tables, in their types."""
        cursor.execute(f"SELECT {self._store.database.dialect.now}")
        now = cursor.fetchone()[0]
        count = chunk.num_rows
        chunk = chunk.cast(in_numbers(chunk.schema))
        zeros = pa.repeat(pa.scalar(0, pa.int32()), count)
        more = {
            "version": zeros,
            "attempts": zeros,
            "attempt": zeros,
            "run_id": pa.repeat(pa.scalar(self._run_id, pa.string()), count),
            "state": pa.repeat(TimeoutState.PENDING.value, count),
            "event": pa.repeat("scheduled", count),
            "at": pa.repeat(pa.scalar(now, pa.int64()), count),
            "node": pa.repeat(socket.gethostname()[:255], count),
        }
        for name, values in more.items():
            chunk = chunk.append_column(name, values)
        return chunk

    def _copy(self, cursor: Any, rows: pa.Table) -> int:
        tables = self._store.tables
        # Keys in order of ids; after that, no other writer has these rows: any order will do.
        keys = rows.select(_KEY_COLUMNS).sort_by([("endpoint", "ascending"), ("id", "ascending")])
        labels = label_rows(rows)
        for table, added in (
            (tables.keys, keys),
            (tables.timeouts, rows.select(_ROW_COLUMNS)),
            *(((tables.labels, labels),) if labels is not None else ()),
            *(((tables.history, rows.select(_HISTORY_COLUMNS)),) if self._tells else ()),
        ):
            cursor.adbc_ingest(table.name, added, mode="append", db_schema_name=self._schema)
        return int(rows.num_rows)

    def _merge(self, cursor: Any, rows: pa.Table) -> int:
        cursor.adbc_ingest(_STAGE, rows, mode="create", temporary=True)
        labels = label_rows(rows)
        if labels is not None:
            cursor.adbc_ingest(_STAGED_LABELS, labels, mode="create", temporary=True)
        if self._on_conflict is KnownIdRule.ERROR:
            known = [row[0] for row in self._ask(cursor, self.known_to_others())]
            refuse(known, KNOWN)
        new = self._ask(cursor, self._insert_new(labelled=labels is not None))[0][0]
        if self._on_conflict.compares:
            refuse(_differing_ids(self._ask(cursor, self._differing())), DIFFERENT)
        # The commit would drop the tables, but another chunk may use this session before.
        cursor.execute(f"DROP TABLE IF EXISTS {_STAGE}, {_STAGED_LABELS}")
        return int(new)

    def _ask(self, cursor: Any, statement: str) -> list[Any]:
        # Otherwise the driver wraps the statement in a COPY, which allows no changes.
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        cursor.execute(statement)
        found: list[Any] = cursor.fetchall()
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "true"})
        return found

    def _insert_new(self, *, labelled: bool) -> str:
        recorded = ""
        if self._tells:
            columns = ", ".join(_HISTORY_COLUMNS)
            recorded = (
                f"recorded AS (INSERT INTO {self._name('history')} ({columns}) "
                f"SELECT {columns} FROM {_STAGE} JOIN new USING (endpoint, id)), "
            )
        if labelled:
            columns = ", ".join(_LABEL_COLUMNS)
            recorded += (
                f"labelled AS (INSERT INTO {self._name('labels')} ({columns}) "
                f"SELECT {columns} FROM {_STAGED_LABELS} JOIN new USING (endpoint, id)), "
            )
        keys, columns = ", ".join(_KEY_COLUMNS), ", ".join(_ROW_COLUMNS)
        return (
            f"WITH new AS (INSERT INTO {self._name('keys')} ({keys}) SELECT {keys} FROM {_STAGE} "
            'ORDER BY endpoint COLLATE "C", id COLLATE "C" ON CONFLICT DO NOTHING '
            f"RETURNING endpoint, id), {recorded}"
            f"stored AS (INSERT INTO {self._name('timeouts')} ({columns}) "
            f"SELECT {columns} FROM {_STAGE} JOIN new USING (endpoint, id) RETURNING 1) "
            "SELECT count(*) FROM stored"
        )

    def known_to_others(self) -> str:
        """Return SQL for the staged ids that other runs stored.

        A retried task meets its own ids.
        """
        return (
            f"SELECT s.id FROM {_STAGE} s JOIN {self._name('keys')} k USING (endpoint, id) "
            f"WHERE NOT EXISTS (SELECT 1 FROM {self._name('timeouts')} t "
            "WHERE t.endpoint = k.endpoint AND t.due = k.due AND t.id = k.id "
            "AND t.run_id = s.run_id) "
            # A timeout that was sent since is only in the history. Look it up by id: without
            # statistics the server would otherwise read the whole endpoint for each id.
            f"AND NOT EXISTS (SELECT 1 FROM {self._name('history')} h "
            "WHERE h.id = k.id AND h.endpoint || '' = k.endpoint AND h.run_id = s.run_id)"
        )

    def _differing(self) -> str:
        """Return SQL for the stored rows that seem to differ; see ``_differing_ids``."""
        differs = " OR ".join(f"t.{name} IS DISTINCT FROM s.{name}" for name in COMPARED)
        return (
            # A rescheduled timeout (version > 0) may have another due time.
            f"SELECT * FROM (SELECT s.id, ({differs} OR (t.version = 0 "
            "AND coalesce(t.original_due, t.due) <> s.due)) "
            "AS differs, s.headers AS given, t.headers AS stored "
            f"FROM {_STAGE} s JOIN {self._name('keys')} k USING (endpoint, id) "
            f"JOIN {self._name('timeouts')} t "
            "ON t.endpoint = k.endpoint AND t.due = k.due AND t.id = k.id) both_ "
            f"WHERE differs OR (given <> stored AND {_timeless('given')} <> {_timeless('stored')})"
        )

    def _name(self, table: str) -> str:
        preparer = self._store.database.engine.dialect.identifier_preparer
        return preparer.format_table(getattr(self._store.tables, table))


def label_rows(rows: pa.Table) -> pa.Table | None:
    """Return the rows of labels for *rows*, whose instants are numbers; None without labels.

    Headers are parsed only if their text contains the name of the labels' header.
    """
    named = rows.filter(pc.match_substring(rows["headers"], f'"{LABELS}"'))
    found = [
        {"endpoint": row["endpoint"], "label": label, "due": row["due"], "id": row["id"]}
        for row in named.select(["endpoint", "due", "id", "headers"]).to_pylist()
        for label in labels_of(Message(id="loaded", headers=json.loads(row["headers"])))
    ]
    return pa.Table.from_pylist(found) if found else None


def _timeless(column: str) -> str:
    """Return SQL for the JSON text of headers without TIME_HEADERS, to compare as text."""
    names = "|".join(re.escape(name) for name in TIME_HEADERS)
    return f"""regexp_replace({column}, '"({names})": ?"[^"]*"', '', 'g')"""


def _differing_ids(rows: Sequence[Any]) -> list[str]:
    # Different texts may be the same headers in another order; only these few are parsed here.
    return [
        id_
        for id_, differs, given, stored in rows
        if differs or not same_headers(json.loads(given), json.loads(stored))
    ]
