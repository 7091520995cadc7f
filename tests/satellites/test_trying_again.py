"""A message refused by the broker is tried again, after pauses by the store's clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.satellites.dispatching import DispatchHarness
from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_timeout
from timeoutmgr.contracts import SendResult, TimeoutState
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.satellites.delivery.forwarder import back_off
from timeoutmgr.satellites.timeout_manager.dispatcher import ATTEMPTS


@pytest.mark.behaviour(92)
def test_a_refused_timeout_stays_and_is_tried_again_after_its_pause() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.transport.script("billing", SendResult.REFUSED)
    harness.order_due()
    assert harness.transport.ids("billing") == []

    harness.clock.advance(0.999)
    harness.order_due()
    assert harness.transport.ids("billing") == []

    harness.clock.advance(0.001)
    harness.order_due()
    assert harness.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("ahead", [-15, 15])
def test_a_pause_is_measured_by_the_stores_clock_and_not_the_hosts(ahead: int, tells: bool) -> None:
    harness = DispatchHarness()
    harness.store.tells_its_time = tells
    harness.step = replace(harness.step, clock=FakeClock(START + ahead * SECOND))
    harness.put(a_timeout())
    harness.transport.script("billing", SendResult.REFUSED)
    harness.order_due()

    harness.clock.advance(0.999)
    harness.order_due()
    assert harness.transport.ids("billing") == []

    harness.clock.advance(0.001)
    harness.order_due()
    assert harness.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("ahead", [-15, 15])
def test_a_refusal_by_the_error_queue_pauses_as_long(ahead: int, tells: bool) -> None:
    harness = DispatchHarness()
    harness.store.tells_its_time = tells
    harness.step = replace(harness.step, clock=FakeClock(START + ahead * SECOND))
    harness.put(a_timeout(destination="nowhere"))
    harness.transport.script("error", *[SendResult.UNKNOWN] * 5)

    harness.order_due()

    assert [one.next_try for one in harness.store.outcomes] == [START + SECOND]


def test_the_store_is_asked_for_the_time_only_where_something_is_tried_again() -> None:
    harness = DispatchHarness()
    harness.store.tells_its_time = False
    harness.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"))

    harness.order_due()

    assert harness.store.calls["now"] == 0


@pytest.mark.behaviour(92)
def test_a_refused_timeout_delays_no_other() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1"), a_timeout("m2", destination="shipping"))
    harness.transport.script("billing", SendResult.REFUSED)

    harness.order_due()

    assert harness.transport.ids("shipping") == ["m2"]


@pytest.mark.behaviour(59, 90)
def test_a_timeout_that_is_refused_five_times_goes_to_the_error_queue() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.transport.script("billing", *[SendResult.REFUSED] * ATTEMPTS)

    for _ in range(ATTEMPTS - 1):
        harness.order_due()
        harness.clock.advance(60)
    assert harness.transport.ids("error") == []
    harness.order_due()

    assert harness.transport.ids("error") == ["m1"]
    assert harness.state() is TimeoutState.FAILED


def test_an_unknown_answer_never_moves_a_timeout_to_the_error_queue() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.transport.script("billing", *[SendResult.UNKNOWN] * 20)

    for _ in range(20):
        harness.order_due()
        harness.clock.advance(60)

    assert harness.state() is TimeoutState.PENDING
    assert harness.transport.ids("error") == []


@pytest.mark.behaviour(59)
def test_a_broker_that_is_away_leaves_the_timeout_where_it_is_and_at_once_free() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.transport.script("billing", TransportUnavailable("gone"))

    with pytest.raises(TransportUnavailable):
        harness.order_due()
    harness.order_due()

    assert harness.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (10, 60), (10_000, 60)]
)
def test_the_pause_doubles_up_to_a_minute(attempts: int, seconds: int) -> None:
    assert back_off(attempts) == seconds * SECOND
