"""Receiving and sending in one transaction, where the transport has that."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from timeoutmgr.contracts import Receiver, SendResult, Transaction, TransportSession
from timeoutmgr.errors import CombinationRefused, LeaseLost
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import Undone
from timeoutmgr.testing.conformance.transports.suite import (
    EMPTY,
    TransportSuite,
    ids,
    messages,
    put,
    receive,
)


@contextmanager
def rolled_back(session: TransportSession) -> Iterator[Transaction]:
    """Open a transaction that comes to nothing."""
    try:
        with session.transaction() as transaction:
            yield transaction
            raise Undone
    except Undone:
        return


class TransportTransactions(TransportSuite):
    """``transaction``, and ``send`` and ``ack`` in it."""

    @needs(transactions=True)
    def test_receiving_and_sending_are_committed_together(
        self,
        session: TransportSession,
        queue: str,
        receiver: Receiver,
        new_queue: Callable[[], str],
    ) -> None:
        target = new_queue()
        put(session, queue, *"abc")
        received = receive(receiver, 3)

        with session.transaction() as transaction:
            results = session.send(messages(target, "d", "e"), transaction=transaction)
            receiver.ack(received, transaction=transaction)
        receiver.close()

        assert results == [SendResult.CONFIRMED] * 2
        assert (session.count(queue), session.count(target)) == (0, 2)

    @needs(transactions=True)
    def test_a_rollback_undoes_send_and_ack_and_keeps_the_lease(
        self,
        session: TransportSession,
        queue: str,
        receiver: Receiver,
        new_queue: Callable[[], str],
    ) -> None:
        target = new_queue()
        put(session, queue, *"abc")
        received = receive(receiver, 3)

        with rolled_back(session) as transaction:
            session.send(messages(target, "d"), transaction=transaction)
            receiver.ack(received, transaction=transaction)
        nothing = receiver.receive(9, EMPTY)
        receiver.ack(received[:1])
        receiver.close()

        assert nothing == []
        assert (session.count(queue), session.count(target)) == (2, 0)

    @needs(transactions=True)
    def test_a_send_is_invisible_before_the_commit(
        self, session: TransportSession, other_session: TransportSession, queue: str
    ) -> None:
        with session.transaction() as transaction:
            session.send(messages(queue, "a"), transaction=transaction)
            inside = other_session.count(queue)

        assert (inside, other_session.count(queue)) == (0, 1)

    @needs(transactions=True)
    def test_a_transaction_sends_all_but_the_unroutable_message(
        self, session: TransportSession, queue: str, name: str
    ) -> None:
        outgoing = messages(name, "a") + messages(queue, "b")

        with session.transaction() as transaction:
            results = session.send(outgoing, transaction=transaction)

        assert results == [SendResult.UNROUTABLE, SendResult.CONFIRMED]
        assert session.count(queue) == 1

    @needs(transactions=True)
    def test_sends_of_one_transaction_arrive_in_order(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        with session.transaction() as transaction:
            for name in "abc":
                session.send(messages(queue, name), transaction=transaction)

        assert ids(receive(receiver, 3)) == ["a", "b", "c"]

    @needs(transactions=True)
    def test_a_second_ack_raises_before_the_commit(
        self, session: TransportSession, queue: str, receiver: Receiver, name: str
    ) -> None:
        put(session, queue, "a")
        received = receive(receiver, 1)
        receiver.ack(received)

        def handle() -> None:
            with session.transaction() as transaction:
                session.send(messages(queue, "b"), transaction=transaction)
                receiver.ack(received, transaction=transaction)

        with pytest.raises(LeaseLost):
            handle()

        assert session.count(queue) == 0

    @needs(transactions=True, can_lose_leases=True)
    def test_an_ack_in_a_transaction_reports_a_lost_lease(
        self,
        session: TransportSession,
        other_session: TransportSession,
        queue: str,
        receiver: Receiver,
        lose_leases: Callable[[], None],
    ) -> None:
        put(session, queue, "a")
        received = receive(receiver, 1)
        lose_leases()
        other = other_session.receiver(queue, prefetch=1)
        theirs = receive(other, 1)

        def handle() -> None:
            with session.transaction() as transaction:
                session.send(messages(queue, "b"), transaction=transaction)
                receiver.ack(received, transaction=transaction)

        with pytest.raises(LeaseLost):
            handle()
        other.ack(theirs)
        other.close()

        assert session.count(queue) == 0

    @needs(transactions=False)
    def test_a_transport_without_transactions_refuses_a_transaction(
        self, session: TransportSession, queue: str
    ) -> None:
        with pytest.raises(CombinationRefused):
            session.transaction()
