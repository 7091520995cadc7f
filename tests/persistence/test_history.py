"""History is written with the change that it tells of, and undone with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, outcomes, rolled_back, timeout
from timeoutmgr.contracts import OutcomeKind
from timeoutmgr.persistence import SqlPersistence


@pytest.mark.parametrize("kind", [OutcomeKind.DISPATCHED, OutcomeKind.FAILED])
def test_history_is_undone_with_what_it_tells_of(
    sql_of: Callable[[str], SqlPersistence], unique: str, kind: OutcomeKind
) -> None:
    # PostgreSQL: on SQLite a second transaction would wait for the first, and tell by itself.
    persistence = sql_of("postgres")
    store = Stores(persistence, unique)(atomic=True)
    store.store_many([timeout("a")])

    with rolled_back(persistence.database) as transaction:
        chunk = store.claim(NOW, 1, "o", transaction=transaction)
        with store.take_many(chunk.token, chunk.keys, transaction=transaction) as taken:
            taken.close(outcomes(chunk.keys, kind))

    assert kind.value not in store.statistics().outcomes
