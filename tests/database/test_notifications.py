"""Listeners of one process on PostgreSQL's NOTIFY: one thread and one connection for all."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import event, make_url, text

from tests.support.forks import ended_in_a_child
from tests.support.waiting import eventually
from timeoutmgr.database import Database
from timeoutmgr.database.notifications import NOTIFY, Listening, NotificationListener
from timeoutmgr.testing.signals import PATIENCE


class Heard:
    """What a listener was told; *missed* counts the beginnings."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self.missed = 0

    def hear(self, payload: str) -> None:
        self.payloads.append(payload)

    def miss(self) -> None:
        self.missed += 1


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    made = Database(postgres_url)
    yield made
    made.dispose()


@pytest.fixture
def there(database: Database) -> list[object]:
    """The connections outside the pool that are open."""
    found: list[object] = []
    event.listen(database.apart, "connect", lambda driver, _record: found.append(driver))
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listening(
    database: Database, channel: str, heard: Heard, stack: ExitStack
) -> NotificationListener:
    """Start a listener, and return it once it listens."""
    before = heard.missed
    listener = NotificationListener(database, channel, hear=heard.hear, missed=heard.miss)
    listener.start()
    stack.callback(listener.stop)
    eventually(lambda: heard.missed > before, f"a listener of {channel} listens")
    return listener


def notify(database: Database, channel: str, payload: str) -> None:
    with database.begin() as connection:
        connection.execute(NOTIFY, {"channel": channel, "payload": payload})


def test_listeners_of_several_channels_share_one_connection_and_one_thread(
    database: Database, there: list[object], unique: str, stack: ExitStack
) -> None:
    first, second, third = Heard(), Heard(), Heard()
    threads = threading.active_count()
    listening(database, f"{unique}_a", first, stack)
    listening(database, f"{unique}_a", second, stack)
    listening(database, f"{unique}_b", third, stack)

    notify(database, f"{unique}_a", "1")
    notify(database, f"{unique}_b", "2")

    eventually(lambda: third.payloads == ["2"], "the second channel is heard")
    assert (first.payloads, second.payloads) == (["1"], ["1"])
    assert (first.missed, second.missed, third.missed) == (1, 1, 1)
    assert len(there) == 1
    assert threading.active_count() == threads + 1


def test_a_driver_that_cannot_listen_lets_listeners_come_and_go_without_end(
    database: Database, there: list[Any], unique: str
) -> None:
    event.listen(database.apart, "connect", lambda driver, _: setattr(driver, "notifies", None))
    heard = Heard()
    first, second = (
        NotificationListener(database, unique, hear=heard.hear, missed=miss)
        for miss in (heard.miss, Heard().miss)
    )
    first.start()
    eventually(lambda: there, "the thread has found out")
    size = fcntl.fcntl(database.part(Listening)._wake_write, fcntl.F_SETPIPE_SZ, 1)

    def come_and_go() -> None:
        for _ in range(size):
            second.start()
            second.stop()

    thread = threading.Thread(target=come_and_go, daemon=True)
    thread.start()
    thread.join(PATIENCE)

    assert not thread.is_alive()  # a stop would wait with it
    first.stop()


def test_listeners_with_one_function_have_it_called_once(
    database: Database, unique: str, stack: ExitStack
) -> None:
    heard, last = Heard(), Heard()
    for _ in range(2):
        listening(database, unique, heard, stack)
    listening(database, f"{unique}_last", last, stack)

    notify(database, unique, "1")
    notify(database, f"{unique}_last", "2")

    eventually(lambda: last.payloads == ["2"], "the last notice is heard")
    assert heard.payloads == ["1"]


def test_a_stopped_listener_hears_no_more_while_another_listener_goes_on(
    database: Database, there: list[object], unique: str, stack: ExitStack
) -> None:
    stopped, left = Heard(), Heard()
    listener = listening(database, f"{unique}_a", stopped, stack)
    listening(database, f"{unique}_b", left, stack)

    listener.stop()
    notify(database, f"{unique}_a", "1")
    notify(database, f"{unique}_b", "2")

    eventually(lambda: left.payloads == ["2"], "the other listener hears")
    assert stopped.payloads == []
    assert len(there) == 1


def test_the_last_listener_closes_the_connection_and_the_next_opens_one(
    database: Database, there: list[object], unique: str, stack: ExitStack
) -> None:
    listening(database, unique, Heard(), stack).stop()
    [first] = there
    heard = Heard()
    listening(database, unique, heard, stack)

    notify(database, unique, "1")

    eventually(lambda: heard.payloads == ["1"], "the next listener hears")
    assert getattr(first, "closed", None) is True
    assert len(there) == 2


def test_every_listener_begins_anew_after_the_connection_was_lost(
    database: Database, unique: str, stack: ExitStack
) -> None:
    one, other = Heard(), Heard()
    listening(database, f"{unique}_a", one, stack)
    listening(database, f"{unique}_b", other, stack)

    with database.begin() as connection:
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = :query"
        connection.execute(text(end), {"query": f"LISTEN {unique}_b"})

    eventually(lambda: (one.missed, other.missed) == (2, 2), "both listen again")
    notify(database, f"{unique}_a", "1")
    eventually(lambda: one.payloads == ["1"], "the first channel is heard again")


def test_an_idle_listener_keeps_its_session_behind_a_short_idle_session_timeout(
    postgres_url: str, unique: str, stack: ExitStack
) -> None:
    url = make_url(postgres_url).update_query_dict({"options": "-cidle_session_timeout=1min"})
    database = Database(url)
    stack.callback(database.dispose)
    connections: list[Any] = []
    event.listen(database.apart, "connect", lambda driver, _record: connections.append(driver))
    found: list[str] = []

    def ask() -> None:
        found.extend(connections[-1].execute("SHOW idle_session_timeout").fetchone())

    listener = NotificationListener(database, unique, hear=found.append, missed=ask)
    listener.start()
    stack.callback(listener.stop)

    eventually(lambda: found != [], "the listener listens")
    assert found == ["0"]


def test_a_forked_child_listens_on_a_connection_of_its_own(
    database: Database, unique: str, stack: ExitStack
) -> None:
    heard = Heard()
    listener = listening(database, unique, heard, stack)
    status = ended_in_a_child(lambda: _hear_in_a_child(heard, database, unique, listener))

    notify(database, unique, "after the child")

    eventually(lambda: "after the child" in heard.payloads, "the parent still listens")
    assert status == 0
    assert heard.missed == 1


def _hear_in_a_child(
    heard: Heard, database: Database, channel: str, listener: NotificationListener
) -> int:
    """Start the inherited listener again; return the exit code."""
    listener.start()
    eventually(lambda: heard.missed == 2, "the child listens")
    notify(database, channel, "of the child")
    eventually(lambda: "of the child" in heard.payloads, "the child hears")
    listener.stop()
    return 0


def no_pipe() -> tuple[int, int]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("name", "refuse"), [("os.pipe", no_pipe), ("threading.Thread.start", no_thread)]
)
def test_a_listener_that_could_not_start_starts_later_and_closes_no_file_of_others(
    database: Database,
    unique: str,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    refuse: Callable[..., object],
) -> None:
    heard = Heard()
    listening(database, unique, heard, stack).stop()
    listener = NotificationListener(database, unique, hear=heard.hear, missed=heard.miss)
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as system:
        system.setattr(name, refuse)
        with pytest.raises((OSError, RuntimeError)):
            listener.start()
    assert len(os.listdir("/proc/self/fd")) == before
    listener.stop()

    listening(database, unique, heard, stack)
    notify(database, unique, "1")

    eventually(lambda: heard.payloads == ["1"], "the listener hears")
