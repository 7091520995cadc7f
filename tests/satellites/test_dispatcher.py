"""A timeout is sent first and removed second, and only where it is due and still there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.satellites.dispatching import ATOMIC, RECEIVE, SCOPE, DispatchHarness
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
    harness = DispatchHarness(mode)
    harness.put(a_timeout())

    harness.order_due()

    assert harness.transport.ids("billing") == ["m1"]
    assert harness.state() is TimeoutState.DISPATCHED


@pytest.mark.behaviour(57)
def test_a_timeout_is_sent_before_it_is_removed() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        harness.order_due()

    assert harness.transport.ids("billing") == ["m1"]
    assert harness.state() is TimeoutState.PENDING


@pytest.mark.behaviour(61, 62)
def test_a_repeat_after_a_failed_removal_has_the_same_message_id() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.store.fail("close", StorageUnavailable("away at the removal"))
    with pytest.raises(StorageUnavailable):
        harness.order_due()

    harness.order_due()

    assert harness.transport.ids("billing") == ["m1", "m1"]


@pytest.mark.behaviour(61, 63)
def test_in_transaction_scope_a_failed_removal_takes_the_send_back() -> None:
    harness = DispatchHarness(SCOPE)
    harness.put(a_timeout())
    harness.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        harness.order_due()

    assert harness.transport.ids("billing") == []


@pytest.mark.behaviour(63)
def test_in_transaction_scope_query_and_send_share_the_transaction() -> None:
    harness = DispatchHarness(SCOPE)
    harness.put(a_timeout())

    harness.order_due()

    assert [
        joined is not None
        for method, joined in harness.store.joined
        if method == "lock_for_dispatch"
    ] == [True]
    assert "send in transaction billing confirmed" in harness.transport.journal


@pytest.mark.behaviour(58, 66)
def test_a_missing_timeout_is_a_counted_benign_outcome() -> None:
    harness = DispatchHarness()

    harness.order(chunk_message("token", [Key(START, "nobody")], "c1"))

    assert harness.counted("timeouts_gone") == 1
    assert harness.transport.ids("error") == []


@pytest.mark.behaviour(66)
def test_a_control_message_for_dispatched_timeouts_sends_nothing() -> None:
    harness = DispatchHarness()
    one = a_timeout()
    harness.put(one)
    control = chunk_message("token", [one.key], "c1")
    harness.order(control)

    harness.order(control)

    assert harness.transport.ids("billing") == ["m1"]
    assert harness.counted("timeouts_gone") == 1


@pytest.mark.behaviour(58)
def test_an_unknown_single_id_is_a_counted_benign_outcome() -> None:
    harness = DispatchHarness()

    harness.order(Message(id="c1", headers={headers.TIMEOUT_ID: "nobody"}))

    assert harness.counted("timeouts_gone") == 1


def test_a_single_id_of_nservicebus_is_dispatched() -> None:
    harness = DispatchHarness()
    one = a_timeout()
    harness.put(one)

    harness.order(Message(id="c1", headers={headers.TIMEOUT_ID: one.id}))

    assert harness.transport.ids("billing") == ["m1"]


@pytest.mark.behaviour(26)
def test_a_single_id_that_is_not_due_yet_is_not_dispatched() -> None:
    harness = DispatchHarness()
    one = a_timeout(due=START + 1)
    harness.put(one)

    harness.order(Message(id="c1", headers={headers.TIMEOUT_ID: one.id}))

    assert harness.transport.ids("billing") == []
    assert harness.state() is TimeoutState.PENDING


@pytest.mark.behaviour(26, 138)
def test_a_timeout_that_was_moved_after_its_claim_is_not_dispatched_early() -> None:
    harness = DispatchHarness()
    one = a_timeout()
    harness.put(one)
    chunk = harness.store.claim(START, 100, "me")
    harness.store.reschedule(one.id, START + SECOND)

    harness.order(chunk_message(chunk.token, chunk.keys, "c1"))

    assert harness.transport.ids("billing") == []


@pytest.mark.behaviour(138)
def test_a_timeout_that_was_cancelled_after_its_claim_is_not_dispatched() -> None:
    harness = DispatchHarness()
    one = a_timeout()
    harness.put(one)
    chunk = harness.store.claim(START, 100, "me")
    assert harness.store.cancel(one.id) is CancelResult.CANCELLED

    harness.order(chunk_message(chunk.token, chunk.keys, "c1"))

    assert harness.transport.ids("billing") == []


def test_a_message_that_is_no_order_is_rejected() -> None:
    with pytest.raises(MessageRejected):
        DispatchHarness().order(Message(id="c1"))


@pytest.mark.behaviour(139)
def test_outcomes_are_counted_by_kind() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"), a_timeout("m3"))

    harness.order_due()

    assert (harness.counted("timeouts_dispatched"), harness.counted("timeouts_failed")) == (2, 1)


def test_dispatched_timeouts_are_counted_after_the_commit() -> None:
    harness = DispatchHarness(SCOPE)
    harness.put(a_timeout("m1"))
    harness.transport.fail("commit", RuntimeError("rolled back"))

    with pytest.raises(RuntimeError):
        harness.order_due()

    assert harness.counted("timeouts_dispatched") == 0


@pytest.mark.behaviour(139)
def test_lateness_is_that_of_the_oldest() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1", START - 3 * SECOND), a_timeout("m2", START - SECOND))

    harness.order_due()

    assert harness.counted("lateness_seconds") == pytest.approx(3.0)


def test_a_timeout_can_be_dispatched_in_the_transaction_that_stored_it() -> None:
    harness = DispatchHarness(SCOPE)
    one = a_timeout()
    harness.put(one)

    session = harness.transport.session()
    with Work(session, FakeReceiver(harness.transport, "control"), SCOPE) as work:
        harness.step.dispatch_now([one.key], work)

    assert harness.transport.ids("billing") == ["m1"]


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
    harness = DispatchHarness(mode)
    harness.step = replace(harness.step, limits=limits)
    harness.put(a_timeout("m1", destination=destination), a_timeout("m2", destination="shipping"))

    harness.order_due()

    [copy] = harness.transport.messages("error")
    assert (copy.id, copy.body) == ("m1", b"body of m1")
    assert copy.headers[headers.FAILED_QUEUE] == destination
    assert copy.headers[headers.EXCEPTION_TYPE].endswith("DestinationNotAllowed")
    assert harness.transport.ids("shipping") == ["m2"]
    assert harness.state() is TimeoutState.FAILED
