"""A transaction that holds a stream back is reported, in any database of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, create_engine, text

from tests.support.clock import FakeClock
from tests.support.waiting import eventually
from timeoutmgr.pipeline.jobs.stream import Lag, LagReporter, lag_of
from timeoutmgr.pipeline.stores import Store

WRITES = text("SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)")


@contextmanager
def transaction_elsewhere(store: Store) -> Iterator[Connection]:
    """Keep a transaction open in another database of the server."""
    engine = create_engine(store.database.url.set(database="postgres"))
    with engine.connect() as connection, connection.begin():
        yield connection
    engine.dispose()


def test_a_transaction_in_another_database_is_named_with_its_process(postgres: Store) -> None:
    with transaction_elsewhere(postgres) as other:
        xid = int(other.execute(WRITES).scalar_one())
        pid = int(other.execute(text("SELECT pg_backend_pid()")).scalar_one())
        with postgres.database.begin() as connection:
            connection.execute(WRITES)
        # The server is not ours alone: until then an older transaction is reported.
        eventually(lambda: lag_of(postgres).xid >= xid, "it is the oldest", 60)

        lag = lag_of(postgres)

    assert (lag.xid, lag.pid, lag.database) == (xid, pid, "postgres")
    assert lag.transactions >= 2
    assert lag.seconds is not None
    assert f"of process {pid} in database 'postgres'" in lag.described()
    assert f"pg_terminate_backend({pid})" in lag.described()


def test_a_lag_is_logged_after_half_a_minute_and_then_once_a_minute() -> None:
    clock = FakeClock()
    reported: list[str] = []
    lag = Lag(xid=7, transactions=3, pid=1, database="other")
    teller = LagReporter(lambda: lag, clock.monotonic, reported.append)
    at: list[float] = []

    for _ in range(120):
        teller.poll()
        at += [clock.monotonic() - 1_000] * (len(reported) - len(at))
        clock.advance(1)

    assert at == [30, 90]


def test_a_transaction_that_ends_soon_is_not_logged() -> None:
    clock = FakeClock()
    reported: list[str] = []
    numbers = iter(range(1_000))
    teller = LagReporter(
        lambda: Lag(xid=next(numbers), transactions=3), clock.monotonic, reported.append
    )

    for _ in range(120):
        teller.poll()
        clock.advance(1)

    assert reported == []


def test_no_lag_is_logged_if_no_event_waits() -> None:
    clock = FakeClock()
    reported: list[str] = []
    teller = LagReporter(lambda: Lag(xid=7, transactions=0), clock.monotonic, reported.append)

    for _ in range(120):
        teller.poll()
        clock.advance(1)

    assert reported == []


def test_a_prepared_transaction_is_named_with_its_end() -> None:
    lag = Lag(xid=7, transactions=3, database="shop", prepared="pay-1", seconds=61.4)

    assert lag.described() == (
        "transaction 7 prepared as 'pay-1' in database 'shop', open for 61 s, holds 3 transactions "
        "back; wait for it, or end it: ROLLBACK PREPARED 'pay-1'"
    )


def test_a_transaction_that_has_ended_since_has_no_process_to_end() -> None:
    assert Lag(xid=7, transactions=3).described() == (
        "transaction 7 held 3 transactions back, and has ended"
    )
