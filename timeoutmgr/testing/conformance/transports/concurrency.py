"""Concurrent senders and receivers: each message arrives exactly once."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing

from timeoutmgr.contracts import Transport, TransportSession
from timeoutmgr.testing.conformance.race import race
from timeoutmgr.testing.conformance.transports.suite import (
    EMPTY,
    TransportSuite,
    ids,
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
