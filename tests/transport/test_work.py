from __future__ import annotations

import pytest

from tests.support.makers import a_message, a_received
from tests.support.ports import FakeReceiver, FakeTransport
from tests.transport.pumping import send_all
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.errors import DeliveryUnknown, StorageUnavailable, TransportUnavailable, Unroutable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.work import Work

PLAIN = [TransactionMode.NONE, TransactionMode.RECEIVE_ONLY]
ATOMIC = [TransactionMode.SENDS_ATOMIC_WITH_RECEIVE, TransactionMode.TRANSACTION_SCOPE]
TO_BILLING = [Outgoing("billing", a_message())]


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport("billing")


def a_work(transport: FakeTransport, mode: TransactionMode) -> Work:
    return Work(transport.session(), FakeReceiver(transport, "sales"), mode)


@pytest.mark.parametrize("mode", PLAIN)
def test_a_plain_mode_has_no_transaction(transport: FakeTransport, mode: TransactionMode) -> None:
    with a_work(transport, mode) as work:
        assert (work.transaction, work.scope) == (None, None)

    assert transport.journal == []


@pytest.mark.parametrize("mode", ATOMIC)
def test_an_atomic_mode_opens_one_transaction_at_its_first_use(
    transport: FakeTransport, mode: TransactionMode
) -> None:
    with a_work(transport, mode) as work:
        assert transport.journal == []
        assert work.transaction is work.transaction is not None

    assert transport.journal == ["begin", "commit"]


def test_only_transaction_scope_lends_its_transaction_to_the_store(
    transport: FakeTransport,
) -> None:
    with a_work(transport, TransactionMode.SENDS_ATOMIC_WITH_RECEIVE) as work:
        assert work.scope is None
    with a_work(transport, TransactionMode.TRANSACTION_SCOPE) as work:
        assert work.scope is work.transaction is not None


@pytest.mark.parametrize("mode", ATOMIC)
def test_a_failure_rolls_back_the_sends(transport: FakeTransport, mode: TransactionMode) -> None:
    def step(work: Work) -> None:
        send_all(work, TO_BILLING)
        raise RuntimeError("the step")

    with pytest.raises(RuntimeError, match="the step"), a_work(transport, mode) as work:
        step(work)

    assert transport.ids("billing") == []
    assert transport.journal[-1] == "rollback"


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (SendResult.UNROUTABLE, Unroutable),
        (SendResult.REFUSED, TransportUnavailable),
        (SendResult.UNKNOWN, DeliveryUnknown),
    ],
)
def test_a_send_that_is_not_confirmed_raises(
    transport: FakeTransport, result: SendResult, error: type[Exception]
) -> None:
    transport.script("billing", result)

    with pytest.raises(error), a_work(transport, TransactionMode.RECEIVE_ONLY) as work:
        send_all(work, TO_BILLING)


def test_an_isolated_send_stands_alone_outside_transaction_scope(transport: FakeTransport) -> None:
    with a_work(transport, TransactionMode.SENDS_ATOMIC_WITH_RECEIVE) as work:
        assert work.send_isolated(TO_BILLING) == [SendResult.CONFIRMED]
        assert transport.ids("billing") == ["m1"]


@pytest.mark.behaviour(63)
def test_an_isolated_send_joins_the_one_transaction_of_transaction_scope(
    transport: FakeTransport,
) -> None:
    with a_work(transport, TransactionMode.TRANSACTION_SCOPE) as work:
        work.send_isolated(TO_BILLING)
        assert transport.ids("billing") == []

    assert transport.ids("billing") == ["m1"]


def test_sending_nothing_opens_no_transaction(transport: FakeTransport) -> None:
    with a_work(transport, TransactionMode.TRANSACTION_SCOPE) as work:
        send_all(work, [])
        work.send_isolated([])

    assert transport.journal == []


@pytest.mark.behaviour(41)
@pytest.mark.parametrize("mode", PLAIN + ATOMIC)
def test_an_after_commit_callback_runs_after_the_commit(
    transport: FakeTransport, mode: TransactionMode
) -> None:
    with a_work(transport, mode) as work:
        send_all(work, TO_BILLING)
        work.after_commit(lambda: transport.journal.append("woken"))

    assert transport.journal[-1] == "woken"


@pytest.mark.behaviour(41)
@pytest.mark.parametrize("mode", PLAIN + ATOMIC)
def test_nothing_is_done_after_a_rollback(transport: FakeTransport, mode: TransactionMode) -> None:
    def step(work: Work) -> None:
        work.after_commit(lambda: transport.journal.append("woken"))
        raise RuntimeError("the step")

    with pytest.raises(RuntimeError, match="the step"), a_work(transport, mode) as work:
        step(work)

    assert "woken" not in transport.journal


@pytest.mark.behaviour(41)
def test_an_after_commit_callback_runs_also_if_the_answer_of_the_commit_is_lost(
    transport: FakeTransport,
) -> None:
    transport.fail("commit", StorageUnavailable("away at commit"))

    def step(work: Work) -> None:
        send_all(work, TO_BILLING)
        work.after_commit(lambda: transport.journal.append("woken"))

    with (
        pytest.raises(StorageUnavailable, match="at commit"),
        a_work(transport, TransactionMode.TRANSACTION_SCOPE) as work,
    ):
        step(work)

    assert transport.journal[-1] == "woken"


def test_an_acknowledgement_joins_the_transaction(transport: FakeTransport) -> None:
    receiver = FakeReceiver(transport, "sales")
    received = a_received(a_message())
    receiver.held.append(received)

    with Work(transport.session(), receiver, TransactionMode.TRANSACTION_SCOPE) as work:
        work.ack([received])
        assert receiver.held == [received]

    assert receiver.held == []
