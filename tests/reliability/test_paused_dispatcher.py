"""A process is paused (SIGSTOP) for longer than its claim, with rows in its hands, and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.persistence.making import SECOND, SetClock, dispatch, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutState, TimeoutStore
from timeoutmgr.persistence import SqlPersistence, SqlSettings

HOUR = 3_600 * SECOND
BY_OUR_CLOCK = SqlSettings(clock="host")
_ROOT = Path(__file__).parents[2]

_PAUSED = """
import json, os, signal, sys
from tests.persistence.making import outcomes
from timeoutmgr.clock import SystemClock
from timeoutmgr.persistence import SqlPersistence, SqlSettings

url, prefix = json.loads(sys.argv[1])
persistence = SqlPersistence(url, prefix=prefix, settings=SqlSettings(clock="host"))
store = persistence.timeouts("e", SystemClock())
chunk = store.claim(SystemClock().now(), 10, "the paused one")
with store.lock_for_dispatch(chunk.token, chunk.keys) as taken:
    print(json.dumps([one.id for one in taken.timeouts]), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    sent = [one.key for one in taken.timeouts]
    taken.close(outcomes(sent))
print(json.dumps([key.id for key in sent]), flush=True)
persistence.close()
"""


class Paused:
    """A dispatcher that locked due timeouts, and stands still."""

    def __init__(self, url: str, prefix: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PAUSED, json.dumps([url, prefix])],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.took: list[str] = self._said()
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> list[str]:
        """Let it send and close its timeouts; return the sent ids."""
        self._process.send_signal(signal.SIGCONT)
        sent = self._said()
        assert self._process.wait(30) == 0
        return sent

    def close(self) -> None:
        """End it, wherever it stands."""
        self._process.kill()
        self._process.communicate()

    def _said(self) -> list[str]:
        assert self._process.stdout is not None
        found: list[str] = json.loads(self._process.stdout.readline())
        return found


@pytest.fixture
def clock() -> SetClock:
    return SetClock(SystemClock().now())


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def store(url: str, unique: str, clock: SetClock) -> Iterator[TimeoutStore]:
    persistence = SqlPersistence(url, prefix=f"{unique}_", settings=BY_OUR_CLOCK)
    persistence.install()
    with closing(persistence):
        yield persistence.timeouts("e", clock)


@pytest.mark.parametrize("url", ["postgres", "mysql"], indirect=True)
def test_with_row_locks_other_dispatchers_pass_by_and_repeat_nothing(
    store: TimeoutStore, url: str, unique: str, clock: SetClock
) -> None:
    store.store_many([timeout("a", 5), timeout("b", 6)])
    with closing(Paused(url, f"{unique}_")) as paused:
        clock.at += HOUR
        store.store_many([timeout("c", 7)])
        behind = _everything(store, clock)

        sent = paused.go_on()

    assert paused.took == sent == ["a", "b"]
    assert behind == ["c"]
    assert _everything(store, clock) == []
    assert [store.find(one) for one in "abc"] == [(TimeoutState.DISPATCHED, None)] * 3


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_without_row_locks_each_is_sent_once_more_and_no_oftener(
    store: TimeoutStore, url: str, unique: str, clock: SetClock
) -> None:
    store.store_many([timeout("a", 5), timeout("b", 6)])
    with closing(Paused(url, f"{unique}_")) as paused:
        clock.at += HOUR
        claimed_again = _everything(store, clock)

        sent = paused.go_on()

    assert sent == claimed_again == ["a", "b"]
    assert _everything(store, clock) == []
    assert [store.find(one) for one in "ab"] == [(TimeoutState.DISPATCHED, None)] * 2


def _everything(store: TimeoutStore, clock: SetClock) -> list[str]:
    """Return the timeouts that another process finds in two polls."""
    sent: list[str] = []
    for _ in range(2):
        chunk = store.claim(clock.at, 10, "the other")
        if chunk.keys:
            sent += dispatch(store, chunk)
    return sent
