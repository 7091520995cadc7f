"""Leases: their end, and which receiver may still acknowledge."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread

import pytest
from sqlalchemy import text

from chaos.forkserver_client import ForkServer
from tests.support.forks import Forks, ended_in_a_child
from tests.support.session_locks import end_session_of
from tests.support.waiting import eventually
from tests.transport.sql.conftest import Maker
from tests.transport.sql.killing import kill_holding
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import LeaseLost
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.transport.sql import SqlQueueSettings, SqlTransport

Make = Callable[..., list[Outgoing]]


def ids(received: list[Received]) -> list[str]:
    return [one.message.id for one in received]


class SetClock(SystemClock):
    """A wall clock that a test moves."""

    ahead = 0

    def now(self) -> int:
        return super().now() + self.ahead


def lapse(transport: SqlTransport, prefix: str) -> None:
    """Let all leases end, as if their owners had slept."""
    with transport.database.begin() as connection:
        connection.execute(text(f"UPDATE {prefix}queue_messages SET lease_until = 1"))


def test_a_leased_message_goes_to_no_receiver_of_another_transport(
    transport: SqlTransport, make_transport: Maker, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(3))

    mine = session.receiver("q", prefetch=0).receive(2, 0)
    theirs = make_transport().session().receiver("q", prefetch=0).receive(10, 0)

    assert (ids(mine), ids(theirs)) == (["0", "1"], ["2"])
    assert session.count("q") == 0


def test_a_lease_in_sqlite_ends_by_the_clock_of_the_host(
    sqlite_url: str, prefix: str, messages: Make
) -> None:
    clock = SetClock()
    transport = SqlTransport(sqlite_url, prefix=prefix, clock=clock)
    transport.install()
    session = transport.session()
    session.create_queues(["q"])
    session.send(messages(1))
    session.receiver("q", prefetch=0).receive(1, 0)
    other = session.receiver("q", prefetch=0)

    clock.ahead = 59_000_000
    before = other.receive(1, 0)
    clock.ahead = 61_000_000
    after = other.receive(1, 0)
    transport.close()

    assert before == []
    assert [(one.message.id, one.delivery_count) for one in after] == [("0", 1)]


def test_a_message_leased_again_after_a_lapse_cannot_be_acknowledged_by_the_old_owner(
    transport: SqlTransport, make_transport: Maker, prefix: str, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(2))
    first = session.receiver("q", prefetch=0)
    old = first.receive(2, 0)

    lapse(transport, prefix)
    second = make_transport().session().receiver("q", prefetch=0)
    new = second.receive(1, 0)

    with pytest.raises(LeaseLost):
        first.ack(old)
    second.ack(new)
    assert session.count("q") == 0
    first.close()  # gives back nothing, since nothing is left
    assert second.receive(2, 0) == []


def test_an_older_lease_of_the_same_owner_is_not_honoured(
    transport: SqlTransport, prefix: str, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(1))
    first, second = (session.receiver("q", prefetch=0) for _ in range(2))
    old = first.receive(1, 0)

    lapse(transport, prefix)
    new = second.receive(1, 0)

    first.release(old)
    assert session.receiver("q", prefetch=0).receive(1, 0) == []
    with pytest.raises(LeaseLost):
        first.ack(old)
    second.ack(new)


def test_a_lapsed_lease_is_valid_until_another_receiver_leases_the_message(
    transport: SqlTransport, prefix: str, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(1))
    receiver = session.receiver("q", prefetch=0)
    received = receiver.receive(1, 0)

    lapse(transport, prefix)
    receiver.ack(received)

    assert session.count("q") == 0


def test_leases_of_living_owners_are_renewed(
    make_transport: Maker, transport: SqlTransport, prefix: str, messages: Make
) -> None:
    short = make_transport(settings=SqlQueueSettings(lease=timedelta(seconds=1)))
    session = short.session()
    session.send(messages(1))
    holder = session.receiver("q", prefetch=0)
    held = holder.receive(1, 0)

    # The time of three leases passes, and the message stays leased.
    assert transport.session().receiver("q", prefetch=0).receive(1, 3) == []
    holder.ack(held)


def test_messages_of_a_killed_consumer_return_at_once(
    transport: SqlTransport, prefix: str, url: str, messages: Make, fork_server: ForkServer
) -> None:
    session = transport.session()
    session.send(messages(5))

    kill_holding(fork_server, url, prefix, "q", 3)
    received = session.receiver("q", prefetch=0).receive(10, 3)

    assert [(one.message.id, one.delivery_count) for one in received] == [
        ("0", 1),
        ("1", 1),
        ("2", 1),
        ("3", 0),
        ("4", 0),
    ]


def test_a_waiting_receiver_notices_the_death_of_another(
    transport: SqlTransport, make_transport: Maker, messages: Make
) -> None:
    other = make_transport()
    other.session().send(messages(1))
    holder = other.session().receiver("q", prefetch=0)
    holder.receive(1, 0)
    receiver = transport.session().receiver("q", prefetch=0)
    assert receiver.receive(1, 0) == []

    other.close()  # as a kill does: the lock is gone, the lease is not
    received = receiver.receive(1, 5)

    assert ids(received) == ["0"]


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_lease_begun_after_a_lost_session_lock_is_kept(
    kind: str, prefix: str, messages: Make, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    seldom = SqlQueueSettings(lease=timedelta(hours=1), owner_check=timedelta(hours=1))
    ours, theirs = (SqlTransport(url, prefix=prefix, settings=seldom) for _ in range(2))
    ours.install()
    session = ours.session()
    session.create_queues(["q"])
    receiver, other = session.receiver("q", prefetch=0), theirs.session().receiver("q", prefetch=0)
    session.send(messages(1))
    end_session_of(ours.database, ours.owner)

    received = receiver.receive(1, 0)

    assert ids(received) == ["0"]
    assert other.receive(1, 0) == []
    receiver.ack(received)
    ours.close()
    theirs.close()


def test_an_owner_acquires_its_lost_session_lock_again(
    postgres_url: str, prefix: str, messages: Make
) -> None:
    ours, theirs = (SqlTransport(postgres_url, prefix=prefix) for _ in range(2))
    ours.install()
    session = ours.session()
    session.create_queues(["q"])
    receiver, other = session.receiver("q", prefetch=0), theirs.session().receiver("q", prefetch=0)

    with ours.database.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
                "AND granted AND pid <> pg_backend_pid() AND database = "
                "(SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )
    assert receiver.receive(1, 2.5) == []  # time for the lease renewer to notice
    session.send(messages(1))
    received = receiver.receive(1, 0)

    assert ids(received) == ["0"]
    assert other.receive(1, 1.5) == []
    receiver.ack(received)
    ours.close()
    theirs.close()


def test_each_forked_child_has_leases_of_its_own(
    transport: SqlTransport, make_transport: Maker, messages: Make
) -> None:
    transport.session().send(messages(1))
    patient = SqlQueueSettings(owner_check=timedelta(hours=1))  # no renewal of a lost lock
    of_parent, other = make_transport(settings=patient), make_transport()
    (leased, report), (ended, end) = os.pipe(), os.pipe()

    def lease_and_settle() -> int:
        os.close(end)
        receiver = of_parent.make_receiver("q", 1)
        received = receiver.receive(1, 30)
        os.write(report, b".")
        os.read(ended, 1)
        receiver.ack(received)
        return len(received)

    def consume_and_close() -> int:
        of_parent.make_receiver("q", 1)
        of_parent.close()
        return 0

    with Forks() as fork:
        if fork():
            os._exit(lease_and_settle())
        os.read(leased, 1)
        assert ended_in_a_child(consume_and_close) == 0
        assert ids(other.make_receiver("q", 1).receive(1, 0)) == []
        os.close(end)
        assert fork.codes() == [1]
    assert other.queues.count("q") == 0


def test_a_child_renews_its_leases_and_leaves_those_of_its_parent(
    transport: SqlTransport, messages: Make
) -> None:
    transport.session().send(messages(2))
    of_parent = transport.make_receiver("q", 1)
    of_parent.receive(1, 0)

    def renewed() -> int:
        receiver = transport.make_receiver("q", 1)
        receiver.receive(1, 0)
        number = transport._renewer.renew()
        is_renewing = transport._renewer._thread is not None
        receiver.close()
        transport.close()
        return number if is_renewing and transport._renewer._thread is None else 0

    assert ended_in_a_child(renewed) == 1
    assert transport._renewer.renew() == 1
    assert transport._leases.leased(of_parent.held()) == {*of_parent.held()}


def test_leases_of_a_receiver_that_comes_while_the_transport_closes_are_renewed(
    transport: SqlTransport, messages: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.session().send(messages(1))
    renewer, locks = transport._renewer, transport._leases.session_locks
    is_renewing, goes_on, renew = Event(), Event(), locks.renew

    def slowly(owner: str) -> None:
        is_renewing.set()
        assert goes_on.wait(60)
        renew(owner)

    monkeypatch.setattr(locks, "renew", slowly)
    transport.make_receiver("q", 1)
    assert is_renewing.wait(60)
    closes = Thread(target=renewer.stop, daemon=True)
    closes.start()
    eventually(lambda: renewer._thread is None, "the thread is to end", 60)
    receiver = transport.make_receiver("q", 1)
    goes_on.set()
    closes.join(60)

    assert not closes.is_alive()
    assert len(receiver.receive(1, 0)) == 1
    assert renewer._thread is not None
    assert locks.dead_owners({transport.owner}) == set()
