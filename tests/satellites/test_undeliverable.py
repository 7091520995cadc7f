"""An undeliverable timeout goes to the error queue, and stays until that has accepted it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.satellites.dispatching import DispatchHarness
from tests.support.makers import a_timeout
from tests.support.ports import FakeSession
from timeoutmgr.contracts import CancelResult, SendResult, TimeoutState
from timeoutmgr.errors import InvalidMessage, StorageUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.message import Outgoing


@pytest.mark.behaviour(59)
def test_a_message_that_no_broker_can_carry_goes_to_the_error_queue_and_its_neighbours_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = DispatchHarness()
    refuse_to_send(monkeypatch, lambda one: one.message.id == "m2")
    harness.put(a_timeout("m1"), a_timeout("m2"), a_timeout("m3"))

    harness.order_due()

    assert sorted(harness.transport.ids("billing")) == ["m1", "m3"]
    [copy] = harness.transport.messages("error")
    assert copy.headers[headers.ORIGINAL_ID] == '"m2"'
    assert (copy.headers["NServiceBus.FailedQ"], copy.body) == ("billing", b"body of m2")
    assert harness.state("m2") is TimeoutState.FAILED


def test_a_message_that_not_even_the_error_queue_can_carry_stays_and_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = DispatchHarness()
    refuse_to_send(monkeypatch, lambda one: one.message.body == b"body of m2")
    harness.put(a_timeout("m1"), a_timeout("m2"))

    harness.order_due()

    assert harness.transport.ids("billing") == ["m1"]
    assert harness.state("m2") is TimeoutState.PENDING
    assert harness.attempts() == 1


def refuse_to_send(
    monkeypatch: pytest.MonkeyPatch, is_unsendable: Callable[[Outgoing], bool]
) -> None:
    send = FakeSession.send

    def checked(session: FakeSession, outgoing: Sequence[Outgoing], **how: Any) -> Any:
        if any(is_unsendable(one) for one in outgoing):
            raise InvalidMessage("cannot be written")
        return send(session, outgoing, **how)

    monkeypatch.setattr(FakeSession, "send", checked)


@pytest.mark.behaviour(64)
def test_a_copy_that_the_error_queue_may_have_accepted_sets_maybe_sent() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1", destination="nobody's"))
    harness.transport.script("error", SendResult.UNKNOWN)

    harness.order_due()

    assert harness.store.cancel(a_timeout("m1").id) is CancelResult.MAYBE_SENT


@pytest.mark.behaviour(64)
def test_a_timeout_for_a_missing_queue_goes_whole_to_the_error_queue() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(destination="nowhere"))

    harness.order_due()

    [copy] = harness.transport.messages("error")
    assert (copy.id, copy.body) == ("m1", b"body of m1")
    assert copy.headers[headers.FAILED_QUEUE] == "nowhere"
    assert "no queue 'nowhere'" in copy.headers[headers.EXCEPTION_MESSAGE]
    assert harness.state() is TimeoutState.FAILED


@pytest.mark.behaviour(64)
def test_the_neighbours_of_a_timeout_for_a_missing_queue_go_on_time() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"), a_timeout("m3"))

    harness.order_due()

    assert sorted(harness.transport.ids("billing")) == ["m1", "m3"]
    assert [harness.state(one) for one in ("m1", "m2", "m3")] == [
        TimeoutState.DISPATCHED,
        TimeoutState.FAILED,
        TimeoutState.DISPATCHED,
    ]


@pytest.mark.behaviour(91)
def test_the_error_queue_takes_the_message_before_the_row_is_closed() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(destination="nowhere"))
    harness.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        harness.order_due()

    assert harness.transport.ids("error") == ["m1"]
    assert harness.state() is TimeoutState.PENDING


@pytest.mark.behaviour(91)
@pytest.mark.parametrize("answer", [SendResult.UNKNOWN, SendResult.REFUSED, SendResult.UNROUTABLE])
def test_a_timeout_stays_without_a_confirmed_copy_in_the_error_queue(answer: SendResult) -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(destination="nowhere"))
    harness.transport.script("error", *[answer] * 5)

    harness.order_due()

    assert harness.state() is TimeoutState.PENDING
    assert harness.attempts() == 1


@pytest.mark.behaviour(65)
def test_a_refused_full_error_copy_falls_back_to_a_smaller_copy() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(destination="nowhere"))
    harness.transport.script("error", SendResult.REFUSED)

    harness.order_due()

    [copy] = harness.transport.messages("error")
    assert headers.EXCEPTION_STACK not in copy.headers
    assert copy.headers[headers.FAILED_QUEUE] == "nowhere"
    assert harness.state() is TimeoutState.FAILED
