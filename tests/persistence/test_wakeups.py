"""A poller that polls once an hour claims the rows of a killed process on time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.satellites.polling import RECEIVE, SOON, Watching
from tests.support.clock import FakeClock
from tests.support.makers import a_breaker
from tests.support.ports import FakeTransport
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Wakeups
from timeoutmgr.database import Database
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites.poller import Poller, PollTimeouts
from timeoutmgr.sender.sender import SessionPool

_ROOT = Path(__file__).parents[2]
_CHILD = """
import sys
from datetime import timedelta
from tests.persistence.making import SECOND, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites.timeout_manager.wakeups import OtherPollers

url, prefix = sys.argv[1:]
clock = SystemClock()
store = SqlPersistence(url, prefix=prefix).timeouts("e", clock)
others = OtherPollers(
    store.wakeups(lambda: None), endpoint="e", interval=timedelta(minutes=1), now=clock.now
)
others.start()
store.heartbeat("child", {})
print("lives", flush=True)
sys.stdin.readline()
due = clock.now() + 2 * SECOND
store.store_many([timeout("a", due)])
others.stored(due)
print("stored", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_timeout_of_a_killed_process_is_claimed_when_due(
    kind: str, unique: str, request: pytest.FixtureRequest
) -> None:
    url, prefix = request.getfixturevalue(f"{kind}_url"), f"{unique}_"
    persistence = SqlPersistence(url, prefix=prefix)
    persistence.install()
    store = persistence.timeouts("e", SystemClock())
    telemetry, transport = Watching(), FakeTransport("control")
    poller = Poller(
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
        sessions=SessionPool(transport),
        fetch=a_breaker(FakeClock(), 1),
        ready=lambda: None,
        clock=SystemClock(),
        telemetry=telemetry,
        on_clock_offset=lambda _seconds: None,
    )
    wakeups = store.wakeups(poller.poll_now)
    assert wakeups is not None
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, url, prefix],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "lives\n"
            store.heartbeat("survivor", {})  # now the survivor knows that it is not alone
            poller.start()
            polls = 1
            assert telemetry.reaches("polls", polls)
            wakeups.check()
            if kind == "postgres":
                polls += 1  # the first check: notifications before LISTEN were lost
                assert telemetry.reaches("polls", polls)
            child.stdin.write("store\n")
            child.stdin.flush()
            assert child.stdout.readline() == "stored\n"
            assert _reaches(telemetry, "polls", polls + 1, wakeups)
        finally:
            child.kill()

    assert telemetry.reaches("timeouts_claimed", 1)
    wakeups.close()
    poller.stop()
    persistence.close()


def test_a_process_that_is_alone_listens_on_no_connection(unique: str, postgres_url: str) -> None:
    persistence = SqlPersistence(Database(postgres_url), prefix=f"{unique}_")
    persistence.install()
    store = persistence.timeouts("e", SystemClock())
    opened = _connections_apart(persistence.database)
    wakeups = store.wakeups(lambda: None)
    assert wakeups is not None

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
    heard = Watching()
    one, other = (persistence.timeouts("e", SystemClock()) for _ in range(2))
    mine = one.wakeups(lambda: heard.count("mine"))
    theirs = other.wakeups(lambda: heard.count("theirs"))
    assert mine is not None
    assert theirs is not None
    for owner, store in (("other", other), ("one", one), ("other", other)):
        store.heartbeat(owner, {})
    for wakeups in (mine, theirs):
        wakeups.check()
    first = 1 if kind == "postgres" else 0  # the first check: notifications before LISTEN were lost
    assert heard.reaches("mine", first)
    assert heard.reaches("theirs", first)

    mine.notify()
    assert _reaches(heard, "theirs", first + 1, theirs)
    theirs.notify()  # heard after any notification that this process sent itself
    assert _reaches(heard, "mine", first + 1, mine)
    assert heard.snapshot() == {"mine": first + 1, "theirs": first + 1}
    for wakeups in (mine, theirs):
        wakeups.close()
    persistence.close()


@pytest.mark.parametrize("url", ["mysql_url"])
def test_a_server_without_a_way_to_ask_has_no_wakeups(
    url: str, unique: str, request: pytest.FixtureRequest
) -> None:
    persistence = SqlPersistence(request.getfixturevalue(url), prefix=f"{unique}_")

    assert persistence.timeouts("e", SystemClock()).wakeups(lambda: None) is None
    persistence.close()


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
