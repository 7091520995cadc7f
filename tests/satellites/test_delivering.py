"""A delivered message is the given message, with its origin."""

from __future__ import annotations

import pytest

from tests.support.clock import START
from tests.support.makers import a_timeout
from timeoutmgr.message.instants import to_wire
from timeoutmgr.satellites.delivery.message import delivered


@pytest.mark.behaviour(22, 23)
def test_a_delivered_message_keeps_id_body_and_headers() -> None:
    one = a_timeout()

    message = delivered(one, to_wire(START))

    assert (message.id, message.body) == ("m1", b"body of m1")
    assert message.headers.items() >= one.message.headers.items()


@pytest.mark.behaviour(23)
def test_a_delivered_message_names_its_dispatch_time_and_its_timeout() -> None:
    one = a_timeout()

    given_headers = delivered(one, to_wire(START + 5)).headers

    assert given_headers["TimeoutManager.DispatchedAt"] == to_wire(START + 5)
    assert given_headers["NServiceBus.RelatedToTimeoutId"] == one.id
