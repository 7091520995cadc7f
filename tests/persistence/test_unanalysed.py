"""PostgreSQL's plans for tables that were filled and never analysed: each follows an index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from tests.persistence.conftest import HOST
from tests.persistence.explaining import USES, rows_read
from tests.persistence.making import NOW, SetClock
from timeoutmgr.contracts import GroupBy, LoadWindow, TimeoutFilter, TimeoutState
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql import insight as bounds
from timeoutmgr.persistence.sql import queries
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

ROWS = 20_000
BOUND = 10
_FILL = """
INSERT INTO {p}timeouts (endpoint, due, id, destination, saga_id, message_id, headers, body,
    content_type, content_encoding, created, version, attempts)
SELECT 'e', :due + n * 7919 % :rows, 'id ' || n, 'q', 's' || n % :rows / 10, 'm', '{{}}', '',
    'text/plain', 'utf-8', 0, 0, 0 FROM generate_series(1, :rows) AS n
"""
_FILL_KEYS = """
INSERT INTO {p}timeout_keys (endpoint, id, due, version, state, maybe_sent)
SELECT endpoint, id, due, 0, :pending, 0 FROM {p}timeouts
"""
LATER = TimeoutFilter(due_from=NOW + ROWS // 2, due_before=NOW + ROWS)
OF_SAGA = TimeoutFilter(saga_id="s77", due_from=NOW, due_before=NOW + ROWS)
ANSWERS: dict[str, Callable[[SqlTimeoutStore], Any]] = {
    "count": lambda store: store.count_in_bounds(TimeoutFilter()),
    "count of a window": lambda store: store.count_in_bounds(LATER),
    "page": lambda store: store.list_in_bounds(LATER, limit=5),
    "page of a saga": lambda store: store.list_in_bounds(OF_SAGA, limit=5),
    "list": lambda store: store.list(LATER, limit=5),
    "list of a saga": lambda store: store.list(OF_SAGA, limit=5),
    "ids": lambda store: store.list_in_bounds(TimeoutFilter(id_prefix="id 77"), limit=5),
    "groups": lambda store: store.groups(LATER, GroupBy.TYPE, limit=5),
    "groups of all": lambda store: store.groups(TimeoutFilter(), GroupBy.TYPE, limit=BOUND),
    "list of all": lambda store: store.list(TimeoutFilter(), limit=BOUND),
    "load": lambda store: store.load(LoadWindow(NOW, ROWS // 4, 4), destination="q"),
    "overdue": lambda store: store.overdue(NOW + ROWS),
    "plan": lambda store: next(iter(store.key_pages(LATER, [], 2))),
}


@pytest.fixture
def store(
    postgres_url: str,
    unique: str,
    persistence_of: Callable[..., SqlPersistence],
    monkeypatch: pytest.MonkeyPatch,
) -> SqlTimeoutStore:
    """A store with ROWS timeouts of which the database knows no statistics."""
    for name in ("COUNTED", "LOOKED_AT"):
        monkeypatch.setattr(bounds, name, BOUND)
    made = persistence_of(postgres_url, prefix=f"{unique}_", settings=HOST)
    made.install()
    with made.database.engine.begin() as connection:
        leaf = f"ALTER TABLE {unique}_timeouts_all SET (autovacuum_enabled = off)"
        connection.execute(text(leaf))
        connection.execute(text(_FILL.format(p=f"{unique}_")), {"due": NOW, "rows": ROWS})
    return made.timeouts("e", SetClock())


def test_no_answer_reads_more_rows_than_its_bound(store: SqlTimeoutStore, unique: str) -> None:
    read: dict[str, dict[str, int]] = {}
    for name, answer in ANSWERS.items():
        for _ in range(USES):
            answer(store)
        with rows_read(store.context.database.engine, unique) as read[name]:
            answer(store)

    assert all(read.values())
    too_many = {
        name: {sql: rows for sql, rows in statements.items() if rows > BOUND + 2}
        for name, statements in read.items()
    }
    assert {name: found for name, found in too_many.items() if found} == {}


def test_a_plan_of_ids_reads_no_other_key_and_no_other_timeout(
    store: SqlTimeoutStore, unique: str
) -> None:
    engine = store.context.database.engine
    with engine.begin() as connection:
        leaf = f"ALTER TABLE {unique}_timeout_keys SET (autovacuum_enabled = off)"
        connection.execute(text(leaf))
        given = {"pending": TimeoutState.PENDING.value}
        connection.execute(text(_FILL_KEYS.format(p=f"{unique}_")), given)
    some, many = ([f"id {n}" for n in range(1, last)] for last in (BOUND, queries._TOGETHER))

    for _ in range(USES):
        [found] = store.key_pages(some, [], 2)
    with rows_read(engine, unique) as read:
        [found] = store.key_pages(some, [], 2)
        [more] = store.key_pages(many, [], 2)

    assert (len(found), len(more)) == (len(some), len(many))
    assert {sql: rows for sql, rows in read.items() if rows > 2 * queries._TOGETHER + 2} == {}
