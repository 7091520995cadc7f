"""The cost of an idle receiver, and the events that wake it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from sqlalchemy import event, text

from chaos.forkserver_client import ForkServer
from tests.support.forked import forked
from tests.support.forks import ended_in_a_child
from tests.transport.sql.conftest import Maker
from timeoutmgr.database import Database
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.sql import SqlQueueSettings, SqlTransport
from timeoutmgr.transport.sql.wakeups import FileVersion, QueueWakeups, Wakeup

Make = Callable[..., list[Outgoing]]

_SEND: Final = """
import sys, time
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlTransport
transport = SqlTransport(sys.argv[1], prefix=sys.argv[2])
session = transport.session()
session.send([Outgoing("other", Message(id="warm"))])
print("ready", flush=True)
sys.stdin.readline()
session.send([Outgoing("q", Message(id=str(time.time())))])
"""


def statements_of(transport: SqlTransport) -> list[str]:
    """Return a list that grows by every statement on a table from now on."""
    seen: list[str] = []

    def see(_c: Any, _k: Any, statement: str, *_rest: Any) -> None:
        if "queue_messages" in statement:
            seen.append(statement)

    event.listen(transport.database.engine, "before_cursor_execute", see)
    return seen


def test_an_idle_receiver_on_sqlite_reads_no_table(
    sqlite_url: str, prefix: str, messages: Make
) -> None:
    transport = SqlTransport(sqlite_url, prefix=prefix)
    transport.install()
    transport.session().create_queues(["q"])
    receiver = transport.session().receiver("q", prefetch=1)
    receiver.receive(1, 1.2)  # settles, and finds the queue empty
    seen = statements_of(transport)

    receiver.receive(1, 0.5)
    receiver.receive(1, 0)

    assert seen == []
    transport.session().send(messages(1))
    assert len(receiver.receive(1, 1)) == 1
    transport.close()


@pytest.mark.parametrize(("kind", "at_most"), [("postgres", 8), ("mysql", 12)])
def test_an_idle_receiver_asks_seldom(
    kind: str, at_most: int, request: pytest.FixtureRequest, prefix: str
) -> None:
    transport = SqlTransport(request.getfixturevalue(f"{kind}_url"), prefix=prefix)
    transport.install()
    transport.session().create_queues(["q"])
    receiver = transport.session().receiver("q", prefetch=1)
    receiver.receive(1, 0.2)
    seen = statements_of(transport)

    receiver.receive(1, 1)

    assert len(seen) <= at_most
    transport.close()


def test_a_send_of_another_process_is_noticed(
    transport: SqlTransport, url: str, prefix: str, fork_server: ForkServer
) -> None:
    receiver = transport.session().receiver("q", prefetch=1)
    receiver.receive(1, 0.5)
    with forked(fork_server, _SEND, url, prefix) as child:
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("\n")
        child.stdin.flush()
        (received,) = receiver.receive(1, 10)
        late = time.time() - float(received.message.id)

    # PostgreSQL would take up to a second without NOTIFY.
    assert late < 0.5


def test_a_send_notifies_once_and_not_without_the_setting(
    postgres_url: str, prefix: str, messages: Make
) -> None:
    seen: list[str] = []
    for wanted in (True, False):
        transport = SqlTransport(
            postgres_url, prefix=prefix, settings=SqlQueueSettings(notify=wanted)
        )
        transport.install()
        session = transport.session()
        session.create_queues(["q", "other"])

        def see(_c: Any, _k: Any, statement: str, *_rest: Any) -> None:
            if "pg_notify" in statement:
                seen.append(statement)

        event.listen(transport.database.engine, "before_cursor_execute", see)
        session.send(messages(5) + messages(5, "other"))
        event.remove(transport.database.engine, "before_cursor_execute", see)
        transport.close()

    assert len(seen) == 1


def test_leasing_reads_the_front_of_one_queue_by_its_index(
    transport: SqlTransport, messages: Make, prefix: str
) -> None:
    session = transport.session()
    for _ in range(20):
        session.send(messages(100) + messages(100, "other"))
    dialect = transport.database.dialect.name
    how = "EXPLAIN QUERY PLAN" if dialect == "sqlite" else "EXPLAIN"
    now = transport.database.now_of_host(transport.clock)
    where = {"queue": "q", "limit": 10, "inline": 1000, **now}

    def explain(
        _c: Any, _k: Any, statement: str, parameters: Any, _x: Any, _m: bool
    ) -> tuple[str, Any]:
        return f"{how} {statement}", parameters

    with transport.database.begin() as connection:
        if dialect == "postgresql":
            connection.execute(text(f"ANALYZE {prefix}queue_messages"))
        event.listen(connection, "before_cursor_execute", explain, retval=True)
        raw: Any = connection.execute(transport.lease_statements.free_rows, where).cursor
        plan = str(raw.fetchall())

    assert f"{prefix}queue_order" in plan, plan
    assert "sort" not in plan.lower(), plan


def test_a_receiver_looks_for_no_message_while_others_fill_the_budget(
    sqlite_url: str, prefix: str, messages: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = SqlTransport(sqlite_url, prefix=prefix)
    transport.install()
    session = transport.session()
    session.create_queues(["q"])
    session.send(messages(1))
    receiver = session.receiver("q", prefetch=10)
    assert len(receiver.receive(1, 1.0)) == 1
    looks = 0

    def rest(_until: float) -> None:
        nonlocal looks
        looks += 1
        transport.budget.add(transport.settings.buffer_bytes)  # by another receiver
        session.send(messages(1))

    monkeypatch.setattr(receiver._watch, "rest", rest)

    assert (receiver.receive(1, 1.0), looks) == ([], 1)


def test_a_wakeup_before_the_wait_ends_the_wait() -> None:
    wakeup = Wakeup()
    count = wakeup.count

    wakeup.notify()

    assert wakeup.wait(count, 0)
    assert not wakeup.wait(wakeup.count, 0)


def test_transports_on_one_database_share_their_wakeups(
    transport: SqlTransport, make_transport: Maker
) -> None:
    assert make_transport().wakeups is transport.wakeups
    assert QueueWakeups.of(transport.database, "another") is not transport.wakeups


@pytest.mark.parametrize(
    "bad",
    [
        {"lease": 60},
        {"lease": timedelta.max},
        {"notify": "no"},
        {"buffer_bytes": "64"},
        {"lease": timedelta(0)},
        {"lease": timedelta(milliseconds=999)},
        {"poll_min": timedelta(seconds=-1)},
        {"owner_check": timedelta(0)},
        {"poll_min": timedelta(seconds=2), "poll_max": timedelta(seconds=1)},
    ],
)
def test_settings_that_cannot_work_are_refused(bad: dict[str, timedelta]) -> None:
    with pytest.raises(ConfigurationError):
        SqlQueueSettings(**bad)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("dialect", "polling"),
    [("sqlite", (0.01, 0.05)), ("postgresql", (0.05, 1)), ("mysql", (0.02, 0.25))],
)
def test_the_polling_interval_has_a_default_for_each_dialect(
    dialect: str, polling: tuple[float, float]
) -> None:
    assert SqlQueueSettings().polling(dialect) == polling
    one = timedelta(seconds=1)
    assert SqlQueueSettings(poll_min=one, poll_max=one).polling(dialect) == (1, 1)


def test_a_bound_of_the_polling_interval_that_is_given_alone_is_kept() -> None:
    rare, often = timedelta(seconds=2), timedelta(milliseconds=5)

    assert SqlQueueSettings(poll_min=rare).polling("postgresql") == (2, 2)
    assert SqlQueueSettings(poll_max=often).polling("sqlite") == (0.005, 0.005)


def test_a_process_does_not_hear_of_its_own_message_a_second_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = QueueWakeups(), QueueWakeups()
    hear, theirs_hear = (
        each.listener(Database.shared(postgres_url), "channel").hear for each in (ours, theirs)
    )
    payload = ours.payload_of_own("q")

    for each in (hear, theirs_hear):
        each(payload)

    assert (ours.any.count, theirs.any.count) == (0, 1)
    monkeypatch.setattr(os, "getpid", lambda: 0)  # a forked child has its parent's wakeups
    hear(payload)
    assert ours.any.count == 1


def test_a_child_sends_though_a_thread_of_its_parent_notified_during_the_fork(
    transport: SqlTransport, messages: Make
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        if threading.current_thread() is notifying:
            began.set()
            may_end.wait()

    transport.wakeups.any.subscribe(wait)
    notifying = threading.Thread(target=transport.wakeups.notify, args=(["q"],))
    notifying.start()
    began.wait()

    sent = ended_in_a_child(lambda: len(transport.session().send(messages(2))))

    may_end.set()
    notifying.join()
    assert sent == 2


def test_parent_and_child_each_read_the_version_of_a_file_on_a_connection_of_their_own(
    sqlite_url: str,
) -> None:
    database, opened = Database(sqlite_url), list[object]()
    event.listen(database.apart, "connect", lambda driver, _record: opened.append(driver))
    version = FileVersion(database)
    before_fork = version.read()

    def connections() -> int:
        version.read()
        return len(opened)

    assert ended_in_a_child(connections) == 2
    # The new connection counts from the same number, also after commits in between.
    assert version.read() != before_fork
    assert len(opened) == 2
    version.close_idle()
    database.dispose()
