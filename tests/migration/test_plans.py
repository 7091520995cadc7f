"""A plan is made in one walk over the keys, however many batches it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from tests.migration.conftest import Move, Pair, some
from timeoutmgr.migration import Window


def test_the_ends_of_all_batches_are_found_in_one_walk(
    persistences_of: Callable[[str], Pair], unique: str
) -> None:
    move = Move(persistences_of("postgres"), unique)
    move.source.store_many(some(2_000))
    parts = move.parts()
    database = move.source_persistence.database
    ran: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "length(" in statement:
            ran.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        ranges = [*parts.source.ranges(Window(), 100)]
    finally:
        event.remove(database.engine, "before_cursor_execute", note)

    [(statement, parameters)] = ran
    with database.read() as connection:
        connection.exec_driver_sql("SET LOCAL enable_sort = off")
        explained = connection.exec_driver_sql(f"EXPLAIN ANALYZE {statement}", parameters)
        plan = "\n".join(explained.scalars())
    assert len(ranges) == 20
    assert "Index" in plan, plan
    assert "Sort" not in plan, plan
    assert "Rows Removed by Filter" not in plan, plan
    parts.close()
