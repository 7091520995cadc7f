"""A timeout is sent first and removed second, and only where it is due and still there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.satellites.dispatching import ATOMIC, RECEIVE, SCOPE, Desk
from tests.support.clock import START
from tests.support.makers import SECOND, a_timeout
from tests.support.ports import FakeReceiver
from timeoutmgr.contracts import CancelResult, Key, TimeoutState, TransactionMode
from timeoutmgr.errors import MessageRejected, StorageUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import Limits
from timeoutmgr.satellites.control import chunk_message
from timeoutmgr.transport.work import Work


@pytest.mark.behaviour(57)
@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC, SCOPE])
def test_a_found_timeout_is_sent_to_its_destination_and_removed(mode: TransactionMode) -> None:
    desk = Desk(mode)
    desk.put(a_timeout())

    desk.order_due()

    assert desk.transport.ids("billing") == ["m1"]
    assert desk.state() is TimeoutState.DISPATCHED


@pytest.mark.behaviour(57)
def test_a_timeout_is_sent_before_it_is_removed() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        desk.order_due()

    assert desk.transport.ids("billing") == ["m1"]
    assert desk.state() is TimeoutState.PENDING


@pytest.mark.behaviour(61, 62)
def test_a_repeat_after_a_failed_removal_has_the_same_message_id() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.store.fail("close", StorageUnavailable("away at the removal"))
    with pytest.raises(StorageUnavailable):
        desk.order_due()

    desk.order_due()

    assert desk.transport.ids("billing") == ["m1", "m1"]


@pytest.mark.behaviour(61, 63)
def test_in_transaction_scope_a_failed_removal_takes_the_send_back() -> None:
    desk = Desk(SCOPE)
    desk.put(a_timeout())
    desk.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        desk.order_due()

    assert desk.transport.ids("billing") == []


@pytest.mark.behaviour(63)
def test_in_transaction_scope_look_up_and_send_share_the_transaction() -> None:
    desk = Desk(SCOPE)
    desk.put(a_timeout())

    desk.order_due()

    assert [
        joined is not None for method, joined in desk.store.joined if method == "lock_for_dispatch"
    ] == [True]
    assert "send in transaction billing confirmed" in desk.transport.journal


@pytest.mark.behaviour(58, 66)
def test_a_timeout_that_is_gone_is_a_counted_benign_outcome() -> None:
    desk = Desk()

    desk.order(chunk_message("token", [Key(START, "nobody")], "c1"))

    assert desk.counted("timeouts_gone") == 1
    assert desk.transport.ids("error") == []


@pytest.mark.behaviour(66)
def test_a_control_message_for_dispatched_timeouts_sends_nothing() -> None:
    desk = Desk()
    one = a_timeout()
    desk.put(one)
    control = chunk_message("token", [one.key], "c1")
    desk.order(control)

    desk.order(control)

    assert desk.transport.ids("billing") == ["m1"]
    assert desk.counted("timeouts_gone") == 1


@pytest.mark.behaviour(58)
def test_an_unknown_single_id_is_a_counted_benign_outcome() -> None:
    desk = Desk()

    desk.order(Message(id="c1", headers={headers.TIMEOUT_ID: "nobody"}))

    assert desk.counted("timeouts_gone") == 1


def test_a_single_id_of_nservicebus_is_dispatched() -> None:
    desk = Desk()
    one = a_timeout()
    desk.put(one)

    desk.order(Message(id="c1", headers={headers.TIMEOUT_ID: one.id}))

    assert desk.transport.ids("billing") == ["m1"]


@pytest.mark.behaviour(26)
def test_a_single_id_that_is_not_due_yet_is_not_dispatched() -> None:
    desk = Desk()
    one = a_timeout(due=START + 1)
    desk.put(one)

    desk.order(Message(id="c1", headers={headers.TIMEOUT_ID: one.id}))

    assert desk.transport.ids("billing") == []
    assert desk.state() is TimeoutState.PENDING


@pytest.mark.behaviour(26, 138)
def test_a_timeout_that_was_moved_after_its_claim_is_not_dispatched_early() -> None:
    desk = Desk()
    one = a_timeout()
    desk.put(one)
    chunk = desk.store.claim(START, 100, "me")
    desk.store.reschedule(one.id, START + SECOND)

    desk.order(chunk_message(chunk.token, chunk.keys, "c1"))

    assert desk.transport.ids("billing") == []


@pytest.mark.behaviour(138)
def test_a_timeout_that_was_cancelled_after_its_claim_is_not_dispatched() -> None:
    desk = Desk()
    one = a_timeout()
    desk.put(one)
    chunk = desk.store.claim(START, 100, "me")
    assert desk.store.cancel(one.id) is CancelResult.CANCELLED

    desk.order(chunk_message(chunk.token, chunk.keys, "c1"))

    assert desk.transport.ids("billing") == []


def test_a_message_that_is_no_order_is_rejected() -> None:
    with pytest.raises(MessageRejected):
        Desk().order(Message(id="c1"))


@pytest.mark.behaviour(139)
def test_outcomes_are_counted_by_kind() -> None:
    desk = Desk()
    desk.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"), a_timeout("m3"))

    desk.order_due()

    assert (desk.counted("timeouts_dispatched"), desk.counted("timeouts_failed")) == (2, 1)


@pytest.mark.behaviour(139)
def test_lateness_is_that_of_the_oldest() -> None:
    desk = Desk()
    desk.put(a_timeout("m1", START - 3 * SECOND), a_timeout("m2", START - SECOND))

    desk.order_due()

    assert desk.counted("lateness_seconds") == pytest.approx(3.0)


def test_a_timeout_can_be_dispatched_in_the_transaction_that_stored_it() -> None:
    desk = Desk(SCOPE)
    one = a_timeout()
    desk.put(one)

    session = desk.transport.session()
    with Work(session, FakeReceiver(desk.transport, "control"), SCOPE) as work:
        desk.step.dispatch_now([one.key], work)

    assert desk.transport.ids("billing") == ["m1"]


NARROW = Limits(allowed_destinations=("shipping",)).of_endpoint("sales", "error")


@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC, SCOPE])
@pytest.mark.parametrize(
    ("destination", "limits"),
    [
        ("billing", NARROW),
        ("error", NARROW),
        ("error", Limits().of_endpoint("sales", "error")),
        ("sales.TimeoutsDispatcher", Limits()),
        ("billing.Timeouts", Limits()),
    ],
)
def test_a_stored_row_that_may_not_go_there_goes_to_the_error_queue_whole(
    mode: TransactionMode, destination: str, limits: Limits
) -> None:
    desk = Desk(mode)
    desk.step = replace(desk.step, limits=limits)
    desk.put(a_timeout("m1", destination=destination), a_timeout("m2", destination="shipping"))

    desk.order_due()

    [copy] = desk.transport.messages("error")
    assert (copy.id, copy.body) == ("m1", b"body of m1")
    assert copy.headers[headers.FAILED_QUEUE] == destination
    assert copy.headers[headers.EXCEPTION_TYPE].endswith("DestinationNotAllowed")
    assert desk.transport.ids("shipping") == ["m2"]
    assert desk.state() is TimeoutState.FAILED
