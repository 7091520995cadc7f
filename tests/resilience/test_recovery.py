from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import START
from tests.support.makers import a_message
from timeoutmgr import RecoverabilitySettings
from timeoutmgr.errors import ConfigurationError, MessageRejected
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.resilience.recovery import (
    LONGEST_WAIT,
    SATELLITE_POLICY,
    Recovery,
    decide,
    delayed_retries,
    retry_delay,
)

DEFAULT = RecoverabilitySettings()
DAY = timedelta(days=1) // timedelta(microseconds=1)
BUG = RuntimeError("a bug")


def after(
    attempt: int,
    message: Message | None = None,
    policy: RecoverabilitySettings = DEFAULT,
    error: Exception = BUG,
) -> Recovery:
    return decide(policy, message or a_message(), error, attempt, START)


@pytest.mark.behaviour(32)
@pytest.mark.parametrize(
    ("attempt", "action"),
    [
        (1, Recovery.RETRY_NOW),
        (4, Recovery.RETRY_NOW),
        (5, Recovery.MOVE_TO_ERROR),
        (6, Recovery.MOVE_TO_ERROR),
    ],
)
def test_a_satellite_tries_five_times_and_then_gives_up(attempt: int, action: Recovery) -> None:
    assert after(attempt, policy=SATELLITE_POLICY) is action


@pytest.mark.behaviour(127)
@pytest.mark.parametrize(
    ("behind", "action"),
    [
        (None, Recovery.RETRY_LATER),
        ("0", Recovery.RETRY_LATER),
        ("2", Recovery.RETRY_LATER),
        ("3", Recovery.MOVE_TO_ERROR),
        ("999999999", Recovery.MOVE_TO_ERROR),
    ],
)
def test_there_are_three_delayed_retries(behind: str | None, action: Recovery) -> None:
    message = a_message() if behind is None else a_message(retries=behind)

    assert after(5, message) is action


@pytest.mark.behaviour(127)
@pytest.mark.parametrize(
    ("age", "action"),
    [(0, Recovery.RETRY_LATER), (DAY, Recovery.RETRY_LATER), (DAY + 1, Recovery.MOVE_TO_ERROR)],
)
def test_there_is_no_delayed_retry_past_the_greatest_age(age: int, action: Recovery) -> None:
    message = a_message(retries="1", retries_timestamp=to_wire(START - age))

    assert after(5, message) is action


@pytest.mark.behaviour(127)
@pytest.mark.parametrize("text", ["", "yesterday", "2030-13-01 00:00:00:000000 Z"])
def test_a_time_stamp_that_cannot_be_read_costs_no_retry(text: str) -> None:
    assert after(5, a_message(retries_timestamp=text)) is Recovery.RETRY_LATER


@pytest.mark.parametrize("attempt", [1, 5])
def test_a_rejected_message_is_not_tried_again(attempt: int) -> None:
    assert after(attempt, error=MessageRejected("no timeout")) is Recovery.MOVE_TO_ERROR


def test_immediate_attempts_come_before_each_delayed_retry() -> None:
    assert after(4, a_message(retries="2")) is Recovery.RETRY_NOW


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("2", 2), ("-1", 0), ("two", 0), ("", 0), ("²", 0), ("9" * 5000, 0)],
)
def test_a_count_of_retries_that_is_no_number_counts_as_none(text: str, count: int) -> None:
    assert delayed_retries(a_message(retries=text)) == count


@given(st.text())
def test_any_count_of_retries_gives_a_whole_number(text: str) -> None:
    assert delayed_retries(a_message(retries=text)) >= 0


@pytest.mark.behaviour(127)
@pytest.mark.parametrize(("behind", "seconds"), [("0", 10), ("1", 20), ("2", 30)])
def test_each_delayed_retry_waits_ten_seconds_longer(behind: str, seconds: int) -> None:
    assert retry_delay(DEFAULT, a_message(retries=behind)) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "wrong",
    [{"immediate": 0}, {"immediate": -1}, {"delayed": -1}, {"increase": timedelta(0)}],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RecoverabilitySettings(**wrong)


@pytest.mark.parametrize(
    ("delayed", "increase"),
    [
        (1, LONGEST_WAIT + timedelta(microseconds=1)),
        (2, LONGEST_WAIT / 2 + timedelta(microseconds=1)),
        (2, timedelta.max),
        (10**30, timedelta(seconds=1)),
    ],
)
def test_a_delayed_retry_that_would_be_due_after_the_calendar_is_refused(
    delayed: int, increase: timedelta
) -> None:
    with pytest.raises(ConfigurationError, match="lower increase or delayed"):
        RecoverabilitySettings(delayed=delayed, increase=increase)


@pytest.mark.parametrize(
    ("delayed", "increase"), [(0, timedelta.max), (1, LONGEST_WAIT), (2, LONGEST_WAIT / 2)]
)
def test_the_longest_wait_and_no_wait_are_accepted(delayed: int, increase: timedelta) -> None:
    assert RecoverabilitySettings(delayed=delayed, increase=increase).increase == increase
