"""A poller that polls once an hour claims the rows of a killed process on time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from chaos.forkserver_client import ForkServer
from tests.persistence.making import SECOND, timeout
from tests.satellites.polling import RECEIVE, SOON, Watching
from tests.support.clock import FakeClock
from tests.support.forked import forked
from tests.support.forks import ended_in_a_child
from tests.support.makers import a_breaker
from tests.support.ports import FakeTransport
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Wakeups
from timeoutmgr.database import Database
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql.maintenance import DuePeek, FileWakeups
from timeoutmgr.persistence.sql.store import SqlTimeoutStore
from timeoutmgr.satellites.poller import Poller, PollTimeouts
from timeoutmgr.sender.sender import SessionPool

_CHILD = """
import sys
from datetime import timedelta
from tests.persistence.making import SECOND, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites.timeout_manager.wakeups import OtherPollers

url, prefix, asks = sys.argv[1:]
clock = SystemClock()
store = SqlPersistence(url, prefix=prefix).timeouts("e", clock)
others = OtherPollers(
    store.wakeups(lambda _due=None: None), endpoint="e", interval=timedelta(minutes=1),
    now=clock.now,
)
others.start()
store.heartbeat("child", {})
print("lives", flush=True)
sys.stdin.readline()
due = clock.now() + 2 * SECOND
store.store_many([timeout("a", due)])
if asks == "asks":
    others.stored(due)
print("stored", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("asks", ["asks", "dies before it asks"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_timeout_of_a_killed_process_is_claimed_when_it_is_due(
    kind: str, asks: str, unique: str, request: pytest.FixtureRequest, fork_server: ForkServer
) -> None:
    url, prefix = request.getfixturevalue(f"{kind}_url"), f"{unique}_"
    persistence = SqlPersistence(url, prefix=prefix)
    persistence.install()
    store = persistence.timeouts("e", SystemClock())
    telemetry = Watching()
    poller = _poller(store, telemetry)
    wakeups = store.wakeups(poller.poll_now)
    with forked(fork_server, _CHILD, url, prefix, asks) as child:
        try:
            assert child.stdout.readline() == "lives\n"
            store.heartbeat("survivor", {})  # now the survivor knows that it is not alone
            poller.start()
            assert telemetry.reaches("polls", 1)
            wakeups.check()
            if kind == "postgres":
                assert telemetry.reaches("polls", 2)  # for a NOTIFY before the connection listened
            child.stdin.write("store\n")
            child.stdin.flush()
            assert child.stdout.readline() == "stored\n"
        finally:
            child.kill()

    assert _reaches(telemetry, "timeouts_claimed", 1, wakeups)
    wakeups.close()
    poller.stop()
    persistence.close()


def _poller(store: SqlTimeoutStore, telemetry: Watching) -> Poller:
    """Return a poller that polls once an hour unless it is asked."""
    return Poller(
        PollTimeouts(
            store=store,
            queue="control",
            owner="survivor",
            mode=RECEIVE,
            chunk=100,
            clock=SystemClock(),
            new_id=lambda: "c",
            telemetry=telemetry,
        ),
        interval=timedelta(hours=1),
        sessions=SessionPool(FakeTransport("control")),
        fetch=a_breaker(FakeClock(), 1),
        ready=lambda: None,
        clock=SystemClock(),
        telemetry=telemetry,
        on_clock_offset=lambda _seconds: None,
    )


def test_a_process_that_is_alone_listens_on_no_connection(unique: str, postgres_url: str) -> None:
    persistence = SqlPersistence(Database(postgres_url), prefix=f"{unique}_")
    persistence.install()
    store = persistence.timeouts("e", SystemClock())
    opened = _connections_apart(persistence.database)
    wakeups = store.wakeups(lambda _due=None: None)

    for _heartbeat in range(2):
        store.heartbeat("alone", {})
        wakeups.check()
    wakeups.notify()

    assert opened() == 0
    wakeups.close()
    persistence.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_process_does_not_ask_itself(
    kind: str, unique: str, request: pytest.FixtureRequest
) -> None:
    url, prefix = request.getfixturevalue(f"{kind}_url"), f"{unique}_"
    persistence = SqlPersistence(url, prefix=prefix)
    persistence.install()
    watching = Watching()
    one, other = (persistence.timeouts("e", SystemClock()) for _ in range(2))
    mine = one.wakeups(lambda _due=None: watching.count("mine"))
    theirs = other.wakeups(lambda _due=None: watching.count("theirs"))
    for owner, store in (("other", other), ("one", one), ("other", other)):
        store.heartbeat(owner, {})
    for wakeups in (mine, theirs):
        wakeups.check()
    first = 1 if kind == "postgres" else 0  # the first check: notifications before LISTEN were lost
    assert watching.reaches("mine", first)
    assert watching.reaches("theirs", first)

    mine.notify()
    assert _reaches(watching, "theirs", first + 1, theirs)
    theirs.notify()  # heard after any notification that this process sent itself
    assert _reaches(watching, "mine", first + 1, mine)
    assert watching.snapshot() == {"mine": first + 1, "theirs": first + 1}
    for wakeups in (mine, theirs):
        wakeups.close()
    persistence.close()


def test_a_process_that_asks_beside_another_process_hears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    here, there = (
        FileWakeups(tmp_path / "wakeups", lambda _due=None, name=name: woken.append(name))
        for name in ("here", "there")
    )
    touch = os.utime

    def touch_before_the_other(path: Path, *, ns: tuple[int, int]) -> None:
        monkeypatch.setattr(os, "utime", touch)
        touch(path, ns=ns)
        there.notify()

    monkeypatch.setattr(os, "utime", touch_before_the_other)

    here.notify()
    for wakeups in (here, there):
        wakeups.check()

    assert woken == ["there", "here"]


def test_a_process_hears_its_forked_child(unique: str, postgres_url: str) -> None:
    persistence = SqlPersistence(postgres_url, prefix=f"{unique}_")
    persistence.install()
    store, other = (persistence.timeouts("e", SystemClock()) for _ in range(2))
    watching = Watching()
    wakeups = store.wakeups(lambda _due=None: watching.count("heard"))
    for owner, each in (("other", other), ("parent", store)):
        each.heartbeat(owner, {})

    def ask_in_the_child() -> int:
        wakeups.notify()
        return 0

    wakeups.check()
    assert watching.reaches("heard", 1)  # the first check: notifications before LISTEN were lost
    assert ended_in_a_child(ask_in_the_child) == 0

    assert watching.reaches("heard", 2)
    wakeups.close()
    persistence.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_a_process_that_is_alone_peeks_at_nothing(
    kind: str, unique: str, request: pytest.FixtureRequest
) -> None:
    persistence = SqlPersistence(request.getfixturevalue(f"{kind}_url"), prefix=f"{unique}_")
    persistence.install()
    store = persistence.timeouts("e", SystemClock())
    wakeups = store.wakeups(lambda _due=None: None)

    store.heartbeat("alone", {})
    wakeups.check()
    assert "timeoutmgr-due-peek" not in _threads()

    persistence.timeouts("e", SystemClock()).heartbeat("other", {})
    store.heartbeat("alone", {})
    wakeups.check()
    assert "timeoutmgr-due-peek" in _threads()
    wakeups.close()
    assert "timeoutmgr-due-peek" not in _threads()
    persistence.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_a_peek_tells_the_first_due_time_that_has_not_passed(
    kind: str, unique: str, request: pytest.FixtureRequest
) -> None:
    persistence = SqlPersistence(request.getfixturevalue(f"{kind}_url"), prefix=f"{unique}_")
    persistence.install()
    store = persistence.timeouts("e", SystemClock())
    watching, woken = Watching(), set()

    def wake(due: int | None = None) -> None:
        woken.add(due)
        watching.count("woken")

    peek = DuePeek(store.context, wake, lambda: True)
    now = store.now()
    dues = [now - 3600 * SECOND, now + 3600 * SECOND, now + 7200 * SECOND]
    store.store_many([timeout(f"t{due}", due) for due in dues])

    peek.check()
    assert watching.reaches("woken", 1)
    peek.close()

    assert woken == {dues[1]}
    persistence.close()


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def _reaches(telemetry: Watching, event: str, count: int, wakeups: Wakeups) -> bool:
    """Wait for *event*, and call the check of *wakeups* meanwhile, as the watchdog does."""
    for _check in range(100):
        wakeups.check()
        if telemetry.reaches(event, count, within=SOON / 100):
            return True
    return False


def _connections_apart(database: Database) -> Callable[[], int]:
    opened: list[object] = []
    event.listen(database.apart, "connect", lambda connection, _record: opened.append(connection))
    return lambda: len(opened)
