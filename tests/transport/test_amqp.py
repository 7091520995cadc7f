"""A transport on RabbitMQ finds its broker, creates its queues, and refuses impossible settings."""

from __future__ import annotations

import threading
from contextlib import closing
from urllib.parse import urlsplit

import amqp
import pytest

from tests.transport.traffic import ids, receive, send
from timeoutmgr.contracts import TransactionMode, TransportSession
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    QueueMissing,
    TransportUnavailable,
)
from timeoutmgr.transport.kombu_transport import KombuTransport


def test_a_created_queue_exists_and_creating_it_again_changes_nothing(
    session: TransportSession, unique: str
) -> None:
    assert session.missing_queues([unique]) == [unique]

    session.create_queues([unique])
    send(session, unique, "kept")
    session.create_queues([unique], error_queue=f"{unique}.error")

    assert session.missing_queues([unique]) == []
    assert session.count(unique) == 1
    session.delete_queues([unique, f"{unique}.never"])
    assert session.missing_queues([unique]) == [unique]


def test_names_that_differ_in_case_are_two_queues(session: TransportSession, queue: str) -> None:
    assert session.missing_queues([queue.upper()]) == [queue.upper()]


def test_many_may_create_the_same_queues_at_once(transport: KombuTransport, unique: str) -> None:
    wanted = [f"{unique}.{n}" for n in range(5)]
    failures: list[Exception] = []
    together = threading.Barrier(4)

    def create() -> None:
        try:
            with closing(transport.session()) as one:
                together.wait(10)
                one.create_queues(wanted)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    with closing(transport.session()) as session:
        assert not failures
        assert session.missing_queues(wanted) == []
        session.delete_queues(wanted)


def test_by_default_a_queue_is_a_quorum_queue_that_dead_letters(
    rabbitmq_url: str, raw_channel: amqp.Channel, unique: str
) -> None:
    error = f"{unique}.error"
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([error])
        session.create_queues([unique], error_queue=error)
        send(session, unique, "given-up")

        stranger = raw_channel.basic_get(unique)
        raw_channel.basic_reject(stranger.delivery_tag, requeue=False)

        with closing(session.receiver(error, prefetch=1)) as receiver:
            assert ids(receive(receiver, 1)) == ["given-up"]
        session.delete_queues([unique, error])


@pytest.mark.parametrize("name", ["", "amq.mine", "q" * 256, "é" * 128])
def test_a_name_that_no_queue_can_have_is_refused(session: TransportSession, name: str) -> None:
    with pytest.raises(ConfigurationError):
        session.create_queues([name])


def test_a_missing_queue_has_no_count_and_no_receiver(
    session: TransportSession, unique: str
) -> None:
    with pytest.raises(QueueMissing):
        session.count(unique)
    with pytest.raises(QueueMissing):
        session.receiver(unique, prefetch=1)

    session.ping()


def test_the_transport_names_its_capabilities_and_hides_its_password(
    transport: KombuTransport, rabbitmq_url: str
) -> None:
    assert transport.capabilities.durable
    assert transport.capabilities.modes == {TransactionMode.NONE, TransactionMode.RECEIVE_ONLY}
    assert transport.database is None
    assert transport.ddl() == ""
    assert f":{urlsplit(rabbitmq_url).password}@" not in transport.describe()
    transport.install()
    transport.check()


def test_there_is_no_transaction_with_a_database(session: TransportSession) -> None:
    with pytest.raises(CombinationRefused):
        session.transaction()


def test_check_says_when_there_is_no_broker() -> None:
    with (
        closing(KombuTransport("amqp://guest:sesame@127.0.0.1:1//")) as transport,
        pytest.raises(TransportUnavailable),
    ):
        transport.check()


def test_the_first_of_several_brokers_that_answers_is_used(rabbitmq_url: str) -> None:
    with closing(KombuTransport(f"amqp://guest:guest@127.0.0.1:1//;{rabbitmq_url}")) as transport:
        transport.check()
