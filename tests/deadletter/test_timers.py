"""Two timers, both relative; the shorter one rules."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.contracts.dead_letters import MessageClass
from timeoutmgr.deadletter.delivery_headers import REACH_QUEUE_DEFAULT, Timers
from timeoutmgr.errors import InvalidMessage

S = timedelta(seconds=1)
spans = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400))


@pytest.mark.behaviour(104)
def test_by_default_four_days_to_arrive_and_for_ever_to_be_received() -> None:
    assert REACH_QUEUE_DEFAULT.total_seconds() == 345_600
    assert Timers().until_arrival == timedelta(days=4)
    assert Timers().be_received is None


@pytest.mark.behaviour(104)
@pytest.mark.parametrize(
    ("reach", "received", "spent", "arrived", "ended"),
    [
        (10, None, 9, False, None),
        (10, None, 10, False, MessageClass.NACK_REACH_QUEUE_TIMEOUT),
        (10, 5, 5, False, MessageClass.NACK_REACH_QUEUE_TIMEOUT),
        (10, 5, 4, False, None),
        (10, 20, 11, True, None),
        (10, 20, 20, True, MessageClass.NACK_RECEIVE_TIMEOUT),
        (10, None, 999, True, None),
        (10, 0, 0, True, MessageClass.NACK_RECEIVE_TIMEOUT),
        (10, 0, 0, False, MessageClass.NACK_REACH_QUEUE_TIMEOUT),
        (0, None, 0, False, MessageClass.NACK_REACH_QUEUE_TIMEOUT),
        (10, 10, -3, False, None),
    ],
)
def test_how_a_message_ends_whose_time_is_up(
    reach: int, received: int | None, spent: int, arrived: bool, ended: MessageClass | None
) -> None:
    limit = None if received is None else received * S
    left = Timers(reach_queue=reach * S, be_received=limit).after(spent * S)

    assert left.ended(arrived=arrived) is ended


def test_a_message_that_never_left_and_was_to_be_received_by_now_says_so() -> None:
    left = Timers(be_received=S).after(2 * S)

    assert left.ended(arrived=False, at_sender=True) is MessageClass.NACK_RECEIVE_TIMEOUT_AT_SENDER
    assert (
        Timers(reach_queue=S).after(2 * S).ended(arrived=False, at_sender=True)
        is MessageClass.NACK_REACH_QUEUE_TIMEOUT
    )


@given(spans, st.none() | spans, spans, spans)
def test_hops_add_up_with_wrong_clocks_of_their_hosts(
    reach: timedelta, received: timedelta | None, first: timedelta, second: timedelta
) -> None:
    timers = Timers(reach_queue=reach, be_received=received)

    assert timers.after(first).after(second) == timers.after(first + second)
    assert timers.after(first).until_arrival <= timers.until_arrival


@pytest.mark.parametrize("wrong", [-S, 5, "1s"])
def test_a_timer_is_a_duration_of_zero_or_more(wrong: object) -> None:
    with pytest.raises(InvalidMessage, match="zero or more"):
        Timers(be_received=wrong)  # type: ignore[arg-type]  # what is tested
