"""Property lists of foreign messages: written as they came, refused where they steer the broker."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from struct import unpack_from
from typing import Any

import pytest
from amqp import Message as Prepared
from amqp import spec
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.foreign import AMQP, KOMBU, Foreign, Route
from timeoutmgr.transport.amqp.foreign import foreign_header
from timeoutmgr.transport.foreign import foreign_from_kombu

ROUTE = Route("", "tasks")
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.datetimes(datetime(1970, 1, 1), datetime(2900, 1, 1)).map(
        lambda t: t.replace(microsecond=0)
    )
    | st.decimals(-1000, 1000, places=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
tables = st.dictionaries(st.text(min_size=1, max_size=10).map("h-{}".format), values, max_size=5)


def foreign(**properties: Any) -> Foreign:
    return foreign_from_kombu(Prepared(b"body", **properties), ROUTE)


@given(tables, st.integers(0, 9), st.integers(0, 2**40))
def test_a_property_list_is_written_as_it_was_prepared(
    headers: dict[str, Any], priority: int, timestamp: int
) -> None:
    prepared = Prepared(
        b"body",
        application_headers=headers,
        priority=priority,
        timestamp=timestamp,
        message_id="m1",
        content_type="application/x-python-serialize",
    )

    message_id, header = foreign_header(foreign_from_kombu(prepared, ROUTE))

    class_id, weight, size = unpack_from(">HHQ", header)
    assert (class_id, weight, size) == (spec.Basic.CLASS_ID, 0, 4)
    assert header[12:] == prepared._serialize_properties()
    assert message_id == "m1"


@pytest.mark.parametrize(
    "properties",
    [
        {"user_id": "guest"},
        {"application_headers": {"CC": ["elsewhere"]}},
        {"application_headers": {"bcc": ["elsewhere"]}},
        {"application_headers": {"x-death": []}},
        {"application_headers": {"X-Delay": 9}},
    ],
)
def test_properties_that_steer_the_broker_are_refused(properties: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="steers the broker"):
        foreign_header(foreign(**properties))


def test_a_compressed_body_may_say_so() -> None:
    foreign_header(foreign(application_headers={"compression": "application/x-gzip"}))


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_property_list_that_is_cut_off_is_refused(cut: int) -> None:
    whole = foreign(application_headers={"a": [1, {"b": "c"}]}, message_id="m1").properties

    with pytest.raises(InvalidMessage):
        foreign_header(Foreign(ROUTE, AMQP, whole[:-cut]))


def test_a_message_for_another_kind_of_broker_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="encoded as 'kombu'"):
        foreign_header(Foreign(ROUTE, KOMBU, b"{}"))


def test_a_value_that_amqp_cannot_carry_is_refused_at_the_door() -> None:
    with pytest.raises(InvalidMessage, match="cannot carry"):
        foreign(application_headers={"a": object()})


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "around", [lambda it: it, lambda it: [1, it], lambda it: {"a": [{"": it}]}]
)
def test_a_number_that_no_broker_reads_is_refused_at_the_door_and_before_a_send(
    number: float, around: Callable[[float], Any]
) -> None:
    headers = {"h": around(number)}
    with pytest.raises(InvalidMessage, match=r"number (-?inf|nan), .* finite"):
        foreign(application_headers=headers)

    of_a_stranger = Prepared(b"", application_headers=headers)._serialize_properties()
    with pytest.raises(InvalidMessage, match="cannot be sent"):
        foreign_header(Foreign(ROUTE, AMQP, of_a_stranger))
