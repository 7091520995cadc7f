"""At a hundred million pending timeouts no statement of the hot paths is compiled or looks around.

The tables are small. PostgreSQL is told that they are not, and plans accordingly.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from tests.persistence.explaining import explained, planning_milliseconds
from tests.persistence.making import NOW, SECOND, dispatch, rolled_back, timeout
from tests.persistence.ranging import Installation
from tests.services.private import PrivateServer
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.partitions.catalog import DAY
from timeoutmgr.persistence.sql.store import SqlTimeoutStore
from timeoutmgr.transport.sql import SqlTransport

PENDING = 100_000_000
_DUE = 4
_COMPILED_FROM = 10_000
"""A tenth of the usual cost from which on PostgreSQL compiles: the pages of so many rows, which are
not there, would be the larger part of it."""
_PLANNED_WITHIN = 5.0
"""Milliseconds of planning on a processor, of a machine that runs the loop in _LOOP_SECONDS."""
_LOOP, _LOOP_SECONDS = 200_000, 0.0025
_RUNS = 5
_MOST_PLANNINGS = 20
_FORM = "ANALYZE, BUFFERS"  # without the costs, the plan would not list compiled functions
_PLANNED = ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")
_SETTINGS = ("jit", "plan_cache_mode", "enable_sort")
_SETTINGS_NOW = "SELECT " + ", ".join(f"current_setting('{name}')" for name in _SETTINGS)


@dataclass(frozen=True)
class Ran:
    """A statement, and the settings under which the product ran it."""

    sql: str
    values: Mapping[str, Any]
    settings: Mapping[str, str]


@pytest.fixture
def installation(
    private_server: Callable[[str], PrivateServer], persistence_of: Callable[..., SqlPersistence]
) -> Installation:
    """Tables on a server whose catalogue may be written."""
    settings = SqlSettings(clock="host")
    url = f"{private_server('postgres').url}?options=-c%20jit_above_cost%3D{_COMPILED_FROM}"
    made = Installation(persistence_of(url, prefix="big_", settings=settings), "big_")
    made.persistence.install()
    with closing(SqlTransport(made.persistence.database, prefix="big_")) as transport:
        transport.install()
        transport.session().create_queues(["billing"])
    return made


@pytest.mark.parametrize("partitions", [1, 27, 40])
def test_hot_statements_are_planned_at_once_and_never_compiled(
    installation: Installation, partitions: int
) -> None:
    engine = installation.persistence.database.engine
    _spread(installation, partitions)
    store = installation.store()
    assert isinstance(store, SqlTimeoutStore)
    for day in range(partitions):
        store.store_many([timeout(f"day {day}", NOW + (day - 1) * DAY)])
    store.store_many([timeout(f"due {n}", NOW - 1_000 - n) for n in range(4 * _DUE)])
    _pretend(engine)
    slowness = max(1.0, _seconds_of_a_loop() / _LOOP_SECONDS)

    with _noted(engine) as ran:
        _use(installation, store)

    assert len(ran) > 20
    for one in ran:
        plans = _plans(engine, one)
        shown = "\n".join([one.sql, str(one.values), *plans[-1]])
        assert _compiled(plans[0]) == 0, shown
        assert _is_planned_within(_PLANNED_WITHIN * slowness, engine, one), shown
        assert min(map(_buffers, plans)) <= 20 * _rows_of(one), shown


def test_without_the_setting_a_poll_is_compiled(installation: Installation) -> None:
    # Otherwise the test above could not fail.
    engine = installation.persistence.database.engine
    installation.store().store_many([timeout(f"due {n}", NOW - n) for n in range(100)])
    _pretend(engine)

    with _noted(engine) as ran:
        installation.store().claim(NOW, 100, "o")

    polls = [one for one in ran if "LIMIT" in one.sql]
    assert polls
    for one in polls:
        plan = explained(engine, one.sql, one.values, {**one.settings, "jit": "on"}, _FORM)
        assert _compiled(plan) > 0, plan


def _seconds_of_a_loop() -> float:
    """Return the processor time of a loop in Python: machines differ by a factor of two."""
    seconds = []
    for _ in range(_RUNS):
        began = time.process_time()
        for _number in range(_LOOP):
            pass
        seconds.append(time.process_time() - began)
    return min(seconds)


def _use(installation: Installation, store: SqlTimeoutStore) -> None:
    """Have *store* do all that it does again and again."""
    chunk = store.claim(NOW, _DUE, "o")
    second = store.claim(NOW, _DUE, "o")  # beside the claim in force
    dispatch(store, chunk)
    with store.lock_for_dispatch(second.token, second.keys):
        pass  # given back
    store.notify_stored(NOW - SECOND)
    store.claim(NOW, _DUE, "o")  # all gaps are looked at again
    installation.store().claim(NOW, _DUE, "o")  # it knows of nothing due, and looks first
    _move(installation, store)
    store.next_due()
    store.store_many([timeout("new"), timeout("newer", NOW + DAY)])
    store.store_many([timeout("new")])
    store.key_of("day 0")
    store.cancel("day 0")
    store.cancel("never seen")
    store.reschedule("new", NOW + 2 * DAY)
    store.heartbeat("o", {})
    store.purge()


def _move(installation: Installation, store: SqlTimeoutStore) -> None:
    database = installation.persistence.database
    with closing(SqlTransport(database, prefix="big_")) as transport:
        rows = transport.message_rows()
        assert rows is not None
        move = store.mover(rows, lambda destination: True)
    assert move is not None
    with rolled_back(database) as transaction:
        chunk = store.claim(NOW, _DUE, "o", transaction=transaction)
        assert len(move(chunk.token, chunk.keys, NOW, transaction)[1]) == _DUE


def _plans(engine: Engine, one: Ran) -> list[list[str]]:
    return [explained(engine, one.sql, one.values, one.settings, _FORM) for _ in range(_RUNS)]


def _is_planned_within(milliseconds: float, engine: Engine, one: Ran) -> bool:
    """Plan *one* until a plan is made in time: first the server reads its catalogue."""
    return any(
        planning_milliseconds(engine, one.sql, one.values, one.settings) <= milliseconds
        for _ in range(_MOST_PLANNINGS)
    )


def _rows_of(one: Ran) -> int:
    """Return how many keys *one* was given: it writes several pages for each."""
    arrays = [value for value in one.values.values() if re.match(r"\{[^:]+\}$", str(value))]
    return max([1, *(str(array).count(",") + 1 for array in arrays)])


def _compiled(plan: list[str]) -> int:
    return sum(int(found[1]) for line in plan if (found := re.search(r"Functions: (\d+)", line)))


def _buffers(plan: list[str]) -> int:
    """Return the pages that the statement read, without the pages of its planning."""
    lines = plan[: plan.index("Planning:")] if "Planning:" in plan else plan
    found = next((line for line in lines if "Buffers:" in line), "")
    return sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", found))


@contextmanager
def _noted(engine: Engine) -> Iterator[list[Ran]]:
    """Record the statements about timeouts, each of them once."""
    ran: dict[str, Ran] = {}
    noted: list[Ran] = []

    def note(connection: Connection, _u: Any, sql: str, values: Any, _x: Any, many: bool) -> None:
        if not sql.startswith(_PLANNED) or " VALUES " in sql:
            return  # an insert of plain values needs no plan
        driver: Any = connection.connection.driver_connection
        settings = driver.execute(_SETTINGS_NOW).fetchone()
        given = values[0] if many else values
        ran[sql] = Ran(sql, given or {}, dict(zip(_SETTINGS, settings, strict=True)))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(engine, "before_cursor_execute", note)
    noted.extend(ran.values())


def _spread(installation: Installation, partitions: int) -> None:
    """Have *partitions* of a day each, but for the first and the last, hold the timeouts."""
    if partitions == 1:
        return
    bounds = [NOW - NOW % DAY + day * DAY for day in range(partitions - 1)]
    ends = ["MINVALUE", *map(str, bounds), "MAXVALUE"]
    with installation.persistence.database.begin() as connection:
        connection.execute(text("DROP TABLE big_timeouts_all"))
        for number, (start, end) in enumerate(pairwise(ends)):
            connection.execute(
                text(
                    f"CREATE TABLE big_timeouts_p{number} PARTITION OF big_timeouts "
                    f"FOR VALUES FROM ({start}) TO ({end})"
                )
            )


def _pretend(engine: Engine) -> None:
    """Tell PostgreSQL that each table and index of ours holds a hundred million rows in all.

    The planner reads the rows of each page from the catalogue, and the pages from the file. The
    stored rows give the shares: all rows belong to the same endpoint, and none is hidden.
    """
    with engine.begin() as connection:
        connection.execute(text("ANALYZE"))
        connection.execute(
            text(
                "UPDATE pg_class SET relpages = 1, reltuples = :rows / (CASE WHEN relispartition"
                " THEN (SELECT count(*) FROM pg_inherits WHERE inhparent = 'big_timeouts'::regclass"
                ") ELSE 1 END) WHERE relname LIKE 'big\\_%' AND relkind IN ('r', 'i')"
            ),
            {"rows": PENDING},
        )
