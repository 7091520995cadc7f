"""Sending, receiving and settling, on every database."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from datetime import timedelta

import pytest

from tests.transport.sql.conftest import Maker
from timeoutmgr.contracts import SendResult, TransactionMode, Transport
from timeoutmgr.errors import ConfigurationError, InvalidMessage, QueueMissing
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.transport.sql import SqlQueueSettings, SqlTransport
from timeoutmgr.transport.sql.queues import SqlQueues

Make = Callable[..., list[Outgoing]]


def ids(received: list[Received]) -> list[str]:
    return [one.message.id for one in received]


def test_messages_arrive_in_the_order_in_which_they_were_sent(
    transport: SqlTransport, messages: Make
) -> None:
    session = transport.session()
    receiver = session.receiver("q", prefetch=0)

    session.send(messages(250))
    received = receiver.receive(200, 0) + receiver.receive(200, 0)

    assert ids(received) == [str(number) for number in range(250)]


@pytest.mark.parametrize(
    "message",
    [
        Message(id="plain", headers={"a": "b"}, body=b"{}"),
        Message(id="empty", body=b""),
        Message(
            id="ünïcode \U0001f600", headers={"ключ": "\U0001f600 \x00 \ud800"}, body=b"\x00\xff"
        ),
        Message(id="i" * 255, content_type="t" * 255, content_encoding="e" * 64),
        Message(id="large", body=b"\x00'\\%" * 500_000),
    ],
    ids=lambda message: message.id[:7],
)
def test_a_message_arrives_as_it_was_sent(transport: SqlTransport, message: Message) -> None:
    session = transport.session()

    assert session.send([Outgoing("q", message)]) == [SendResult.CONFIRMED]
    (received,) = session.receiver("q", prefetch=1).receive(1, 0)

    assert received == Received(message=message, queue="q", tag=received.tag)


def test_headers_that_steer_a_broker_are_not_passed_on(transport: SqlTransport) -> None:
    session = transport.session()
    headers = {"CC": "elsewhere", "x-death": "much", "x-mine": "kept"}

    session.send([Outgoing("q", Message(id="1", headers=headers))])
    (received,) = session.receiver("q", prefetch=1).receive(1, 0)

    assert received.message.headers == {"x-mine": "kept"}


@pytest.mark.parametrize(
    "bad",
    [
        Message(id=""),
        Message(id="i" * 256),
        Message(id="nul\0"),
        Message(id="half \ud800"),
        Message(id="1", content_type="t" * 256),
        Message(id="1", content_encoding="e" * 65),
        Message(id="1", headers={"n": 1}),  # type: ignore[dict-item]  # wrong on purpose
    ],
)
def test_an_unstorable_message_is_refused_before_any_send(
    transport: SqlTransport, bad: Message
) -> None:
    session = transport.session()

    with pytest.raises(InvalidMessage):
        session.send([Outgoing("q", Message(id="good")), Outgoing("q", bad)])

    assert session.count("q") == 0


def test_a_message_to_a_missing_queue_is_unroutable_and_its_neighbours_are_sent(
    transport: SqlTransport,
) -> None:
    session = transport.session()
    nowhere = ["nowhere", "n" * 251, "nul\0", "half \ud800", ""]

    results = session.send([Outgoing(queue, Message(id="1")) for queue in ["q", *nowhere, "other"]])

    unroutable = [SendResult.UNROUTABLE] * len(nowhere)
    assert results == [SendResult.CONFIRMED, *unroutable, SendResult.CONFIRMED]
    assert (session.count("q"), session.count("other")) == (1, 1)


def test_a_queue_that_was_created_after_a_miss_is_found_at_once(
    transport: SqlTransport, make_transport: Maker
) -> None:
    session = transport.session()
    assert session.send([Outgoing("late", Message(id="1"))]) == [SendResult.UNROUTABLE]

    make_transport().session().create_queues(["late"])

    assert session.send([Outgoing("late", Message(id="1"))]) == [SendResult.CONFIRMED]


@pytest.mark.parametrize(
    ("one", "other"),
    [("e.timeouts", "e.Timeouts"), ("q1", "q1 "), ("ä", "a"), ("ä", "a\u0308"), ("ß", "ss")],
)
def test_queue_names_that_differ_by_a_byte_are_two_queues(
    transport: SqlTransport, one: str, other: str
) -> None:
    session = transport.session()

    session.create_queues([one])
    assert session.missing_queues([one, other]) == [other]
    session.create_queues([other])
    session.send([Outgoing(one, Message(id="1")), Outgoing(one, Message(id="2"))])

    assert (session.count(one), session.count(other)) == (2, 0)
    assert session.receiver(other, prefetch=1).receive(1, 0) == []


def test_queue_names_have_at_most_250_characters(transport: SqlTransport) -> None:
    session = transport.session()
    longest = "\U0001f600" * 250

    session.create_queues([longest])

    assert session.send([Outgoing(longest, Message(id="1"))]) == [SendResult.CONFIRMED]
    for name in (longest + "x", "", "nul\0"):
        with pytest.raises(ConfigurationError):
            session.create_queues([name])


def test_creating_again_keeps_messages_and_deleting_removes_them(
    transport: SqlTransport, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(3))

    session.create_queues(["q"], error_queue="error")
    assert session.count("q") == 3
    session.delete_queues(["q", "never-there"])

    assert session.missing_queues(["q"]) == ["q"]
    assert session.send(messages(1)) == [SendResult.UNROUTABLE]
    with pytest.raises(QueueMissing):
        session.receiver("q", prefetch=1)


def test_a_queue_of_a_deleted_queues_name_begins_without_its_late_messages(
    transport: SqlTransport, make_transport: Maker, messages: Make
) -> None:
    session, other = transport.session(), make_transport().session()
    session.send(messages(2))  # from now on the process knows the queue for a second
    other.delete_queues(["q"])
    session.send(messages(2))

    other.create_queues(["q"])

    assert session.count("q") == 0
    assert session.send(messages(1)) == [SendResult.CONFIRMED]
    other.create_queues(["q"])
    assert session.count("q") == 1


def test_messages_without_a_queue_are_removed_by_the_next_send_that_misses_it(
    transport: SqlTransport, make_transport: Maker, messages: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = transport.session(), make_transport().session()
    session.send(messages(2))
    other.delete_queues(["q"])
    session.send(messages(2))

    known = transport.queues._known
    known.update({name: (0.0, options) for name, (_, options) in known.items()})
    results = session.send([*messages(1), *messages(1, "other")])

    assert results == [SendResult.UNROUTABLE, SendResult.CONFIRMED]
    assert (session.count("q"), session.missing_queues(["q"])) == (0, ["q"])


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_single_message_to_a_queue_that_another_process_deleted_is_unroutable(
    transport: SqlTransport, make_transport: Maker, messages: Make
) -> None:
    session, other = transport.session(), make_transport().session()
    assert session.send(messages(1)) == [SendResult.CONFIRMED]
    assert session.send(messages(1)) == [SendResult.CONFIRMED]
    other.delete_queues(["q"])

    assert session.send(messages(1)) == [SendResult.UNROUTABLE]
    assert session.count("q") == 0
    other.create_queues(["q"])
    assert session.send(messages(1)) == [SendResult.CONFIRMED]
    assert session.count("q") == 1


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_confirmed_message_is_in_the_queue_that_another_process_creates_meanwhile(
    transport: SqlTransport,
    make_transport: Maker,
    messages: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, other = transport.session(), make_transport().session()
    session.send(messages(1))
    other.delete_queues(["q"])
    forget = SqlQueues._forget

    def create_first(queues: SqlQueues, names: Collection[str]) -> list[str]:
        other.create_queues(["q"])  # which removes the message that has no queue
        return forget(queues, names)

    monkeypatch.setattr(SqlQueues, "_forget", create_first)

    assert session.send(messages(1)) == [SendResult.CONFIRMED]
    assert session.count("q") == 1


def test_prefetch_bounds_the_unacknowledged_messages(
    transport: SqlTransport, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(5))
    receiver = session.receiver("q", prefetch=2)

    first = receiver.receive(10, 0)
    assert ids(first) == ["0", "1"]
    assert receiver.receive(10, 0) == []
    receiver.ack(first[:1])

    assert ids(receiver.receive(10, 0)) == ["2"]


def test_released_messages_come_back_in_their_place(
    transport: SqlTransport, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(4))
    receiver = session.receiver("q", prefetch=0)
    received = receiver.receive(3, 0)

    receiver.release(received[1:])
    again = receiver.receive(10, 0)

    assert [(one.message.id, one.delivery_count) for one in again] == [
        ("1", 1),
        ("2", 1),
        ("3", 0),
    ]


def test_closing_a_receiver_releases_its_unacknowledged_messages(
    transport: SqlTransport, messages: Make
) -> None:
    session = transport.session()
    session.send(messages(3))
    receiver = session.receiver("q", prefetch=0)
    receiver.ack(receiver.receive(1, 0))
    receiver.receive(1, 0)

    receiver.close()
    receiver.close()

    assert ids(session.receiver("q", prefetch=0).receive(10, 0)) == ["1", "2"]


def test_an_interrupt_ends_a_wait_at_once(transport: SqlTransport) -> None:
    receiver = transport.session().receiver("q", prefetch=1)
    started = time.monotonic()

    threading.Timer(0.05, receiver.interrupt).start()
    received = receiver.receive(1, 30)

    assert received == []
    assert time.monotonic() - started < 5


def test_a_send_wakes_a_receiver_of_the_same_process_at_once(
    transport: SqlTransport, make_transport: Maker, messages: Make
) -> None:
    hour = timedelta(hours=1)
    seldom = make_transport(settings=SqlQueueSettings(poll_min=hour, poll_max=hour))
    receiver = seldom.session().receiver("q", prefetch=1)
    timer = threading.Timer(0.1, lambda: transport.session().send(messages(1)))

    timer.start()
    received = receiver.receive(1, 30)
    timer.join()

    assert ids(received) == ["0"]


def test_many_receivers_get_every_message_once(
    transport: SqlTransport, make_transport: Maker, messages: Make
) -> None:
    transport.session().send(messages(2000))
    got: list[list[str]] = [[] for _ in range(4)]

    def consume(number: int) -> None:
        receiver = make_transport().session().receiver("q", prefetch=0)
        while received := receiver.receive(20, 1.0):
            got[number] += ids(received)
            receiver.ack(received)

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    counts = Counter(one for part in got for one in part)
    assert len(counts) == 2000
    assert set(counts.values()) == {1}
    assert transport.session().count("q") == 0


def test_the_sql_queue_is_a_transport_with_all_modes(transport: SqlTransport) -> None:
    as_contract: Transport = transport  # for the type checker
    assert as_contract is transport
    assert transport.capabilities.modes == set(TransactionMode)
    assert transport.capabilities.durable
    assert transport.database is not None


def test_closing_twice_is_fine(transport: SqlTransport) -> None:
    session = transport.session()
    session.receiver("q", prefetch=1)
    session.ping()

    session.close()
    transport.close()
    transport.close()
