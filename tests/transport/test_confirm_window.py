"""A window returns an outcome for each message, or says that the outcome is unknown."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from urllib.parse import urlsplit

import amqp
import pytest

from tests.services import rabbitmq
from tests.services.private import PrivateServer
from tests.transport.proxy import Proxy
from timeoutmgr.contracts import SendResult, StartsSending, TransportSession
from timeoutmgr.errors import InvalidMessage, MessageTooLarge, TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.settings import KombuSettings


@contextmanager
def opened(url: str, confirm_window: int = 500) -> Iterator[TransportSession]:
    with (
        closing(
            KombuTransport(
                url,
                queue_type="classic",
                confirm_window=confirm_window,
                confirm_timeout=timedelta(seconds=1),
            )
        ) as transport,
        closing(transport.session()) as session,
    ):
        yield session


@pytest.fixture
def through_proxy(rabbitmq_url: str, proxy: Proxy) -> str:
    parts = urlsplit(rabbitmq_url)
    return parts._replace(
        netloc=f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
    ).geturl()


@pytest.fixture
def queue(rabbitmq_url: str, unique: str) -> Iterator[str]:
    with opened(rabbitmq_url) as session:
        session.create_queues([unique])
        yield unique
        session.delete_queues([unique])


def messages(queue: str, count: int, body: bytes = b"{}") -> list[Outgoing]:
    return [Outgoing(queue, Message(id=f"message-{n}", body=body)) for n in range(count)]


def bodies(session: TransportSession, queue: str) -> list[str]:
    with closing(session.receiver(queue, prefetch=5000)) as receiver:
        found: list[str] = []
        while received := receiver.receive(5000, 1.0):  # a loaded machine pauses for a while
            found += [one.message.id for one in received]
            receiver.ack(received)
    return found


@pytest.mark.parametrize(
    ("count", "confirm_window"), [(1, 500), (2000, 500), (2000, 7), (500, 500), (501, 500)]
)
def test_every_message_is_confirmed_and_there_in_order(
    rabbitmq_url: str, queue: str, count: int, confirm_window: int
) -> None:
    with opened(rabbitmq_url, confirm_window) as session:
        results = session.send(messages(queue, count))

        assert results == [SendResult.CONFIRMED] * count
        assert bodies(session, queue) == [f"message-{n}" for n in range(count)]


def test_sending_nothing_connects_to_nothing() -> None:
    with opened("amqp://guest:guest@127.0.0.1:1//") as session:
        assert session.send([]) == []


def test_a_message_to_a_missing_queue_is_unroutable_and_its_neighbours_are_not(
    rabbitmq_url: str, queue: str
) -> None:
    outgoing = messages(queue, 100)
    for n in (0, 41, 42, 99):
        outgoing[n] = Outgoing(f"{queue}.missing", outgoing[n].message)

    with opened(rabbitmq_url) as session:
        results = session.send(outgoing)

    unroutable = [n for n, result in enumerate(results) if result is SendResult.UNROUTABLE]
    assert unroutable == [0, 41, 42, 99]
    assert set(results) == {SendResult.UNROUTABLE, SendResult.CONFIRMED}


def test_a_message_id_sent_to_two_queues_is_unroutable_for_the_missing_queue_only(
    rabbitmq_url: str, queue: str
) -> None:
    message = Message(id="same")

    with opened(rabbitmq_url) as session:
        results = session.send([Outgoing(queue, message), Outgoing(f"{queue}.missing", message)])

    assert results == [SendResult.CONFIRMED, SendResult.UNROUTABLE]


def test_many_large_returns_do_not_stop_the_window(rabbitmq_url: str, unique: str) -> None:
    with opened(rabbitmq_url) as session:
        results = session.send(messages(unique, 200, body=bytes(200_000)))

    assert results == [SendResult.UNROUTABLE] * 200


def test_a_full_queue_refuses(rabbitmq_url: str, raw_channel: amqp.Channel, unique: str) -> None:
    raw_channel.queue_declare(
        unique,
        auto_delete=False,
        arguments={"x-max-length": 1, "x-overflow": "reject-publish"},
    )

    with opened(rabbitmq_url) as session:
        # RabbitMQ checks the limit at an arrival, so the queue may get one message too many.
        results = session.send(messages(unique, 10))
        session.delete_queues([unique])

    assert results[0] is SendResult.CONFIRMED
    assert results[-1] is SendResult.REFUSED


def test_without_answers_all_results_are_unknown_and_the_connection_is_replaced(
    through_proxy: str, proxy: Proxy, queue: str
) -> None:
    with opened(through_proxy) as session:
        assert session.send(messages(queue, 3)) == [SendResult.CONFIRMED] * 3
        proxy.stop_answers()

        unknown = session.send(messages(queue, 3))
        proxy.let_through()
        confirmed = session.send(messages(queue, 2))

    assert unknown == [SendResult.UNKNOWN] * 3
    assert confirmed == [SendResult.CONFIRMED] * 2
    assert proxy.connections == 2


def test_windows_after_an_unknown_window_are_unknown(
    through_proxy: str, proxy: Proxy, queue: str
) -> None:
    with opened(through_proxy, confirm_window=2) as session:
        session.ping()
        session.send(messages(queue, 1))
        proxy.stop_answers()

        results = session.send(messages(queue, 6))

    assert results == [SendResult.UNKNOWN] * 6


def test_a_connection_cut_within_a_window_raises_nothing_and_loses_no_confirmed_message(
    rabbitmq_url: str, through_proxy: str, proxy: Proxy, queue: str
) -> None:
    with opened(through_proxy, confirm_window=50) as session:
        session.send(messages(queue, 1))
        proxy.cut_after(60_000)

        results = session.send(messages(queue, 2000, body=bytes(200)))
        proxy.let_through()

    with opened(rabbitmq_url) as session:
        arrived = set(bodies(session, queue))
    assert {SendResult.CONFIRMED, SendResult.UNKNOWN} == set(results)
    assert arrived >= {
        f"message-{n}" for n, result in enumerate(results) if result is SendResult.CONFIRMED
    }


def test_a_connection_cut_while_idle_is_replaced_before_anything_is_written(
    through_proxy: str, proxy: Proxy, queue: str
) -> None:
    with opened(through_proxy) as session:
        session.send(messages(queue, 1))
        proxy.cut()

        results = session.send(messages(queue, 2))

    assert results == [SendResult.CONFIRMED] * 2
    assert proxy.connections == 2


def test_the_wait_for_a_silent_broker_ends(through_proxy: str, proxy: Proxy) -> None:
    with opened(through_proxy) as session:
        session.ping()
        proxy.stop_answers()

        with pytest.raises(TransportUnavailable):
            session.ping()

        proxy.let_through()
        session.ping()


def test_a_missing_broker_raises_transport_unavailable() -> None:
    with (
        opened("amqp://guest:sesame@127.0.0.1:1//") as session,
        pytest.raises(TransportUnavailable) as caught,
    ):
        session.send(messages("queue", 1))

    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("destination", "message"),
    [
        ("queue", Message(id="i" * 256)),
        ("queue", Message(id="é" * 128)),
        ("queue", Message(id="")),
        ("queue", Message(id="\ud800")),
        ("queue", Message(id="1", headers={"n" * 256: ""})),
        ("queue", Message(id="1", headers={"name": "\ud800"})),
        ("queue", Message(id="1", content_type="t" * 256)),
        ("q" * 256, Message(id="1")),
    ],
)
def test_an_unwritable_message_is_refused_before_any_write(
    rabbitmq_url: str, queue: str, destination: str, message: Message
) -> None:
    with opened(rabbitmq_url) as session:
        with pytest.raises(InvalidMessage):
            session.send([*messages(queue, 2), Outgoing(destination, message)])

        assert session.count(queue) == 0


def test_headers_larger_than_a_frame_are_refused_before_anything_is_written(
    rabbitmq_url: str, queue: str
) -> None:
    large = Message(id="1", headers={"stack": "x" * 200_000})

    with opened(rabbitmq_url) as session:
        with pytest.raises(MessageTooLarge):
            session.send([*messages(queue, 2), Outgoing(queue, large)])

        assert session.count(queue) == 0


def test_a_body_over_the_limit_is_refused(rabbitmq_url: str, queue: str) -> None:
    with (
        closing(KombuTransport(rabbitmq_url, max_message_size=10)) as transport,
        closing(transport.session()) as session,
    ):
        assert session.send(messages(queue, 1, body=bytes(10))) == [SendResult.CONFIRMED]
        with pytest.raises(MessageTooLarge):
            session.send(messages(queue, 1, body=bytes(11)))


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 1_000_000])
def test_a_body_of_any_size_arrives_whole(rabbitmq_url: str, queue: str, size: int) -> None:
    body = bytes(n % 251 for n in range(size))

    with opened(rabbitmq_url) as session:
        session.send([Outgoing(queue, Message(id="1", body=body))])
        with closing(session.receiver(queue, prefetch=1)) as receiver:
            (received,) = receiver.receive(1, 5)

    assert received.message.body == body


def set_memory_limit(server: PrivateServer, part: str) -> None:
    """Set the part of memory over which the broker raises an alarm and stops reading."""
    subprocess.run(
        [str(rabbitmq._script("rabbitmqctl")), "set_vm_memory_high_watermark", part],
        env={**os.environ, **server._env()},
        check=True,
        capture_output=True,
    )


@pytest.mark.slow
def test_while_an_alarm_blocks_the_broker_only_one_window_is_in_doubt(
    private_server: Callable[[str], PrivateServer], unique: str
) -> None:
    server = private_server("rabbitmq")
    server.start()
    with opened(server.url) as session:
        session.create_queues([unique])
        session.send(messages(unique, 1))
        set_memory_limit(server, "0")

        in_doubt = session.send(messages(unique, 20, body=bytes(10_000)))
        for _ in range(3):
            with pytest.raises(TransportUnavailable, match="alarm is on; nothing was sent"):
                session.send(messages(unique, 20))
        session.ping()
        set_memory_limit(server, "0.9")
        after: Sequence[SendResult] = []
        while not after:
            with suppress(TransportUnavailable):
                after = session.send(messages(unique, 2))
            session.ping()
        arrived = bodies(session, unique)

    assert in_doubt[-1] is SendResult.UNKNOWN
    assert after == [SendResult.CONFIRMED] * 2
    assert arrived[-2:] == ["message-0", "message-1"]
    assert len(arrived) <= 1 + 20 + 2


def starting(session: TransportSession) -> StartsSending:
    assert isinstance(session, StartsSending)
    return session


def test_a_started_sending_sends_and_has_the_results_of_a_send(
    queue: str, rabbitmq_url: str
) -> None:
    with opened(rabbitmq_url, confirm_window=2) as session:
        sending = starting(session).start_sending(
            [*messages(queue, 4), Outgoing("nowhere at all", Message(id="lost"))]
        )
        results = sending.results()
        arrived = bodies(session, queue)

    assert results == [SendResult.CONFIRMED] * 4 + [SendResult.UNROUTABLE]
    assert len(arrived) == 4


def test_a_sending_that_is_cut_off_is_unknown_and_the_next_send_is_confirmed(
    through_proxy: str, proxy: Proxy, queue: str
) -> None:
    with opened(through_proxy) as session:
        session.send(messages(queue, 1))
        proxy.stop_answers()
        sending = starting(session).start_sending(messages(queue, 3))
        proxy.cut()
        proxy.let_through()

        unknown = sending.results()
        confirmed = session.send(messages(queue, 2))

    assert unknown == [SendResult.UNKNOWN] * 3
    assert confirmed == [SendResult.CONFIRMED] * 2


def test_a_confirm_of_a_sending_without_a_wait_does_not_count_for_a_later_send(
    through_proxy: str, proxy: Proxy, queue: str
) -> None:
    with opened(through_proxy) as session:
        session.send(messages(queue, 1))
        proxy.stop_answers()
        starting(session).start_sending(messages(queue, 3))

        results = session.send(messages(queue, 2))
        proxy.let_through()
        confirmed = session.send(messages(queue, 2))

    assert results == [SendResult.UNKNOWN] * 2
    assert confirmed == [SendResult.CONFIRMED] * 2


@pytest.mark.parametrize("confirm_window", [500, 3])
def test_several_sendings_under_way_each_have_their_own_results(
    rabbitmq_url: str, queue: str, confirm_window: int
) -> None:
    lost = Outgoing("nowhere at all", Message(id="lost"))
    sent = messages(queue, 6)
    with opened(rabbitmq_url, confirm_window) as session:
        first = starting(session).start_sending([*sent[:2], lost])
        second = starting(session).start_sending(sent[2:5])
        third = session.send(sent[5:])
        results = [second.results(), first.results(), third]
        arrived = bodies(session, queue)

    confirmed = SendResult.CONFIRMED
    assert results == [[confirmed] * 3, [confirmed] * 2 + [SendResult.UNROUTABLE], [confirmed]]
    assert arrived == [one.message.id for one in sent]


def test_a_session_serves_other_calls_while_messages_are_under_way(
    rabbitmq_url: str, queue: str
) -> None:
    with opened(rabbitmq_url) as session:
        first = starting(session).start_sending(messages(queue, 2))
        missing = session.missing_queues([queue, "nowhere at all"])
        with pytest.raises(MessageTooLarge):
            starting(session).start_sending(
                [Outgoing(queue, Message(id="1", headers={"stack": "x" * 200_000}))]
            )
        session.delete_queues([queue])
        second = starting(session).start_sending(messages(queue, 1))

        results = first.results(), second.results()

    assert missing == ["nowhere at all"]
    assert results == ([SendResult.CONFIRMED] * 2, [SendResult.UNROUTABLE])


def test_many_large_returns_do_not_stop_small_sendings(rabbitmq_url: str, unique: str) -> None:
    with opened(rabbitmq_url) as session:
        under_way = [
            starting(session).start_sending(messages(unique, 1, body=bytes(60_000)))
            for _ in range(450)
        ]

        results = [sending.results() for sending in under_way]

    assert results == [[SendResult.UNROUTABLE]] * 450


def test_a_sending_under_way_on_a_lost_connection_is_unknown_and_the_next_is_sent(
    through_proxy: str, proxy: Proxy, queue: str
) -> None:
    with opened(through_proxy) as session:
        session.send(messages(queue, 1))
        proxy.stop_answers()
        first = starting(session).start_sending(messages(queue, 3))
        proxy.cut()
        proxy.let_through()

        second = starting(session).start_sending(messages(queue, 2))

        assert second.results() == [SendResult.CONFIRMED] * 2
        assert first.results() == [SendResult.UNKNOWN] * 3


def test_heartbeats_keep_a_sending_under_way_while_its_sender_is_busy(
    through_proxy: str, proxy: Proxy, queue: str
) -> None:
    settings = KombuSettings(heartbeat=timedelta(seconds=1))
    with (
        closing(KombuTransport(through_proxy, settings=settings)) as transport,
        closing(transport.session()) as session,
    ):
        first = starting(session).start_sending(messages(queue, 2))

        proxy.wait_for_writes(7)  # the next is slow to come: the broker waits for two heartbeats

        second = starting(session).start_sending(messages(queue, 1))
        results = [first.results(), second.results()]

    assert results == [[SendResult.CONFIRMED] * 2, [SendResult.CONFIRMED]]
    assert proxy.connections == 1
