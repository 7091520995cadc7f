"""Browsing a queue moves nothing, settles nothing, and counts towards no delivery limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import amqp
import pytest

from tests.support.waiting import eventually
from timeoutmgr.contracts import BrowsesQueues, SendResult, Transport, TransportSession
from timeoutmgr.errors import ConfigurationError, QueueMissing
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.sql import SqlTransport

DEFAULT_LIMIT = 20
"""Deliveries after which a quorum queue of RabbitMQ 4 gives a message up by default."""


@pytest.fixture(params=["rabbitmq", "redis", "sqlite", "postgres", "mysql"])
def transport(request: pytest.FixtureRequest, unique: str) -> Iterator[Transport]:
    """Every transport."""
    made: Transport
    if request.param in ("rabbitmq", "redis"):
        url = request.getfixturevalue(f"{request.param}_url")
        made = KombuTransport(url, accept_loss=request.param == "redis")
    else:
        path = request.getfixturevalue("tmp_path")
        url = (
            f"sqlite:///{path / 'queues.db'}"
            if request.param == "sqlite"
            else request.getfixturevalue(f"{request.param}_url")
        )
        made = SqlTransport(url, prefix=f"{unique}_")
        made.install()
    with closing(made):
        yield made


def fill(session: TransportSession, queue: str, count: int) -> list[str]:
    ids = [f"m{number}" for number in range(count)]
    sent = session.send([Outgoing(queue, Message(id=each, body=each.encode())) for each in ids])
    assert sent == [SendResult.CONFIRMED] * count
    return ids


def seen(session: TransportSession, queue: str, limit: int = 1_000) -> list[str]:
    assert isinstance(session, BrowsesQueues)
    return [received.message.id for received in session.browse(queue, limit)]


def test_messages_are_seen_in_their_order_and_all_of_them_stay(
    session: TransportSession, queue: str
) -> None:
    ids = fill(session, queue, 250)

    looks = [seen(session, queue) for _ in range(3)]

    assert looks == [ids] * 3
    # The broker counts returned messages a moment after their browser has left.
    eventually(lambda: session.count(queue) == 250, "all messages are back")


def test_browsing_ends_at_its_limit(session: TransportSession, queue: str) -> None:
    ids = fill(session, queue, 10)

    assert seen(session, queue, 4) == ids[:4]
    assert seen(session, queue) == ids


def test_browsing_that_is_broken_off_leaves_all_messages(
    session: TransportSession, queue: str
) -> None:
    ids = fill(session, queue, 10)
    assert isinstance(session, BrowsesQueues)

    browsing = session.browse(queue, 10)
    first = next(browsing).message.id
    browsing.close()

    assert first == ids[0]
    assert seen(session, queue) == ids


def test_repeated_browsing_drops_and_moves_no_message(
    session: TransportSession, queue: str
) -> None:
    ids = fill(session, queue, 3)

    looks = [seen(session, queue) for _ in range(DEFAULT_LIMIT + 5)]

    assert looks == [ids] * (DEFAULT_LIMIT + 5)


def test_browsing_a_missing_queue_creates_no_queue(session: TransportSession, unique: str) -> None:
    with pytest.raises(QueueMissing):
        seen(session, f"{unique}.missing")

    assert session.missing_queues([f"{unique}.missing"]) == [f"{unique}.missing"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"x-max-length": 10, "x-overflow": "reject-publish"},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "elsewhere"},
        {"x-single-active-consumer": True, "x-max-length-bytes": 1_000_000},
    ],
)
def test_browsing_is_refused_if_it_counts_towards_a_delivery_limit(
    rabbitmq_url: str, raw_channel: amqp.Channel, unique: str, more: dict[str, object]
) -> None:
    limited, free = f"{unique}.limited", f"{unique}.free"
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        quorum = {"x-queue-type": "quorum", **more}
        for name, arguments in ((limited, {**quorum, "x-delivery-limit": 2}), (free, quorum)):
            raw_channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        ids = {queue: fill(session, queue, 2) for queue in (limited, free)}

        for _ in range(5):
            with pytest.raises(ConfigurationError, match="gives a message up after 2 deliveries"):
                seen(session, limited)
            assert seen(session, free) == ids[free]

        with closing(session.receiver(limited, prefetch=10)) as receiver:
            (first,) = receiver.receive(1, 10.0)
        assert (first.message.id, first.delivery_count) == ("m0", 0)
        session.delete_queues([limited, free])


def test_a_classic_queue_has_no_limit(rabbitmq_url: str, unique: str) -> None:
    with (
        closing(KombuTransport(rabbitmq_url, queue_type="classic")) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        ids = fill(session, unique, 2)

        assert seen(session, unique) == ids
        session.delete_queues([unique])
