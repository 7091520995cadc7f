"""Queues: creation and deletion, names that differ by any byte, and the capabilities."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from timeoutmgr.contracts import TransactionMode, Transport, TransportSession
from timeoutmgr.contracts.transports import ExpiresMessages
from timeoutmgr.errors import ConfigurationError, QueueMissing
from timeoutmgr.testing.conformance.samples import race
from timeoutmgr.testing.conformance.transports.suite import TransportSuite, put


class TransportQueues(TransportSuite):
    """``create_queues``, ``missing_queues``, ``delete_queues``, ``count``; the transport."""

    def test_a_created_queue_exists_and_a_deleted_one_does_not(
        self, session: TransportSession, name: str
    ) -> None:
        missing = [session.missing_queues([name])]
        session.create_queues([name])
        missing.append(session.missing_queues([name]))
        session.delete_queues([name])
        missing.append(session.missing_queues([name]))

        assert missing == [[name], [], [name]]

    def test_missing_queues_names_only_missing_queues(
        self, session: TransportSession, queue: str, name: str
    ) -> None:
        assert session.missing_queues([f"{name}.1", queue, f"{name}.2"]) == [
            f"{name}.1",
            f"{name}.2",
        ]
        assert session.missing_queues([]) == []

    def test_creating_a_queue_again_keeps_its_messages(
        self, session: TransportSession, queue: str, new_queue: Callable[[], str]
    ) -> None:
        put(session, queue, "a", "b")

        session.create_queues([queue])
        session.create_queues([queue], error_queue=new_queue())

        assert session.count(queue) == 2

    def test_a_queue_with_an_error_queue_keeps_messages(
        self, session: TransportSession, queue: str, name: str
    ) -> None:
        session.create_queues([name], error_queue=queue)

        put(session, name, "a")

        assert (session.count(name), session.count(queue)) == (1, 0)

    def test_many_create_the_same_queues_at_once(
        self, make_transport: Callable[[], Transport], session: TransportSession, name: str
    ) -> None:
        names = [f"{name}.{number}" for number in range(5)]

        def create() -> None:
            with closing(make_transport()) as transport, closing(transport.session()) as own:
                own.create_queues(names)

        race(create, create, create, create)

        assert session.missing_queues(names) == []
        session.delete_queues(names)

    def test_deleting_a_queue_removes_its_messages(
        self, session: TransportSession, name: str
    ) -> None:
        session.create_queues([name])
        put(session, name, "a")

        session.delete_queues([name, f"{name}.never"])
        session.create_queues([name])

        assert session.count(name) == 0

    def test_another_process_finds_the_queue(
        self, queue: str, session: TransportSession, other_session: TransportSession
    ) -> None:
        put(session, queue, "a")

        assert other_session.missing_queues([queue]) == []
        assert other_session.count(queue) == 1

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("q.timeouts", "q.Timeouts"),
            ("q", "q "),
            ("ä", "a"),
            ("ä", "a\u0308"),
            ("ß", "ss"),
            ("q%41", "qA"),
            ("q.1", "q_1"),
            ("*", "#"),
            ("q'--", "q"),
        ],
    )
    def test_queue_names_that_differ_by_a_byte_are_distinct(
        self, session: TransportSession, name: str, one: str, other: str
    ) -> None:
        first, second = name + one, name + other
        session.create_queues([first])
        missing = session.missing_queues([first, second])
        session.create_queues([second])

        put(session, first, "a", "b")

        assert missing == [second]
        assert (session.count(first), session.count(second)) == (2, 0)
        session.delete_queues([first, second])

    def test_a_queue_name_may_have_two_hundred_bytes(
        self, session: TransportSession, name: str
    ) -> None:
        long = name + "x" * (200 - len(name))

        session.create_queues([long])
        put(session, long, "a")

        assert session.count(long) == 1
        session.delete_queues([long])

    def test_an_empty_queue_name_is_refused(self, session: TransportSession) -> None:
        with pytest.raises(ConfigurationError):
            session.create_queues([""])

    def test_a_session_survives_a_receiver_of_a_missing_queue(
        self, session: TransportSession, name: str, queue: str
    ) -> None:
        with pytest.raises(QueueMissing):
            session.receiver(name, prefetch=1)

        put(session, queue, "a")

    def test_the_capabilities_are_those_of_the_suite(self, transport: Transport) -> None:
        """The facts of a class decide which cases are run, so they must be true."""
        modes = transport.capabilities.modes

        assert transport.capabilities.durable is self.durable
        assert (TransactionMode.SENDS_ATOMIC_WITH_RECEIVE in modes) is self.transactions
        assert TransactionMode.RECEIVE_ONLY in modes
        assert isinstance(transport, ExpiresMessages) is self.expires_messages
        assert transport.capabilities.name

    def test_a_second_install_keeps_queued_messages(
        self, transport: Transport, session: TransportSession, queue: str
    ) -> None:
        put(session, queue, "a")

        transport.install()
        transport.check()

        assert session.count(queue) == 1
        assert isinstance(transport.ddl(), str)
        assert transport.describe()

    def test_a_transport_answers_a_ping_and_closes_twice(
        self, make_transport: Callable[[], Transport]
    ) -> None:
        transport = make_transport()
        session = transport.session()
        session.ping()

        session.close()
        session.close()
        transport.close()
        transport.close()
