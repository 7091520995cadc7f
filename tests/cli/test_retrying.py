"""Retrying on a broker without transactions: sent and confirmed first, then acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from timeoutmgr.contracts import SendResult, TransportSession
from timeoutmgr.deadletter.delivery_headers import prepared_for_retry
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.validation import Limits
from timeoutmgr.transport.error_queue_retry import EndpointErrorQueue, RetryRequest, retry
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.fixture
def transport(rabbitmq_url: str) -> Iterator[KombuTransport]:
    made = KombuTransport(rabbitmq_url)
    yield made
    made.close()


@pytest.fixture
def session(transport: KombuTransport, unique: str) -> Iterator[TransportSession]:
    with closing(transport.session()) as made:
        made.create_queues([unique, f"{unique}.error"])
        yield made
        made.delete_queues([unique, f"{unique}.error"])


def fail(session: TransportSession, unique: str, number: int, queue: str) -> None:
    message = Message(
        id=f"m{number}",
        body=b"%d" % number,
        headers={headers.FAILED_QUEUE: queue, headers.EXCEPTION_MESSAGE: "broken", "own": "kept"},
    )
    assert session.send([Outgoing(f"{unique}.error", message)]) == [SendResult.CONFIRMED]


def errors_of(name: str, limits: Limits | None = None) -> EndpointErrorQueue:
    limits = (limits or Limits()).of_endpoint(name, f"{name}.error")
    return EndpointErrorQueue(name=f"{name}.error", endpoint=name, limits=limits)


def test_selected_messages_go_back_and_the_rest_stays(
    transport: KombuTransport, session: TransportSession, unique: str
) -> None:
    for number in range(4):
        fail(session, unique, number, unique)

    results = retry(transport, errors_of(unique), RetryRequest(ids=frozenset({"m1", "m3"})))

    assert [(each.message_id, each.result) for each in results] == [
        ("m0", "left"),
        ("m1", "retried"),
        ("m2", "left"),
        ("m3", "retried"),
    ]
    with closing(session.receiver(unique, prefetch=10)) as receiver:
        (first,) = receiver.receive(1, 10.0)
        (second,) = receiver.receive(1, 10.0)
    assert [first.message.id, second.message.id] == ["m1", "m3"]
    assert (first.message.body, first.message.headers["own"]) == (b"1", "kept")
    assert not headers.FAILURE_HEADERS & set(first.message.headers)
    with closing(session.receiver(f"{unique}.error", prefetch=10)) as receiver:
        left = [receiver.receive(1, 10.0)[0].message for _ in range(2)]
    assert [(each.id, each.headers[headers.FAILED_QUEUE]) for each in left] == [
        ("m0", unique),
        ("m2", unique),
    ]


def test_a_message_whose_queue_is_missing_stays_whole(
    transport: KombuTransport, session: TransportSession, unique: str
) -> None:
    fail(session, unique, 1, f"{unique}.gone")

    (result,) = retry(transport, errors_of(unique), RetryRequest())

    assert result.result == "unroutable"
    with closing(session.receiver(f"{unique}.error", prefetch=10)) as receiver:
        (received,) = receiver.receive(1, 10.0)
    assert (received.message.id, received.message.body) == ("m1", b"1")


def test_a_limit_selects_the_oldest_messages_and_a_dry_run_moves_no_message(
    transport: KombuTransport, session: TransportSession, unique: str
) -> None:
    for number in range(3):
        fail(session, unique, number, unique)

    looked = retry(transport, errors_of(unique), RetryRequest(limit=2, dry_run=True))
    retried = retry(transport, errors_of(unique), RetryRequest(limit=1))

    assert [(each.message_id, each.result) for each in looked] == [
        ("m0", "would_retry"),
        ("m1", "would_retry"),
    ]
    assert [(each.message_id, each.result) for each in retried] == [("m0", "retried")]


@pytest.mark.parametrize("queue", ["{0}.error", "victim.Timeouts", "amq.direct", "victim"])
def test_a_message_is_not_retried_into_a_forbidden_queue(
    transport: KombuTransport, session: TransportSession, unique: str, queue: str
) -> None:
    fail(session, unique, 1, queue.format(unique))
    errors = errors_of(unique, Limits(allowed_destinations=("billing",)))

    [result] = retry(transport, errors, RetryRequest())

    assert result.result == "not_allowed"
    assert result.reason is not None
    assert queue.format(unique) in result.reason
    with closing(session.receiver(f"{unique}.error", prefetch=10)) as receiver:
        (received,) = receiver.receive(1, 10.0)
    assert received.message.id == "m1"


def test_a_message_that_failed_at_a_satellite_is_retried_by_its_endpoint(
    transport: KombuTransport, session: TransportSession, unique: str
) -> None:
    session.create_queues([f"{unique}.Timeouts"])
    fail(session, unique, 1, f"{unique}.Timeouts")

    [result] = retry(transport, errors_of(unique), RetryRequest())

    session.delete_queues([f"{unique}.Timeouts"])
    assert result.result == "retried"


def test_a_retry_removes_the_limits_that_have_passed(
    transport: KombuTransport, session: TransportSession, unique: str
) -> None:
    limits = {
        headers.TIME_SENT: "2020-01-01 00:00:00:000000 Z",
        headers.TIME_TO_BE_RECEIVED: "00:00:10",
        "TimeoutManager.TimeToReachQueue": "00:00:10",
        headers.FAILED_QUEUE: unique,
    }
    message = Message(id="m1", headers={**limits, "own": "kept"})
    assert session.send([Outgoing(f"{unique}.error", message)]) == [SendResult.CONFIRMED]

    retry(transport, errors_of(unique), RetryRequest(), prepare=prepared_for_retry)

    with closing(session.receiver(unique, prefetch=10)) as receiver:
        (received,) = receiver.receive(1, 10.0)
    assert received.message.headers["own"] == "kept"
    assert received.message.headers[headers.TIME_SENT] == limits[headers.TIME_SENT]
    assert not {headers.TIME_TO_BE_RECEIVED, "TimeoutManager.TimeToReachQueue"} & set(
        received.message.headers
    )


def test_a_message_that_failed_in_two_queues_is_retried_into_both(
    transport: KombuTransport, session: TransportSession, unique: str
) -> None:
    for queue in (unique, f"{unique}.gone", unique):
        fail(session, unique, 1, queue)

    results = retry(transport, errors_of(unique), RetryRequest())

    assert [(each.queue, each.result) for each in results] == [
        (unique, "retried"),
        (f"{unique}.gone", "unroutable"),
    ]
