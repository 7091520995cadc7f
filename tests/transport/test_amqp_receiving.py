"""A message received from RabbitMQ is unacknowledged until the receiver settles or releases it."""

from __future__ import annotations

import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing

import pytest

from tests.support.limits import no_descriptor
from tests.support.waiting import eventually
from tests.transport.traffic import ids, receive, send
from timeoutmgr.contracts import Receiver, TransportSession
from timeoutmgr.errors import QueueMissing, TransportUnavailable
from timeoutmgr.transport.amqp.connection import AmqpConnection
from timeoutmgr.transport.amqp.receiver import RabbitMQReceiver
from timeoutmgr.transport.kombu_transport import KombuTransport


def test_acknowledged_messages_are_deleted_and_the_rest_come_back(
    session: TransportSession, queue: str
) -> None:
    send(session, queue, *"abcdef")

    with closing(session.receiver(queue, prefetch=10)) as receiver:
        received = receive(receiver, 6)
        receiver.ack([received[0], received[1], received[4]])
        receiver.ack([received[0]])

    with closing(session.receiver(queue, prefetch=10)) as receiver:
        back = receive(receiver, 3)
        assert ids(back) == ["c", "d", "f"]
        assert [one.delivery_count for one in back] == [1, 1, 1]
        receiver.ack(back)
    assert session.count(queue) == 0


def test_released_messages_come_back_at_once_and_in_order(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    send(session, queue, *"abc")
    received = receive(receiver, 3)

    receiver.release(received[1:])

    assert ids(receive(receiver, 2)) == ["b", "c"]


def test_an_acknowledgement_of_received_messages_leaves_the_buffered_messages(
    session: TransportSession, queue: str
) -> None:
    send(session, queue, *(str(n) for n in range(20)))

    with closing(session.receiver(queue, prefetch=20)) as receiver:
        receiver.ack(receive(receiver, 5))

    with closing(session.receiver(queue, prefetch=20)) as receiver:
        assert ids(receive(receiver, 15)) == [str(n) for n in range(5, 20)]


def test_a_quorum_queue_counts_deliveries(rabbitmq_url: str, unique: str) -> None:
    with (
        closing(KombuTransport(rabbitmq_url, queue_type="quorum")) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        send(session, unique, "1")
        with closing(session.receiver(unique, prefetch=1)) as receiver:
            counts = []
            for _ in range(3):
                (received,) = receive(receiver, 1)
                counts.append(received.delivery_count)
                receiver.release([received])
        session.delete_queues([unique])

    assert counts == [0, 1, 2]


def test_no_more_than_the_limit_is_returned_and_the_rest_stays_buffered(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    send(session, queue, *"abcd")

    assert ids(receive(receiver, 3)) == ["a", "b", "c"]
    assert ids(receive(receiver, 1)) == ["d"]
    assert receiver.receive(1, 0) == []


def test_the_prefetch_bounds_the_unacknowledged_messages(
    session: TransportSession, queue: str
) -> None:
    send(session, queue, *"abcd")

    with closing(session.receiver(queue, prefetch=2)) as receiver:
        received = receive(receiver, 2)
        assert receiver.receive(10, 0.1) == []
        assert session.count(queue) == 2

        receiver.ack(received)
        assert ids(receive(receiver, 2)) == ["c", "d"]


def test_an_interrupt_ends_a_wait(receiver: Receiver) -> None:
    began = threading.Event()

    def interrupt() -> None:
        began.wait(10)
        receiver.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    start = time.monotonic()
    began.set()

    assert receiver.receive(1, 30) == []
    assert time.monotonic() - start < 5
    thread.join()
    assert receiver.receive(1, 0.01) == []


def test_an_interrupt_loses_no_message(
    session: TransportSession, queue: str, receiver: Receiver
) -> None:
    send(session, queue, "a")

    receiver.interrupt()

    assert ids(receive(receiver, 1)) == ["a"]


def test_no_heartbeat_reads_the_answers_of_a_receiver_that_opens(
    session: TransportSession, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, was_free = AmqpConnection.asking, list[bool]()

    def observed(connection: AmqpConnection) -> AbstractContextManager[None]:
        was_free.append(could_beat(connection))
        return asking(connection)

    monkeypatch.setattr(AmqpConnection, "asking", observed)
    session.receiver(queue, prefetch=1).close()

    assert was_free == [False]


def test_no_heartbeat_reads_the_answer_to_the_close_of_a_receiver_that_cannot_open(
    session: TransportSession, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, was_free = AmqpConnection.close, list[bool]()

    def observed(connection: AmqpConnection) -> None:
        was_free.append(could_beat(connection))
        close(connection)

    monkeypatch.setattr(AmqpConnection, "close", observed)
    with pytest.raises(QueueMissing):
        session.receiver(unique, prefetch=1)

    assert was_free == [False]


def could_beat(connection: AmqpConnection) -> bool:
    """Return whether another thread may use *connection* now."""
    with ThreadPoolExecutor(1) as heartbeats:
        return heartbeats.submit(connection.lock.acquire, blocking=False).result()


def test_a_receiver_gets_further_messages_although_a_heartbeat_read_the_first(
    session: TransportSession, queue: str
) -> None:
    send(session, queue, *"abc")

    with closing(session.receiver(queue, prefetch=10)) as receiver:
        assert isinstance(receiver, RabbitMQReceiver)
        connection = receiver._connection
        assert connection is not None

        def reads_by_a_heartbeat() -> bool:
            connection.beat()
            return bool(receiver._buffer)

        eventually(reads_by_a_heartbeat, "a heartbeat reads the first message")

        assert ids(receive(receiver, 3)) == ["a", "b", "c"]


def test_a_receiver_waits_in_a_process_with_many_open_files(
    session: TransportSession, queue: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    with ExitStack() as stack:
        for _ in range(1_100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        receiver = stack.enter_context(closing(session.receiver(queue, prefetch=1)))

        receiver._wake.wait(0)  # type: ignore[attr-defined]  # the receiver of RabbitMQ has it


def test_a_receiver_without_a_descriptor_is_an_outage(
    session: TransportSession, queue: str
) -> None:
    with no_descriptor(), pytest.raises(TransportUnavailable, match="Too many open files"):
        session.receiver(queue, prefetch=1)

    session.receiver(queue, prefetch=1).close()
