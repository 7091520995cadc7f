"""Sends and acknowledgements inside a transaction: with its commit, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import Connection, create_engine, text

from tests.transport.sql.conftest import Maker
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import LeaseLost
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.sql import SqlTransport

Make = Callable[..., list[Outgoing]]


class Undo(Exception):
    """The error that a handler raises."""


def test_receiving_and_sending_commit_together(transport: SqlTransport, messages: Make) -> None:
    session = transport.session()
    session.send(messages(3))
    receiver = session.receiver("q", prefetch=0)
    received = receiver.receive(3, 0)

    with session.transaction() as transaction:
        results = session.send(messages(2, "other"), transaction=transaction)
        receiver.ack(received, transaction=transaction)

    assert results == [SendResult.CONFIRMED] * 2
    assert receiver.held() == []
    receiver.close()
    assert (session.count("q"), session.count("other")) == (0, 2)


def test_a_rollback_undoes_receipt_and_send_and_keeps_the_lease(
    transport: SqlTransport, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(3))
    receiver = session.receiver("q", prefetch=0)
    received = receiver.receive(3, 0)

    def fail() -> None:
        with session.transaction() as transaction:
            session.send(messages(2, "other"), transaction=transaction)
            receiver.ack(received, transaction=transaction)
            raise Undo

    with pytest.raises(Undo):
        fail()

    assert session.count("other") == 0
    assert len(receiver.held()) == 3
    receiver.close()
    assert session.count("q") == 3


def test_a_lost_lease_raises_inside_the_transaction(
    transport: SqlTransport, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(2))
    receiver = session.receiver("q", prefetch=0)
    received = receiver.receive(2, 0)
    receiver.ack(received[:1])

    def fail() -> None:
        with session.transaction() as transaction:
            session.send(messages(1, "other"), transaction=transaction)
            receiver.ack(received, transaction=transaction)

    with pytest.raises(LeaseLost):
        fail()

    assert session.count("other") == 0


def test_an_unroutable_message_does_not_end_its_transaction(
    transport: SqlTransport, messages: Make
) -> None:
    session = transport.session()

    with session.transaction() as transaction:
        results = session.send(messages(1, "nowhere") + messages(1), transaction=transaction)

    assert results == [SendResult.UNROUTABLE, SendResult.CONFIRMED]


def _ours(transport: SqlTransport) -> AbstractContextManager[Connection]:
    return transport.session().transaction()


def _stores(transport: SqlTransport) -> AbstractContextManager[Connection]:
    return transport.database.begin()


@pytest.mark.parametrize("begin", [_ours, _stores])
def test_a_receiver_wakes_when_the_transaction_has_committed_and_not_before(
    transport: SqlTransport,
    make_transport: Maker,
    messages: Make,
    begin: Callable[[SqlTransport], AbstractContextManager[Connection]],
) -> None:
    wakeup = transport.wakeups.wakeup("q")
    session = transport.session()

    with begin(transport) as transaction:
        session.send(messages(1), transaction=transaction)
        count_inside = wakeup.count

    assert count_inside == 0
    assert wakeup.count >= 1  # PostgreSQL's NOTIFY may wake once more


def test_a_rolled_back_send_wakes_no_receiver(transport: SqlTransport, messages: Make) -> None:
    session = transport.session()
    wakeup = transport.wakeups.wakeup("q")

    def fail() -> None:
        with session.transaction() as transaction:
            session.send(messages(1), transaction=transaction)
            raise Undo

    with pytest.raises(Undo):
        fail()
    with transport.database.begin():
        pass  # a later commit on the same connection does not belong to that send

    assert wakeup.count == 0


def test_a_send_in_the_hosts_own_transaction_wakes_a_receiver(
    transport: SqlTransport, url: str, messages: Make
) -> None:
    wakeup = transport.wakeups.wakeup("q")
    engine = create_engine(url)

    with engine.connect() as connection:
        with connection.begin():
            transport.session().send(messages(1), transaction=connection)
            count_inside = wakeup.count
        with connection.begin():
            count_after = wakeup.count
    engine.dispose()

    assert count_inside == 0
    assert count_after >= 1


def test_a_waiting_receiver_gets_a_message_sent_in_a_transaction(
    transport: SqlTransport, make_transport: Maker, messages: Make
) -> None:
    receiver = make_transport().session().receiver("q", prefetch=1)
    session = transport.session()

    def send() -> None:
        with session.transaction() as transaction:
            session.send(messages(1), transaction=transaction)

    threading.Timer(0.1, send).start()

    assert [one.message.id for one in receiver.receive(1, 30)] == ["0"]


@pytest.mark.parametrize("url", ["postgres", "mysql"], indirect=True)
def test_acknowledgements_of_two_transactions_do_not_wait_for_each_other(
    transport: SqlTransport, messages: Make
) -> None:
    """A wait in one order is a deadlock in the other, and both batches' handlers run again."""
    session = transport.session()
    session.send(messages(10))
    receiver = session.receiver("q", prefetch=0)
    first, second = receiver.receive(5, 0), receiver.receive(5, 0)

    with session.transaction() as inner_first:
        receiver.ack(first[:1], transaction=inner_first)
        with session.transaction() as inner_second:
            _fail_at_a_wait(inner_second)
            receiver.ack(second, transaction=inner_second)
            _fail_at_a_wait(inner_first)
            receiver.ack(first[1:], transaction=inner_first)

    assert session.count("q") == 0


def _fail_at_a_wait(connection: Connection) -> None:
    # Of the transaction, where there is such a setting: the connection goes back to its pool.
    is_mysql = "mysql" in connection.dialect.name
    setting = "SESSION innodb_lock_wait_timeout" if is_mysql else "LOCAL lock_timeout"
    connection.execute(text(f"SET {setting} = 1"))
