"""Due times are compared with the database's clock, never with the host's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tests.persistence.making import SECOND, SetClock, dispatch, ids, outcomes, timeout
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Chunk, Clock, Key, SendResult, TimeoutStore, TransactionMode
from timeoutmgr.database import Database
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire
from timeoutmgr.message.validation import Limits
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql.dispatch.lock import LockedRows
from timeoutmgr.persistence.sql.store import SqlTimeoutStore
from timeoutmgr.satellites.timeout_manager.dispatcher import DispatchTimeouts
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.sql import SqlTransport
from timeoutmgr.transport.work import Work

HOUR = 3_600 * SECOND


@pytest.fixture(params=["postgres", "mysql"])
def persistence(request: pytest.FixtureRequest, unique: str) -> Iterator[SqlPersistence]:
    """A persistence that goes by the database's clock."""
    made = SqlPersistence(request.getfixturevalue(f"{request.param}_url"), prefix=f"{unique}_")
    made.install()
    yield made
    made.close()


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
@pytest.mark.behaviour(54, 55)
def test_a_wrong_host_clock_makes_nothing_early_or_late(
    persistence: SqlPersistence, skew: int
) -> None:
    right = SystemClock()
    wrong = SetClock(right.now() + skew)
    store = persistence.timeouts("e", wrong)
    due, later = right.now() - 1, right.now() + HOUR // 2
    store.store_many([timeout("due", due), timeout("later", later)])

    chunk = store.claim(wrong.now(), 10, "o")
    with store.lock_for_dispatch(chunk.token, [*chunk.keys, Key(later, "later")]) as locked:
        locked_ids = [one.id for one in locked.timeouts]
        locked.close(outcomes(chunk.keys, at=right.now()))

    assert ids(chunk) == locked_ids == ["due"]
    assert chunk.next_due == later
    assert abs(store.now() - right.now()) < 5 * SECOND


def _send_on(store: TimeoutStore, chunk: Chunk, clock: Clock, transport: FakeTransport) -> None:
    step = DispatchTimeouts(
        store=store,
        error_queue="error",
        limits=Limits(),
        clock=clock,
        telemetry=(telemetry := Counters()),
    )
    receiver = FakeReceiver(transport, "control")
    with Work(transport.session(), receiver, TransactionMode.RECEIVE_ONLY) as work:
        step.dispatch(chunk.token, chunk.keys, work)
    assert telemetry.snapshot().get("timeouts_gone", 0) == 0


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_a_wrong_host_clock_neither_skips_nor_lengthens_the_pause_after_a_refusal(
    persistence: SqlPersistence, skew: int
) -> None:
    right = SystemClock()
    wrong = SetClock(right.now() + skew)
    store, transport = persistence.timeouts("e", wrong), FakeTransport("billing")
    # The fourth attempt: the pause after it is long enough for a slow machine.
    store.store_many([replace(timeout("a", right.now() - 1), attempts=3)])
    transport.script("billing", SendResult.REFUSED)
    began = right.now()

    _send_on(store, store.claim(wrong.now(), 10, "o"), wrong, transport)
    waiting = store.claim(wrong.now(), 10, "o")

    assert waiting.keys == ()
    assert waiting.next_due == pytest.approx(began + 8 * SECOND, abs=5 * SECOND)


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_a_dispatch_is_recorded_by_the_databases_clock(
    persistence: SqlPersistence, skew: int
) -> None:
    right = SystemClock()
    wrong = SetClock(right.now() + skew)
    store, transport = persistence.timeouts("e", wrong), FakeTransport("billing")
    due = right.now() - SECOND
    store.store_many([timeout("a", due)])

    _send_on(store, store.claim(wrong.now(), 10, "o"), wrong, transport)

    [sent] = transport.messages("billing")
    late = from_wire(sent.headers[headers.DISPATCHED_AT]) - due
    assert SECOND <= late < 60 * SECOND
    assert store.statistics().lateness_max == late


def test_locked_rows_know_how_the_databases_time_goes_on(persistence: SqlPersistence) -> None:
    wrong = SetClock()
    store = persistence.timeouts("e", wrong)
    store.store_many([timeout("a", 1)])
    chunk = store.claim(0, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        assert isinstance(locked, LockedRows)
        at_first = locked.now()
        wrong.at += 7 * SECOND
        later = locked.now()

    assert later - at_first == 7 * SECOND


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_a_move_is_recorded_by_the_databases_clock(
    postgres_url: str, unique: str, skew: int
) -> None:
    right, database = SystemClock(), Database.shared(postgres_url)
    wrong = SetClock(right.now() + skew)
    with (
        closing(SqlTransport(database, prefix=f"{unique}_")) as transport,
        closing(SqlPersistence(database, prefix=f"{unique}_")) as persistence,
    ):
        persistence.install()
        transport.install()
        transport.session().create_queues(["billing"])
        store = persistence.timeouts("e", wrong, atomic_dispatch=True)
        assert isinstance(store, SqlTimeoutStore)
        rows = transport.message_rows()
        assert rows is not None
        move = store.mover(rows, lambda name: True)
        assert move is not None
        one = timeout("a", right.now() - SECOND)
        store.store_many([one])

        with database.begin() as transaction:
            at, moved = move("", [one.key], wrong.now(), transaction)
        late = store.statistics().lateness_max

    assert moved == {one.key: one.destination}
    assert SECOND <= at - one.due < 60 * SECOND
    assert late is not None
    assert SECOND <= late < 60 * SECOND


@pytest.mark.behaviour(55)
def test_a_heartbeat_tells_how_far_ahead_the_databases_clock_is(
    postgres_url: str, unique: str
) -> None:
    with closing(SqlPersistence(postgres_url, prefix=f"{unique}_")) as persistence:
        persistence.install()
        wrong = SetClock(SystemClock().now() - HOUR)
        store = persistence.timeouts("e", wrong)

        first, second = store.heartbeat("o", {}), store.heartbeat("o", {})
        store.unregister_process("o")

    assert first is None
    assert second == pytest.approx(HOUR, abs=60 * SECOND)


@pytest.mark.behaviour(121)
def test_the_databases_clock_has_microseconds(persistence: SqlPersistence) -> None:
    store = persistence.timeouts("e", SetClock())

    readings = [store.now() for _ in range(20)]

    assert readings == sorted(readings)
    assert any(reading % 1_000 for reading in readings)


def test_a_timeout_due_by_the_database_is_dispatched_to_the_end(
    persistence: SqlPersistence,
) -> None:
    store = persistence.timeouts("e", SetClock(0))
    store.store_many([timeout(f"{n}", n) for n in range(5)])

    chunk = store.claim(0, 10, "o")

    assert len(dispatch(store, chunk, at=SystemClock().now())) == 5
