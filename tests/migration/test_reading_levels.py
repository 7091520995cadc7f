"""The due time and destination of a message in a delay level, by its own headers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.persistence.making import NOW, SECOND
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.migration.levels.waiting_message import (
    Unreadable,
    Waiting,
    as_timeout,
    saga_of,
    waiting,
)
from timeoutmgr.native.levels import MAX_SECONDS, routing_key

KEY = routing_key(5, "eu.sales")
SENT: dict[str, Any] = {headers.TIME_SENT: to_wire(NOW), headers.DELAY_IN_SECONDS: 5}


@pytest.mark.behaviour(117)
@pytest.mark.parametrize(
    ("found", "due"),
    [
        (SENT, NOW + 5 * SECOND),
        ({**SENT, headers.DELAY_IN_SECONDS: "5"}, NOW + 5 * SECOND),
        ({**SENT, headers.DELAY_IN_SECONDS: 0}, NOW),
        ({**SENT, headers.DELAY_IN_SECONDS: 4.1}, NOW + 5 * SECOND),
        ({**SENT, headers.DELIVER_AT: to_wire(NOW + 9)}, NOW + 9),
        ({"eta": from_micros(NOW + 7).isoformat()}, NOW + 7),
        ({"eta": from_micros(NOW + 7).replace(tzinfo=None).isoformat()}, NOW + 7),
        ({**SENT, "eta": from_micros(NOW + 7).isoformat()}, NOW + 7),
        ({**SENT, "eta": None}, NOW + 5 * SECOND),
    ],
)
def test_an_absolute_instant_counts_before_a_sum_of_delays(found: dict[str, Any], due: int) -> None:
    assert waiting(found, KEY) == Waiting("eu.sales", due)


@pytest.mark.behaviour(117)
@pytest.mark.parametrize(
    ("found", "key", "why"),
    [
        ({}, KEY, "its key says 5 s, and not since when"),
        ({headers.TIME_SENT: to_wire(NOW)}, KEY, "it has neither"),
        ({**SENT, headers.DELAY_IN_SECONDS: "soon"}, KEY, "'soon'"),
        ({**SENT, headers.DELAY_IN_SECONDS: [1]}, KEY, r"\[1\]"),
        ({**SENT, headers.TIME_SENT: "now"}, KEY, "TimeSent is 'now'"),
        ({headers.DELIVER_AT: 5}, KEY, "DeliverAt is 5"),
        ({"eta": "tomorrow"}, KEY, "eta is 'tomorrow'"),
        ({"eta": "0001-01-01T00:00:00+12:00"}, KEY, "outside the years 1 to 9999"),
        ({"eta": "9999-12-31T23:59:59-12:00"}, KEY, "outside the years 1 to 9999"),
        ({**SENT, headers.DELAY_IN_SECONDS: 10**30}, KEY, "outside the years 1 to 9999"),
        ({**SENT, headers.DELAY_IN_SECONDS: float("inf")}, KEY, "DelayInSeconds is inf"),
        (SENT, "billing", "not a key of delay levels"),
        (SENT, None, "not a key of delay levels"),
    ],
)
def test_a_message_without_a_due_time_or_destination_stays(
    found: dict[str, Any], key: str | None, why: str
) -> None:
    with pytest.raises(Unreadable, match=why):
        waiting(found, key)


@given(
    seconds=st.integers(0, MAX_SECONDS),
    destination=st.from_regex(r"[a-z]+(\.[a-z]+){0,4}", fullmatch=True),
)
@pytest.mark.behaviour(117)
def test_a_destination_with_dots_is_read_whole(seconds: int, destination: str) -> None:
    assert waiting(SENT, routing_key(seconds, destination)).destination == destination


def test_a_timeout_keeps_all_headers_but_the_headers_of_the_levels() -> None:
    message = Message(id="m", headers={**SENT, headers.DELAY_IN_SECONDS: "5", headers.SAGA_ID: "s"})

    made = as_timeout(message, Waiting("billing", NOW + 5 * SECOND), "sales", NOW + 1)

    assert made.message.headers == {
        headers.TIME_SENT: to_wire(NOW),
        headers.DELIVER_AT: to_wire(NOW + 5 * SECOND),
        headers.SAGA_ID: "s",
    }
    assert (made.destination, made.saga_id, made.created) == ("billing", "s", NOW)


def test_a_delayed_retry_of_the_same_message_is_another_timeout() -> None:
    first = Message(id="m")
    retry = Message(id="m", headers={headers.RETRIES_TIMESTAMP: to_wire(NOW)})
    found = Waiting("billing", NOW)

    assert as_timeout(first, found, "e", NOW).id != as_timeout(retry, found, "e", NOW).id


def test_a_delayed_retry_is_no_timeout_of_the_saga_that_it_names() -> None:
    given = {headers.RETRIES_TIMESTAMP: to_wire(NOW), headers.SAGA_ID: "s"}

    made = as_timeout(Message(id="m", headers=given), Waiting("billing", NOW), "e", NOW)

    assert (made.saga_id, made.message.headers[headers.SAGA_ID]) == (None, "s")


@pytest.mark.parametrize(
    ("saga", "kept"),
    [
        ("a", "a"),
        ("", None),
        ("x" * 201, None),
        ("a\n", None),
        (f"{'0' * 8}-0000-0000-0000-{'0' * 12}", None),
    ],
)
def test_a_saga_that_a_store_cannot_keep_is_left_in_the_header(saga: str, kept: str | None) -> None:
    assert saga_of({headers.SAGA_ID: saga}) == kept
