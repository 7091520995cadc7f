"""The pool of connections lends in the order of asking."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, exc

from tests.support.waiting import eventually
from timeoutmgr.database.fair_pool import FairPool, FairSemaphore


def test_a_release_admits_the_waiting_thread_before_the_thread_that_releases() -> None:
    semaphore = FairSemaphore(1)
    admitted: list[bool] = []
    assert semaphore.acquire(0)
    waits = threading.Thread(target=lambda: admitted.append(semaphore.acquire(60)))
    waits.start()
    eventually(lambda: len(semaphore._waiting) == 1, "the thread waits")

    semaphore.release()

    assert not semaphore.acquire(0)
    waits.join()
    assert admitted == [True]
    semaphore.release()
    assert semaphore.acquire(0)


def test_a_thread_that_gives_up_waiting_is_not_admitted_later() -> None:
    semaphore = FairSemaphore(1)
    assert semaphore.acquire(0)
    assert not semaphore.acquire(0)

    semaphore.release()

    assert semaphore.acquire(0)


class Interrupted(BaseException):
    """Raised by the handler of a signal."""


def test_a_thread_that_is_interrupted_while_it_waits_is_not_admitted_later() -> None:
    semaphore = FairSemaphore(1)
    assert semaphore.acquire(0)

    def interrupt(_signal: int, _frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            semaphore.acquire(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    semaphore.release()
    assert semaphore.acquire(0)


class Forgotten:
    """A place in a cycle of objects, which the garbage collector releases."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self.itself, self.semaphore = self, semaphore

    def __del__(self) -> None:
        self.semaphore.release()


@pytest.mark.parametrize("allocations", range(1, 24))
def test_the_garbage_collector_may_release_a_place_at_any_allocation_of_a_thread_that_waits(
    allocations: int,
) -> None:
    semaphore = FairSemaphore(1)
    assert semaphore.acquire(0)
    before = gc.get_threshold()
    gc.collect()
    try:
        gc.set_threshold(allocations)
        Forgotten(semaphore)
        is_admitted = semaphore.acquire(0.05)
    finally:
        gc.set_threshold(*before)

    gc.collect()

    assert semaphore.acquire(0) is not is_admitted


def test_a_pool_lends_every_connection_and_refuses_the_next_by_its_name(tmp_path: Path) -> None:
    engine = create_engine(
        f"sqlite:///{tmp_path / 'x.db'}",
        poolclass=FairPool,
        pool_size=1,
        max_overflow=1,
        pool_timeout=0,
    )
    lent = [engine.connect(), engine.connect()]

    with pytest.raises(exc.TimeoutError, match="all 2 connections of the pool were lent"):
        engine.connect()

    for connection in lent:
        connection.detach()
        connection.close()
    with engine.connect(), engine.connect():
        pass
    engine.dispose()


def test_a_connection_that_cannot_be_made_is_not_counted_as_lent(tmp_path: Path) -> None:
    engine = create_engine(
        f"sqlite:///{tmp_path / 'x.db'}", poolclass=FairPool, pool_size=1, max_overflow=0
    )

    @event.listens_for(engine, "do_connect")
    def refuse(*_given: object) -> None:
        raise ConnectionRefusedError

    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            engine.connect()

    event.remove(engine, "do_connect", refuse)
    with engine.connect():
        pass
    engine.dispose()


def test_a_race_for_the_last_connection_costs_the_pool_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(
        f"sqlite:///{tmp_path / 'x.db'}",
        poolclass=FairPool,
        pool_size=1,
        max_overflow=1,
        pool_timeout=0,
    )
    count, answers = FairPool._inc_overflow, [False]  # False: another thread was faster
    monkeypatch.setattr(
        FairPool, "_inc_overflow", lambda pool: answers.pop() if answers else count(pool)
    )

    engine.connect().close()

    assert answers == []
    with engine.connect(), engine.connect():
        pass
    engine.dispose()


def test_a_connection_that_returns_after_the_disposal_of_its_pool_is_closed(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}", poolclass=FairPool)
    closed: list[object] = []
    event.listen(engine, "close", lambda connection, _record: closed.append(connection))
    with engine.connect() as lent:
        own = lent.connection.driver_connection
        engine.dispose()
        assert closed == []

    assert closed == [own]
