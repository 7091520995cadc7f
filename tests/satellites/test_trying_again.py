"""A message refused by the broker is tried again, after pauses by the store's clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.satellites.dispatching import Desk
from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_timeout
from timeoutmgr.contracts import SendResult, TimeoutState
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.satellites.delivery.message import back_off
from timeoutmgr.satellites.timeout_manager.dispatcher import ATTEMPTS


@pytest.mark.behaviour(92)
def test_a_refused_timeout_stays_and_is_tried_again_after_its_pause() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", SendResult.REFUSED)
    desk.order_due()
    assert desk.transport.ids("billing") == []

    desk.clock.advance(0.999)
    desk.order_due()
    assert desk.transport.ids("billing") == []

    desk.clock.advance(0.001)
    desk.order_due()
    assert desk.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("ahead", [-15, 15])
def test_a_pause_is_measured_by_the_stores_clock_and_not_the_hosts(ahead: int, tells: bool) -> None:
    desk = Desk()
    desk.store.tells_its_time = tells
    desk.step = replace(desk.step, clock=FakeClock(START + ahead * SECOND))
    desk.put(a_timeout())
    desk.transport.script("billing", SendResult.REFUSED)
    desk.order_due()

    desk.clock.advance(0.999)
    desk.order_due()
    assert desk.transport.ids("billing") == []

    desk.clock.advance(0.001)
    desk.order_due()
    assert desk.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("ahead", [-15, 15])
def test_a_refusal_by_the_error_queue_pauses_as_long(ahead: int, tells: bool) -> None:
    desk = Desk()
    desk.store.tells_its_time = tells
    desk.step = replace(desk.step, clock=FakeClock(START + ahead * SECOND))
    desk.put(a_timeout(destination="nowhere"))
    desk.transport.script("error", *[SendResult.UNKNOWN] * 5)

    desk.order_due()

    assert [one.next_try for one in desk.store.outcomes] == [START + SECOND]


def test_the_store_is_asked_for_the_time_only_where_something_is_tried_again() -> None:
    desk = Desk()
    desk.store.tells_its_time = False
    desk.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"))

    desk.order_due()

    assert desk.store.calls["now"] == 0


@pytest.mark.behaviour(92)
def test_a_refused_timeout_delays_no_other() -> None:
    desk = Desk()
    desk.put(a_timeout("m1"), a_timeout("m2", destination="shipping"))
    desk.transport.script("billing", SendResult.REFUSED)

    desk.order_due()

    assert desk.transport.ids("shipping") == ["m2"]


@pytest.mark.behaviour(59, 90)
def test_a_timeout_that_is_refused_five_times_goes_to_the_error_queue() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", *[SendResult.REFUSED] * ATTEMPTS)

    for _ in range(ATTEMPTS - 1):
        desk.order_due()
        desk.clock.advance(60)
    assert desk.transport.ids("error") == []
    desk.order_due()

    assert desk.transport.ids("error") == ["m1"]
    assert desk.state() is TimeoutState.FAILED


def test_an_unknown_answer_never_moves_a_timeout_to_the_error_queue() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", *[SendResult.UNKNOWN] * 20)

    for _ in range(20):
        desk.order_due()
        desk.clock.advance(60)

    assert desk.state() is TimeoutState.PENDING
    assert desk.transport.ids("error") == []


@pytest.mark.behaviour(59)
def test_a_broker_that_is_away_leaves_the_timeout_where_it_is_and_at_once_free() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", TransportUnavailable("gone"))

    with pytest.raises(TransportUnavailable):
        desk.order_due()
    desk.order_due()

    assert desk.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (10, 60), (10_000, 60)]
)
def test_the_pause_doubles_up_to_a_minute(attempts: int, seconds: int) -> None:
    assert back_off(attempts) == seconds * SECOND
