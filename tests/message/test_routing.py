from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import START
from tests.support.makers import a_message
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.routes import (
    clear_timeouts,
    manager_endpoint,
    timeout_id,
    to_timeout_manager,
    wake_manager,
)


@pytest.mark.behaviour(17)
def test_a_delayed_message_goes_to_the_manager_with_its_destination_in_a_header() -> None:
    routed = to_timeout_manager(Outgoing("billing", a_message()), START, "sales.Timeouts")

    assert routed.destination == "sales.Timeouts"
    assert routed.message.headers["NServiceBus.Timeout.RouteExpiredTimeoutTo"] == "billing"
    assert routed.message.headers["NServiceBus.Timeout.Expire"] == to_wire(START)


@pytest.mark.behaviour(22)
def test_routing_changes_neither_id_nor_body() -> None:
    message = a_message("m7", b"\x00body")

    routed = to_timeout_manager(Outgoing("billing", message), START, "sales.Timeouts").message

    assert (routed.id, routed.body) == ("m7", b"\x00body")


def test_routing_leaves_the_given_message_as_it_was() -> None:
    message = a_message()

    to_timeout_manager(Outgoing("billing", message), START, "sales.Timeouts")

    assert headers.EXPIRE not in message.headers


@pytest.mark.behaviour(17)
def test_the_clear_message_is_an_empty_control_message_of_the_saga() -> None:
    cleared = clear_timeouts("saga-1", "sales.Timeouts", "m1", START)

    assert cleared.destination == "sales.Timeouts"
    assert cleared.message.body == b""
    assert (
        cleared.message.headers.items()
        >= {
            "NServiceBus.ClearTimeouts": "True",
            "NServiceBus.SagaId": "saga-1",
            "NServiceBus.TimeSent": to_wire(START),
            "NServiceBus.ControlMessage": "True",
            "NServiceBus.MessageIntent": "Send",
        }.items()
    )


def test_the_wake_message_carries_the_due_time() -> None:
    assert wake_manager("sales.Timeouts", START, "m1").message.headers[headers.WAKE] == to_wire(
        START
    )


@given(st.text(), st.text())
def test_the_same_message_gives_the_same_timeout_id(endpoint: str, message_id: str) -> None:
    endpoint, message_id = (
        text.encode(errors="replace").decode() for text in (endpoint, message_id)
    )

    assert timeout_id(endpoint, message_id) == timeout_id(endpoint, message_id)


@given(st.text(max_size=8), st.text(max_size=8))
def test_a_timeout_id_is_a_name_based_uuid(endpoint: str, message_id: str) -> None:
    space = uuid.UUID("6b0a3d3c-55d8-5d4f-9a0e-2f6f3f1b9f1c")

    made = uuid.uuid5(space, f"{len(endpoint)}:{endpoint}{message_id}")

    assert timeout_id(endpoint, message_id) == str(made)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("sales", "m1"), ("sales", "m2")),
        (("sales", "m1"), ("billing", "m1")),
        (("ab", "c"), ("a", "bc")),
        (("1", ":a"), ("", "1:a")),
    ],
)
def test_different_messages_or_endpoints_give_different_ids(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert timeout_id(*one) != timeout_id(*other)


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [("sales.Timeouts", "sales"), ("sales", "sales"), ("a.b.Timeouts", "a.b")],
)
def test_the_managers_endpoint_is_its_address_without_the_suffix(
    address: str, endpoint: str
) -> None:
    assert manager_endpoint(address) == endpoint
