"""What became of each message is told, in order; what is confirmed is there."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from timeoutmgr.contracts import Receiver, SendResult, TransportSession
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import Message, Outgoing
from timeoutmgr.testing.conformance.transports.suite import (
    TransportSuite,
    ids,
    messages,
    numbers,
    put,
    take,
    take_all,
)


class Sending(TransportSuite):
    """``send``."""

    def test_nothing_can_be_sent(self, session: TransportSession) -> None:
        assert session.send([]) == []

    @pytest.mark.parametrize("count", [1, 2, 499, 1_001])
    def test_all_are_confirmed_and_there_in_order(
        self, session: TransportSession, queue: str, receiver: Receiver, count: int
    ) -> None:
        names = numbers(count)

        put(session, queue, *names)

        assert ids(take_all(receiver)) == names

    def test_sends_arrive_in_the_order_of_the_calls(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        for name in numbers(30):
            put(session, queue, name)

        assert ids(take(receiver, 30)) == numbers(30)

    def test_each_goes_where_it_is_sent(
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
                assert ids(take_all(receiver)) == numbers(30)[number::3]

    @pytest.mark.parametrize("lost", [[0], [9], [4, 5], [0, 3, 9], list(range(10))])
    def test_what_has_no_queue_is_unroutable_and_its_neighbours_are_not(
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

    def test_a_queue_that_came_after_a_miss_is_found(
        self, session: TransportSession, other_session: TransportSession, name: str
    ) -> None:
        assert session.send(messages(name, "a")) == [SendResult.UNROUTABLE]

        other_session.create_queues([name])

        assert session.send(messages(name, "a")) == [SendResult.CONFIRMED]

    def test_a_queue_that_went_is_missed(self, session: TransportSession, name: str) -> None:
        session.create_queues([name])
        put(session, name, "a")

        session.delete_queues([name])

        assert session.send(messages(name, "b")) == [SendResult.UNROUTABLE]

    def test_one_id_twice_is_two_messages(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(session, queue, "same", "same")

        received = take(receiver, 2)
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
    def test_what_cannot_be_kept_is_refused_before_anything_is_sent(
        self, session: TransportSession, queue: str, bad: Message
    ) -> None:
        with pytest.raises(InvalidMessage):
            session.send([*messages(queue, "good"), Outgoing(queue, bad)])

        assert session.count(queue) == 0
        put(session, queue, "after")

    def test_what_another_process_sent_arrives(
        self, other_session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(other_session, queue, "a")

        assert ids(take(receiver, 1)) == ["a"]
