"""A send returns the result of each message, in order; a confirmed message has arrived."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from timeoutmgr.contracts import Receiver, SendResult, TransportSession
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.testing.conformance.transports.suite import (
    TransportSuite,
    ids,
    messages,
    numbers,
    put,
    receive,
    receive_all,
)


class TransportSender(TransportSuite):
    """``send``."""

    def test_send_accepts_an_empty_list(self, session: TransportSession) -> None:
        assert session.send([]) == []

    @pytest.mark.parametrize("count", [1, 2, 499, 1_001])
    def test_a_batch_is_confirmed_and_arrives_in_order(
        self, session: TransportSession, queue: str, receiver: Receiver, count: int
    ) -> None:
        names = numbers(count)

        put(session, queue, *names)

        assert ids(receive_all(receiver)) == names

    def test_sends_arrive_in_the_order_of_the_calls(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        for name in numbers(30):
            put(session, queue, name)

        assert ids(receive(receiver, 30)) == numbers(30)

    def test_each_message_goes_to_its_own_queue(
        self, session: TransportSession, new_queue: Callable[[], str]
    ) -> None:
        queues = [new_queue() for _ in range(3)]
        outgoing = [
            Outgoing(queues[number % 3], Message(id=name))
            for number, name in enumerate(numbers(30))
        ]

        assert session.send(outgoing) == [SendResult.CONFIRMED] * 30

        for number, queue in enumerate(queues):
            with closing(session.receiver(queue, prefetch=50)) as receiver:
                assert ids(receive_all(receiver)) == numbers(30)[number::3]

    @pytest.mark.parametrize("lost", [[0], [9], [4, 5], [0, 3, 9], list(range(10))])
    def test_a_message_without_queue_is_unroutable_and_its_neighbours_arrive(
        self, session: TransportSession, queue: str, name: str, lost: list[int]
    ) -> None:
        outgoing = messages(queue, *numbers(10))
        for number in lost:
            outgoing[number] = Outgoing(name, outgoing[number].message)

        results = session.send(outgoing)

        wanted = [
            SendResult.UNROUTABLE if number in lost else SendResult.CONFIRMED
            for number in range(10)
        ]
        assert results == wanted
        assert session.count(queue) == 10 - len(lost)

    def test_a_send_finds_a_queue_created_after_a_miss(
        self, session: TransportSession, other_session: TransportSession, name: str
    ) -> None:
        assert session.send(messages(name, "a")) == [SendResult.UNROUTABLE]

        other_session.create_queues([name])

        assert session.send(messages(name, "a")) == [SendResult.CONFIRMED]

    def test_a_send_misses_a_deleted_queue(self, session: TransportSession, name: str) -> None:
        session.create_queues([name])
        put(session, name, "a")

        session.delete_queues([name])

        assert session.send(messages(name, "b")) == [SendResult.UNROUTABLE]

    def test_two_messages_of_one_id_both_arrive(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(session, queue, "same", "same")

        received = receive(receiver, 2)
        receiver.ack(received[:1])
        receiver.close()

        assert session.count(queue) == 1

    @pytest.mark.parametrize(
        "bad",
        [
            Message(id=""),
            Message(id="i" * 256),
            Message(id="half \ud800"),
            Message(id="a", content_type="t" * 256),
            Message(id="a", headers={"number": 1}),  # type: ignore[dict-item]  # hence bad
        ],
        ids=["no id", "long id", "half a character", "long type", "header is no text"],
    )
    def test_an_unsendable_message_is_refused_before_any_send(
        self, session: TransportSession, queue: str, bad: Message
    ) -> None:
        with pytest.raises(InvalidMessage):
            session.send([*messages(queue, "good"), Outgoing(queue, bad)])

        assert session.count(queue) == 0
        put(session, queue, "after")

    def test_messages_of_another_process_arrive(
        self, other_session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(other_session, queue, "a")

        assert ids(receive(receiver, 1)) == ["a"]
