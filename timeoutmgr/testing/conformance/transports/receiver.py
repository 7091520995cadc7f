"""A receiver leases a message until it settles it; an unsettled message comes back."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from timeoutmgr.contracts import Receiver, ResizesPrefetch, TransportSession
from timeoutmgr.errors import LeaseLost, TransportUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.transports.suite import (
    EMPTY,
    PATIENCE,
    TransportSuite,
    counted,
    ids,
    numbers,
    put,
    receive,
    receive_again,
    receive_all,
    receive_until_quiet,
)


class TransportReceiver(TransportSuite):
    """``Receiver``."""

    @pytest.mark.parametrize("wait", [0, 0.05])
    def test_an_empty_queue_gives_nothing_in_time(self, receiver: Receiver, wait: float) -> None:
        began = time.monotonic()

        assert receiver.receive(10, wait) == []

        assert time.monotonic() - began < 5

    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 100])
    def test_a_receive_keeps_its_limit_and_loses_nothing(
        self, session: TransportSession, queue: str, receiver: Receiver, limit: int
    ) -> None:
        put(session, queue, *numbers(10))
        found: list[Received] = []

        while received := receiver.receive(limit, EMPTY):
            assert len(received) <= limit
            found += received

        assert ids(found) == numbers(10)

    @pytest.mark.parametrize("prefetch", [1, 2, 5])
    def test_a_receiver_leases_no_more_than_its_prefetch(
        self, session: TransportSession, queue: str, prefetch: int
    ) -> None:
        put(session, queue, *numbers(8))

        with closing(session.receiver(queue, prefetch=prefetch)) as receiver:
            first = receive(receiver, prefetch)
            full = receiver.receive(10, 0.05)
            receiver.ack(first)
            second = receive(receiver, 1)

        assert ids(first) == numbers(prefetch)
        assert full == []
        assert ids(second) == [numbers(8)[prefetch]]

    def test_a_resized_receiver_leases_as_many_as_its_new_prefetch(
        self, session: TransportSession, queue: str
    ) -> None:
        put(session, queue, *numbers(8))

        with closing(session.receiver(queue, prefetch=2)) as receiver:
            if not isinstance(receiver, ResizesPrefetch):
                return  # a transport need not be able to do this
            first = receive(receiver, 2)
            receiver.resize(8)
            rest = receive(receiver, 6)

        assert ids([*first, *rest]) == numbers(8)

    def test_an_acknowledged_message_never_returns(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(session, queue, *numbers(5))

        receiver.ack(receive(receiver, 5))
        receiver.close()

        with closing(session.receiver(queue, prefetch=10)) as another:
            assert another.receive(10, EMPTY) == []

    def test_ack_and_release_accept_an_empty_list(self, receiver: Receiver) -> None:
        receiver.ack([])
        receiver.release([])

    @pytest.mark.parametrize("settled", [[0], [5], [1, 4], [0, 1, 2], [5, 0, 3]])
    def test_an_unacknowledged_message_returns_when_its_receiver_closes(
        self, session: TransportSession, queue: str, settled: list[int]
    ) -> None:
        put(session, queue, *numbers(6))
        with closing(session.receiver(queue, prefetch=10)) as receiver:
            received = receive(receiver, 6)
            receiver.ack([received[number] for number in settled])

        with closing(session.receiver(queue, prefetch=10)) as receiver:
            back = receive(receiver, 6 - len(settled))

        assert ids(back) == [numbers(6)[n] for n in range(6) if n not in settled]
        assert all(one.delivery_count >= 1 for one in back)

    def test_prefetched_messages_return_when_the_receiver_closes(
        self, session: TransportSession, queue: str
    ) -> None:
        put(session, queue, *numbers(20))
        with closing(session.receiver(queue, prefetch=20)) as receiver:
            receiver.ack(receive(receiver, 5))

        with closing(session.receiver(queue, prefetch=20)) as receiver:
            assert ids(receive(receiver, 15)) == numbers(20)[5:]

    def test_released_messages_return_at_once_in_order(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(session, queue, *"abc")
        received = receive(receiver, 3)

        receiver.release(received[1:])
        back = receive(receiver, 2)

        assert ids(back) == ["b", "c"]
        assert all(one.delivery_count >= 1 for one in back)
        receiver.ack([*received[:1], *back])
        receiver.close()
        assert session.count(queue) == 0

    def test_a_message_released_repeatedly_stays_unchanged(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(session, queue, "a")
        (first,) = receive(receiver, 1)
        last = first
        for _ in range(5):
            receiver.release([last])
            (last,) = receive(receiver, 1)

        assert last.message == first.message
        receiver.ack([last])
        assert receiver.receive(1, EMPTY) == []

    def test_an_old_tag_settles_no_message_of_another_receiver(
        self, session: TransportSession, queue: str
    ) -> None:
        put(session, queue, "a")
        with closing(session.receiver(queue, prefetch=1)) as old:
            before = receive(old, 1)
            old.release(before)
        with closing(session.receiver(queue, prefetch=1)) as new:
            now = receive(new, 1)
            with suppress(LeaseLost, TransportUnavailable):
                old.ack(before)
            new.release(now)

        # Whether it was told or not, the message is still there.
        with closing(session.receiver(queue, prefetch=1)) as receiver:
            assert ids(receive(receiver, 1)) == ["a"]

    def test_an_interrupt_from_another_thread_ends_a_wait(self, receiver: Receiver) -> None:
        got: list[list[Received]] = []
        waiting = threading.Thread(target=lambda: got.append(receiver.receive(1, PATIENCE)))
        began = time.monotonic()
        waiting.start()

        while waiting.is_alive() and time.monotonic() - began < PATIENCE:
            receiver.interrupt()
            waiting.join(0.05)

        assert got == [[]]
        assert time.monotonic() - began < PATIENCE / 2

    def test_an_interrupt_loses_nothing(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(session, queue, "a")

        receiver.interrupt()
        receiver.interrupt()

        assert ids(receive(receiver, 1)) == ["a"]

    def test_a_waiting_receiver_gets_a_new_message(
        self, other_session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        sender = threading.Timer(0.1, lambda: put(other_session, queue, "a"))
        began = time.monotonic()
        sender.start()

        received = receiver.receive(1, PATIENCE)
        sender.join()

        assert ids(received) == ["a"]
        assert time.monotonic() - began < PATIENCE / 2

    def test_closing_twice_is_fine(self, session: TransportSession, queue: str) -> None:
        receiver = session.receiver(queue, prefetch=1)

        receiver.close()
        receiver.close()
        receiver.interrupt()

    def test_a_receiver_outlives_sends_on_its_session(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        for name in numbers(5):
            put(session, queue, name)
            receiver.ack(receive(receiver, 1))

        assert session.count(queue) == 0

    @needs(can_lose_leases=True)
    def test_a_lost_message_returns_and_its_old_receipt_is_refused(
        self,
        session: TransportSession,
        other_session: TransportSession,
        queue: str,
        receiver: Receiver,
        lose_leases: Callable[[], None],
    ) -> None:
        put(session, queue, "a", "b")
        before = receive(receiver, 2)
        with closing(other_session.receiver(queue, prefetch=10)) as other:
            lose_leases()

            holder, again = receive_again([receiver, other])
            while len(again) < 2:
                again += receive_again([holder])[1]
            with pytest.raises(LeaseLost):
                receiver.ack(before)
            receiver.release(before)  # which gives nothing away either
            assert receive_until_quiet(other) == []
            holder.ack(again)
            receiver.close()

        assert sorted(ids(again)) == ["a", "b"]
        assert counted(session, queue) == 0

    @needs(can_lose_leases=True)
    def test_a_receiver_goes_on_after_it_lost_every_lease(
        self,
        session: TransportSession,
        other_session: TransportSession,
        queue: str,
        receiver: Receiver,
        lose_leases: Callable[[], None],
    ) -> None:
        put(session, queue, "a")
        receive(receiver, 1)
        with closing(other_session.receiver(queue, prefetch=10)) as other:
            lose_leases()
            holder, again = receive_again([receiver, other])
            holder.ack(again)
        counted(session, queue)  # it may have lost its connection, too
        put(session, queue, "b")

        assert ids(receive_again([receiver])[1]) == ["b"]

    def test_a_receiver_gets_every_sent_message_once(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(session, queue, *numbers(300))

        assert ids(receive_all(receiver)) == numbers(300)
        assert session.count(queue) == 0
