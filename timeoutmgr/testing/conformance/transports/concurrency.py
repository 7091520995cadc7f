"""Concurrent senders and receivers: each message arrives exactly once."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from timeoutmgr.contracts import Receiver, SendResult, Transaction, Transport, TransportSession
from timeoutmgr.contracts.transports import ExpiresMessages
from timeoutmgr.errors import CombinationRefused, LeaseLost
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, Undone, race, undone
from timeoutmgr.testing.conformance.transports.suite import (
    EMPTY,
    TransportSuite,
    ids,
    messages,
    numbers,
    put,
    receive,
    receive_all,
)


class TransportConcurrency(TransportSuite):
    """Several senders and receivers."""

    def test_two_receivers_share_no_message(
        self, session: TransportSession, other_session: TransportSession, queue: str
    ) -> None:
        put(session, queue, *numbers(6))

        with (
            closing(session.receiver(queue, prefetch=3)) as one,
            closing(other_session.receiver(queue, prefetch=3)) as other,
        ):
            mine, theirs = receive(one, 3), receive(other, 3)

        assert sorted(ids(mine) + ids(theirs)) == numbers(6)

    def test_a_leased_message_goes_to_no_other_receiver(
        self, session: TransportSession, other_session: TransportSession, queue: str
    ) -> None:
        put(session, queue, "a")

        with (
            closing(session.receiver(queue, prefetch=1)) as one,
            closing(other_session.receiver(queue, prefetch=1)) as other,
        ):
            held = receive(one, 1)
            assert other.receive(1, EMPTY) == []
            one.release(held)
            holder = one if (again := one.receive(1, EMPTY)) else other
            holder.ack(again or receive(other, 1))

        assert session.count(queue) == 0

    def test_messages_of_a_closed_receiver_go_to_another(
        self, session: TransportSession, other_session: TransportSession, queue: str
    ) -> None:
        put(session, queue, *"abc")
        with closing(other_session.receiver(queue, prefetch=5)) as other:
            with closing(session.receiver(queue, prefetch=5)) as one:
                held = one.receive(5, EMPTY) or other.receive(5, 0)
            got = {*ids(held), *ids(receive_all(other))}

        assert got == {"a", "b", "c"}

    def test_four_receivers_get_every_message_once(
        self, make_transport: Callable[[], Transport], session: TransportSession, queue: str
    ) -> None:
        put(session, queue, *numbers(400))

        def consume() -> list[str]:
            with (
                closing(make_transport()) as transport,
                closing(transport.session()) as own,
                closing(own.receiver(queue, prefetch=20)) as receiver,
            ):
                return ids(receive_all(receiver))

        shares = race(consume, consume, consume, consume)

        counted = Counter(name for share in shares for name in share)
        assert sorted(counted) == numbers(400)
        assert set(counted.values()) == {1}
        assert session.count(queue) == 0

    def test_four_senders_and_two_receivers_lose_nothing(
        self, make_transport: Callable[[], Transport], session: TransportSession, queue: str
    ) -> None:
        sent = threading.Barrier(5)
        all_sent = threading.Event()

        def send(sender: int) -> None:
            with closing(make_transport()) as transport, closing(transport.session()) as own:
                for name in numbers(25):
                    put(own, queue, f"{sender} {name}")
            sent.wait(60)

        def watch() -> None:
            sent.wait(60)
            all_sent.set()

        def consume() -> list[str]:
            got: list[str] = []
            with (
                closing(make_transport()) as transport,
                closing(transport.session()) as own,
                closing(own.receiver(queue, prefetch=5)) as receiver,
            ):
                while True:
                    was_all = all_sent.is_set()
                    received = receiver.receive(5, EMPTY)
                    receiver.ack(received)
                    got += ids(received)
                    if was_all and not received:
                        return got

        results = race(
            *[lambda sender=sender: send(sender) for sender in range(4)], watch, consume, consume
        )

        got = sorted(results[-1] + results[-2])
        assert got == sorted(f"{sender} {name}" for sender in range(4) for name in numbers(25))
        assert session.count(queue) == 0


@needs(expires_messages=True)
class TransportExpiry(TransportSuite):
    """``ExpiresMessages``, and ``time_to_live`` of ``send``."""

    def test_only_a_message_whose_time_is_over_is_removed_and_only_once(
        self, transport: Transport, session: TransportSession, queue: str
    ) -> None:
        sent = _with_lifetimes(queue, late=0, soon=HOUR, never=None)
        assert session.send(sent) == [SendResult.CONFIRMED] * 3

        removed, again = _expired(transport, queue), _expired(transport, queue)

        assert (ids(removed), again) == (["late"], [])
        assert (removed[0].queue, removed[0].message.body) == (queue, b"late")
        assert session.count(queue) == 2

    def test_a_message_that_cannot_be_settled_stays(
        self, transport: Transport, session: TransportSession, queue: str
    ) -> None:
        session.send(_with_lifetimes(queue, late=0))

        def fail(_batch: Sequence[Received], _transaction: Transaction) -> None:
            raise Undone

        with pytest.raises(Undone):
            _expiring(transport).remove_expired(10, fail)

        assert ids(_expired(transport, queue)) == ["late"]

    def test_a_received_message_does_not_expire(
        self, transport: Transport, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        session.send(_with_lifetimes(queue, late=0, later=0))
        [late] = receive(receiver, 1)

        assert ids(_expired(transport, queue)) == ["later"]

        receiver.ack([late])
        assert (_expired(transport, queue), session.count(queue)) == ([], 0)

    def test_two_concurrent_removals_share_the_expired_messages(
        self, transport: Transport, session: TransportSession, queue: str
    ) -> None:
        session.send(_with_lifetimes(queue, **dict.fromkeys(numbers(40), 0)))
        removed: list[str] = []

        def remove() -> None:
            while found := _expired(transport, queue, limit=7):
                removed.extend(ids(found))

        race(remove, remove)

        removed += ids(_expired(transport, queue))
        assert sorted(removed) == numbers(40)

    def test_bodies_that_do_not_fit_into_memory_together_are_removed_one_by_one(
        self, transport: Transport, session: TransportSession, queue: str
    ) -> None:
        body = bytes(5 * 1024 * 1024)
        for name in "abc":
            session.send([Outgoing(queue, Message(id=name, body=body), time_to_live=0)])

        removed = [_expired(transport, queue) for _ in range(3)]

        assert sorted(one.message.id for found in removed for one in found) == ["a", "b", "c"]
        assert max(len(found) for found in removed) < 3


def _send_and_ack(
    session: TransportSession, receiver: Receiver, received: Sequence[Received]
) -> None:
    with session.transaction() as transaction:
        session.send(messages(received[0].queue, "b"), transaction=transaction)
        receiver.ack(received, transaction=transaction)


def _with_lifetimes(queue: str, **lifetimes: int | None) -> list[Outgoing]:
    return [
        Outgoing(queue, Message(id=name, body=name.encode()), time_to_live=lifetime)
        for name, lifetime in lifetimes.items()
    ]


def _expiring(transport: Transport) -> ExpiresMessages:
    assert isinstance(transport, ExpiresMessages)
    return transport


def _expired(transport: Transport, queue: str, limit: int = 100) -> list[Received]:
    """Remove the expired messages of *queue*; messages of other cases are dropped."""
    found: list[Received] = []

    def settle(batch: Sequence[Received], _transaction: Transaction) -> None:
        found[:] = batch  # replaces the batch of an attempt that met a conflict

    # Another removal may have had all by the time of the last try, which settles none then.
    removed = _expiring(transport).remove_expired(limit, settle)
    return [one for one in found if one.queue == queue] if removed else []


class TransportTransactions(TransportSuite):
    """``transaction``, and ``send`` and ``ack`` in it."""

    @needs(transactions=True)
    def test_receiving_and_sending_are_committed_together(
        self, session: TransportSession, queue: str, receiver: Receiver, target: str
    ) -> None:
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
        self, session: TransportSession, queue: str, receiver: Receiver, target: str
    ) -> None:
        put(session, queue, *"abc")
        received = receive(receiver, 3)

        with undone(session.transaction()) as transaction:
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

        with pytest.raises(LeaseLost):
            _send_and_ack(session, receiver, received)

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

        with pytest.raises(LeaseLost):
            _send_and_ack(session, receiver, received)
        other.ack(theirs)
        other.close()

        assert session.count(queue) == 0

    @needs(transactions=False)
    def test_a_transport_without_transactions_refuses_a_transaction(
        self, session: TransportSession, queue: str
    ) -> None:
        with pytest.raises(CombinationRefused):
            session.transaction()
