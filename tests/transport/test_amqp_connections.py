"""A lost connection to RabbitMQ is noticed and replaced; unacknowledged messages come back."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import amqp
import pytest

from tests.support.forks import ended_in_a_child
from tests.support.limits import no_thread
from tests.transport.proxy import Proxy
from tests.transport.traffic import ids, receive, send
from timeoutmgr.contracts import TransportSession
from timeoutmgr.errors import ConfigurationError, LeaseLost, QueueMissing, TransportUnavailable
from timeoutmgr.transport.amqp.connection import AmqpConnection, Heartbeats
from timeoutmgr.transport.amqp.receiver import RabbitMQReceiver
from timeoutmgr.transport.amqp.session import RabbitMQSession
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.settings import KombuSettings


@pytest.fixture
def far_url(rabbitmq_url: str, proxy: Proxy) -> str:
    parts = urlsplit(rabbitmq_url)
    netloc = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
    return parts._replace(netloc=netloc).geturl()


@pytest.fixture
def far_session(far_url: str) -> Iterator[TransportSession]:
    with (
        closing(KombuTransport(far_url, confirm_timeout=timedelta(seconds=2))) as transport,
        closing(transport.session()) as session,
    ):
        yield session


def test_a_receiver_connects_again_and_unacknowledged_messages_come_back(
    far_session: TransportSession, proxy: Proxy, session: TransportSession, queue: str
) -> None:
    send(session, queue, "a", "b")
    with closing(far_session.receiver(queue, prefetch=10)) as receiver:
        before = receive(receiver, 2)
        proxy.cut()

        with pytest.raises(TransportUnavailable):
            receiver.receive(1, 5)
        after = receive(receiver, 2)
        with pytest.raises(LeaseLost):
            receiver.ack(before)
        receiver.release(before)
        receiver.ack(after)

    assert ids(after) == ["a", "b"]
    assert session.count(queue) == 0


def test_an_acknowledgement_on_a_lost_connection_raises(
    far_session: TransportSession, proxy: Proxy, session: TransportSession, queue: str
) -> None:
    send(session, queue, "a")
    with closing(far_session.receiver(queue, prefetch=10)) as receiver:
        received = receive(receiver, 1)
        proxy.cut()
        with pytest.raises(TransportUnavailable):
            receiver.receive(1, 5)

        with pytest.raises(LeaseLost):
            receiver.ack(received)
        receiver.release(received)


def test_a_refusal_that_is_cut_inside_a_character_is_a_refusal(rabbitmq_url: str) -> None:
    missing = urlsplit(rabbitmq_url)._replace(path=f"/{quote('a' + 'ü' * 118)}").geturl()
    with (
        closing(KombuTransport(missing)) as transport,
        closing(transport.session()) as session,
        pytest.raises(TransportUnavailable, match="NOT_ALLOWED - vhost aü"),
    ):
        session.ping()


def test_a_deleted_queue_ends_its_receiver(session: TransportSession, unique: str) -> None:
    session.create_queues([unique])
    with closing(session.receiver(unique, prefetch=1)) as receiver:
        session.delete_queues([unique])

        with pytest.raises(TransportUnavailable):
            receiver.receive(1, 10)
        with pytest.raises(QueueMissing):
            receiver.receive(1, 10)


def test_a_receiver_that_is_closed_says_so(session: TransportSession, queue: str) -> None:
    receiver = session.receiver(queue, prefetch=1)
    receiver.close()
    receiver.close()

    receiver.interrupt()
    with pytest.raises(TransportUnavailable):
        receiver.receive(1, 0)


@pytest.mark.parametrize(("ours", "brokers"), [(1, 60), (30, 1)])
def test_heartbeats_keep_a_receiver_whose_thread_is_busy(
    far_url: str,
    proxy: Proxy,
    session: TransportSession,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    ours: int,
    brokers: int,
) -> None:
    settings = KombuSettings(heartbeat=timedelta(seconds=ours))
    on_tune = amqp.Connection._on_tune

    def tuned(connection: Any, channels: int, frame: int, _: int, *more: Any) -> None:
        on_tune(connection, channels, frame, brokers, *more)

    monkeypatch.setattr(amqp.Connection, "_on_tune", tuned)
    send(session, queue, "slow")
    with (
        closing(KombuTransport(far_url, settings=settings)) as transport,
        closing(transport.session()) as far,
        closing(far.receiver(queue, prefetch=1)) as receiver,
    ):
        received = receive(receiver, 1)

        proxy.wait_for_writes(7)  # a slow handler: the broker's patience is two heartbeats

        receiver.ack(received)
        assert receiver.receive(1, 0.1) == []
    assert proxy.connections == 1
    assert session.count(queue) == 0


def test_a_process_that_may_open_no_more_files_finds_the_broker_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("timeoutmgr.transport.amqp.connection.selectors.DefaultSelector", refuse)

    with (
        closing(KombuTransport("amqp://localhost").session()) as session,
        pytest.raises(TransportUnavailable, match="connecting failed: OSError"),
    ):
        session.missing_queues(["q"])


def test_a_process_without_a_thread_for_heartbeats_finds_the_broker_unavailable(
    rabbitmq_url: str, queue: str
) -> None:
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        with no_thread(), pytest.raises(TransportUnavailable, match="can't start new thread"):
            session.missing_queues([queue])

        assert session.missing_queues([queue]) == []


def test_a_child_waits_for_no_call_of_its_parent() -> None:
    calls = KombuTransport("amqp://localhost").unanswered

    with calls.waiting(None):
        assert ended_in_a_child(lambda: 3 if calls.oldest() else 2) == 2


class Connection:
    """A connection that tells of a heartbeat."""

    broken: str | None = None

    def __init__(self) -> None:
        self.has_beaten = threading.Event()

    def beat(self) -> None:
        self.has_beaten.set()


def test_a_connection_beats_although_the_heartbeats_were_closed_before() -> None:
    with closing(Heartbeats(timedelta(milliseconds=4))) as heartbeats:
        before, after = Connection(), Connection()
        heartbeats.add(before)
        heartbeats.close()

        heartbeats.add(after)

        assert after.has_beaten.wait(30)


class BrokenConnection(Connection):
    """A connection whose beat fails in a way that nobody foresaw."""

    def beat(self) -> None:
        super().beat()
        raise ValueError


def test_a_connection_beats_although_the_beat_of_another_connection_fails() -> None:
    with closing(Heartbeats(timedelta(milliseconds=4))) as heartbeats:
        broken, sound = BrokenConnection(), Connection()
        heartbeats.add(broken)
        assert broken.has_beaten.wait(30)

        heartbeats.add(sound)

        assert sound.has_beaten.wait(30)


def test_a_sender_notices_that_the_broker_gave_it_up_while_idle(
    far_url: str, proxy: Proxy, queue: str
) -> None:
    settings = KombuSettings(heartbeat=timedelta(seconds=1))
    # A session without a transport sends no heartbeats while it is idle.
    with closing(RabbitMQSession(lambda: AmqpConnection(far_url, settings), settings)) as session:
        send(session, queue, "before")
        proxy.wait_for_server_to_leave()

        send(session, queue, "after")

        assert session.count(queue) == 2
    assert proxy.connections == 2


def test_a_session_sends_on_after_an_interrupt_in_a_send(
    far_session: TransportSession, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(far_session, queue, "before")
    with monkeypatch.context() as patch:
        patch.setattr(AmqpConnection, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            send(far_session, queue, "interrupted")

    send(far_session, queue, "after")

    assert far_session.count(queue) == 2


def interrupted(_connection: AmqpConnection, _frames: bytes) -> None:
    raise KeyboardInterrupt


def test_a_receiver_without_help_beats_while_it_waits(rabbitmq_url: str, queue: str) -> None:
    settings = KombuSettings(heartbeat=timedelta(seconds=1))
    with closing(
        RabbitMQReceiver(lambda: AmqpConnection(rabbitmq_url, settings), queue, 1)
    ) as receiver:
        assert receiver.receive(1, 4) == []
        assert receiver.receive(1, 0) == []


@pytest.mark.parametrize("name", ["connect_timeout", "confirm_timeout", "heartbeat"])
def test_a_wait_that_no_socket_or_heartbeat_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is at most 18:00:00, got 300000 days"):
        KombuSettings(**{name: timedelta(days=300_000)})  # type: ignore[arg-type]  # of one type
