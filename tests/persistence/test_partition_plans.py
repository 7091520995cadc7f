"""With dozens of partitions, claim, lock and close read the few partitions of their keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.persistence.explaining import explained
from tests.persistence.making import NOW, SECOND, dispatch, timeout
from tests.persistence.ranging import Installation, fill, tend
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.partitions.catalog import DAY

Ran = list[tuple[str, Any]]


@pytest.fixture
def installation(
    postgres_url: str, unique: str, persistence_of: Callable[..., SqlPersistence]
) -> Installation:
    """Timeouts in each partition."""
    settings = SqlSettings(clock="host")
    made = Installation(
        persistence_of(postgres_url, prefix=f"{unique}_", settings=settings), f"{unique}_"
    )
    made.persistence.install()
    store = made.store()
    tend(store)
    fill(store, 2_000, NOW - 2 * DAY, 600 * DAY)
    return made


@pytest.mark.behaviour(124)
@pytest.mark.parametrize("generic", [False, True])
def test_few_partitions_are_read(installation: Installation, generic: bool) -> None:
    store = installation.store()
    engine = installation.persistence.database.engine
    dispatch(store, store.claim(NOW, 100, "o"))
    store.store_many([timeout(f"now {n}", NOW - n) for n in range(500)])

    with _noted(engine) as ran:
        chunk = store.claim(NOW, 100, "o")
        store.claim(NOW, 100, "o")  # beside the claim in force
        with _noted(engine) as taking:
            dispatch(store, chunk)
        installation.store().claim(NOW, 100, "o")  # it looks first, as it knows of nothing due
        store.next_due()
        store.cancel("now 499")
        store.reschedule("now 498", NOW + SECOND)

    about = [one for one in ran if _is_about_timeouts(one[0], installation)]
    assert len(about) >= 7
    assert len(taking) == 2  # read and locked, and then closed at once
    for sql, values in about:
        mode = "force_generic_plan" if generic else "force_custom_plan"
        plan = explained(engine, sql, values, {"plan_cache_mode": mode, "enable_sort": "off"})
        # A day, the past, and the partition that an open-ended peek reads first.
        assert len(_read(plan, installation)) <= 3, "\n".join([sql, str(values), *plan])
        assert not any("Sort Key" in line for line in plan if "LIMIT" in sql), plan


@contextmanager
def _noted(engine: Engine) -> Iterator[Ran]:
    ran: Ran = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, _x: Any, many: bool) -> None:
        ran.append((statement, parameters[0] if many else parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield ran
    finally:
        event.remove(engine, "before_cursor_execute", note)


def _is_about_timeouts(sql: str, installation: Installation) -> bool:
    table = f"{installation.prefix}timeouts"
    return (
        sql.startswith(("SELECT", "UPDATE", "DELETE")) and re.search(rf"{table}\b", sql) is not None
    )


def _read(plan: list[str], installation: Installation) -> set[str]:
    names = rf"\b{installation.prefix}timeouts_(past_\d+|far_\d+|\d+_\d+)\b(?!_)"
    return {
        found[0]
        for line in plan
        if "Scan" in line
        and "never executed" not in line
        and (found := re.search(names, line)) is not None
    }
