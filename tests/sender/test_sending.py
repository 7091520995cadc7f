from __future__ import annotations

import pytest

from tests.support.clock import FakeClock
from tests.support.makers import a_message
from tests.support.ports import FakeTransport
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import (
    DeliveryUnknown,
    StorageUnavailable,
    TransportUnavailable,
    Unroutable,
)
from timeoutmgr.message.message import Outgoing
from timeoutmgr.sender.sender import Sender, SessionPool

TO_BILLING = [Outgoing("billing", a_message())]


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport("billing", "sales.Timeouts")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sender(transport: FakeTransport, clock: FakeClock) -> Sender:
    return Sender(SessionPool(transport), clock)


def test_a_session_is_used_again(transport: FakeTransport, sender: Sender) -> None:
    sender.send(TO_BILLING)
    sender.send(TO_BILLING)

    assert transport.opened_sessions == 1


def test_a_session_that_is_in_use_is_not_lent_twice(transport: FakeTransport) -> None:
    pool = SessionPool(transport)

    with pool.session() as one, pool.session() as other:
        assert one is not other


def test_a_session_that_failed_is_closed_and_not_lent_again(
    transport: FakeTransport, sender: Sender
) -> None:
    transport.fail("send", TransportUnavailable("gone"))
    with pytest.raises(TransportUnavailable):
        sender.send(TO_BILLING)

    sender.send(TO_BILLING)

    assert (transport.opened_sessions, transport.open_sessions) == (2, 1)


@pytest.mark.parametrize(
    "error", [Unroutable("x"), StorageUnavailable("away"), RuntimeError("bug")]
)
def test_a_session_does_not_leak_when_something_else_fails_while_it_is_lent(
    transport: FakeTransport, error: Exception
) -> None:
    pool = SessionPool(transport)

    for _ in range(3):
        with pytest.raises(type(error)), pool.session():
            raise error

    assert transport.open_sessions <= 1


def test_closing_the_pool_closes_idle_sessions(transport: FakeTransport) -> None:
    pool = SessionPool(transport)
    with pool.session():
        pass

    pool.close()

    assert transport.open_sessions == 0


def test_a_closed_pool_stays_usable(transport: FakeTransport) -> None:
    pool = SessionPool(transport)
    pool.close()

    with pool.session() as session:
        assert session.missing_queues(["billing"]) == []


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (SendResult.UNROUTABLE, Unroutable),
        (SendResult.REFUSED, TransportUnavailable),
        (SendResult.UNKNOWN, DeliveryUnknown),
    ],
)
def test_an_unconfirmed_message_raises(
    transport: FakeTransport, sender: Sender, result: SendResult, error: type[Exception]
) -> None:
    transport.script("billing", result)

    with pytest.raises(error):
        sender.send(TO_BILLING)


def test_a_missing_final_destination_is_found_before_anything_is_sent(
    transport: FakeTransport, sender: Sender
) -> None:
    with pytest.raises(Unroutable, match="'nowhere'"):
        sender.send([Outgoing("sales.Timeouts", a_message())], finally_for=["nowhere"])

    assert transport.ids("sales.Timeouts") == []


def test_a_known_destination_is_not_looked_for_again_within_a_minute(
    transport: FakeTransport, sender: Sender, clock: FakeClock
) -> None:
    sender.send(TO_BILLING, finally_for=["billing"])
    clock.advance(59)
    sender.send(TO_BILLING, finally_for=["billing"])

    assert transport.journal.count("look billing") == 1


def test_a_destination_that_was_deleted_is_noticed_after_a_minute(
    transport: FakeTransport, sender: Sender, clock: FakeClock
) -> None:
    sender.send(TO_BILLING, finally_for=["billing"])
    del transport.queues["billing"]
    clock.advance(61)

    with pytest.raises(Unroutable):
        sender.send(TO_BILLING, finally_for=["billing"])


def test_a_missing_destination_is_looked_for_every_time(
    transport: FakeTransport, sender: Sender
) -> None:
    with pytest.raises(Unroutable):
        sender.send(TO_BILLING, finally_for=["late"])
    transport.session().create_queues(["late"])

    sender.send(TO_BILLING, finally_for=["late"])


def test_queues_can_be_required_without_a_send(transport: FakeTransport, sender: Sender) -> None:
    sender.require_queues(["billing"])

    with pytest.raises(Unroutable, match="'nowhere'"):
        sender.require_queues(["billing", "nowhere"])
    assert transport.ids("billing") == []
