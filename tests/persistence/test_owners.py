"""The rows that a killed process had claimed are free at once, and flagged as maybe sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from chaos.forkserver_client import ForkServer
from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SetClock, dispatch, ids, timeout
from tests.services import mysql
from tests.services.private import PrivateServer
from tests.support.forked import forked
from tests.support.session_locks import end_session_of
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import CancelResult, Chunk, TimeoutStore
from timeoutmgr.database import Database
from timeoutmgr.persistence import SqlPersistence, SqlSettings

_CHILD = """
import sys
from datetime import timedelta
from tests.services import mysql
from tests.services.private import PrivateServer
from timeoutmgr.clock import SystemClock
from timeoutmgr.persistence import SqlPersistence, SqlSettings

url, endpoint, step = sys.argv[1:]
settings = SqlSettings(clock="host", claim_time=timedelta(hours=1))
persistence = SqlPersistence(url, prefix="suite_", settings=settings)
store = persistence.timeouts(endpoint, SystemClock())
chunk = store.claim(SystemClock().now(), 10, "owner of " + endpoint)
if step == "taken":
    taken = store.lock_for_dispatch(chunk.token, chunk.keys)
    taken.__enter__()
print(*(key.id for key in chunk.keys), flush=True)
sys.stdin.read()
"""


def _killed_while_holding(
    fork_server: ForkServer, sql: Stores, step: str, then: Callable[[], None]
) -> None:
    assert isinstance(sql.persistence, SqlPersistence)
    url = sql.persistence.database.url.render_as_string(hide_password=False)
    with forked(fork_server, _CHILD, url, sql.endpoint, step) as child:
        assert child.stdout.readline().split() == ["a", "b"]
        then()
        child.kill()


def _claimed_soon(store: TimeoutStore, clock: SetClock) -> Chunk:
    """Claim until something is handed out: a server notices a dead client in its own time."""
    deadline = time.monotonic() + 20  # a third of the time of a claim
    pause = threading.Event()
    while True:
        clock.at = SystemClock().now()
        chunk = store.claim(clock.at, 10, "survivor")
        if chunk.keys or time.monotonic() > deadline:
            return chunk
        pause.wait(0.01)


@pytest.mark.parametrize("step", ["claimed", "taken"])
def test_the_rows_of_a_killed_process_are_free_at_once(
    sql: Stores, step: str, fork_server: ForkServer
) -> None:
    store = sql()
    store.store_many([timeout("a", 5), timeout("b", 6), timeout("c", 2**60)])
    sql.clock.at = SystemClock().now()
    while_it_lived: list[Sequence[str]] = []

    def claim() -> None:
        while_it_lived.append(ids(store.claim(sql.clock.at, 10, "survivor")))

    _killed_while_holding(fork_server, sql, step, claim)
    chunk = _claimed_soon(store, sql.clock)

    assert while_it_lived == [[]]
    assert ids(chunk) == ["a", "b"]
    store.release(chunk.token)
    fenced_off = sql.persistence.capabilities.name == "sqlite" and step == "claimed"
    expected = CancelResult.CANCELLED if fenced_off else CancelResult.MAYBE_SENT
    assert store.cancel("a") is expected
    assert dispatch(store, _claimed_soon(store, sql.clock)) == ["b"]


def test_a_closed_persistence_lets_its_claims_go(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout("a", 5)])
    sql.clock.at = SystemClock().now()
    assert isinstance(sql.persistence, SqlPersistence)
    other = SqlPersistence(
        sql.persistence.database.url.render_as_string(hide_password=False), prefix="suite_"
    )
    theirs = other.timeouts(sql.endpoint, SystemClock())
    assert ids(theirs.claim(sql.clock.at, 10, f"other {sql.endpoint}")) == ["a"]
    assert ids(store.claim(sql.clock.at, 10, "survivor")) == []

    other.close()

    assert ids(_claimed_soon(store, sql.clock)) == ["a"]


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_heartbeat_acquires_a_lost_session_lock_again(
    kind: str, private_server: Callable[[str], PrivateServer]
) -> None:
    server = private_server(kind)
    url = mysql.create(server.url, "ours") if kind == "mysql" else server.url
    settings, clock = SqlSettings(clock="host"), SetClock()
    one, other = (SqlPersistence(Database(url), settings=settings) for _ in range(2))
    one.install()
    mine, theirs = one.timeouts("e", clock), other.timeouts("e", clock)
    mine.store_many([timeout("a"), timeout("b")])
    assert ids(mine.claim(NOW, 1, "o")) == ["a"]
    server.kill()
    server.start()
    for persistence in (one, other):
        persistence.database.dispose()

    mine.heartbeat("o", {})

    assert ids(mine.claim(NOW, 1, "o")) == ["a"]
    assert ids(theirs.claim(NOW, 9, "p")) == ["b"]
    one.close()
    other.close()


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_claim_after_a_lost_session_lock_belongs_to_a_living_owner(
    kind: str, unique: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    settings, clock = SqlSettings(clock="host"), SetClock()
    one, other = (
        SqlPersistence(Database(url), prefix=f"{unique}_", settings=settings) for _ in range(2)
    )
    one.install()
    mine, theirs = one.timeouts("e", clock), other.timeouts("e", clock)
    mine.store_many([timeout("a"), timeout("b")])
    first = mine.claim(NOW, 1, "o")
    end_session_of(one.database, mine.context.liveness.name_of("o"))

    again = mine.claim(NOW, 9, "o")

    assert (ids(first), ids(again)) == (["a"], ["a", "b"])  # the lost owner's claim is free
    assert ids(theirs.claim(NOW, 9, "p")) == []
    one.close()
    other.close()
