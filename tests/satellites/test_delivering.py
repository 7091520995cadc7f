"""What is delivered is the message as it was given, and where it comes from."""

from __future__ import annotations

import pytest

from tests.support.clock import START
from tests.support.makers import a_timeout
from timeoutmgr.instants import to_wire
from timeoutmgr.satellites.delivering import delivered


@pytest.mark.behaviour(22, 23)
def test_what_is_delivered_keeps_id_body_and_headers() -> None:
    one = a_timeout()

    message = delivered(one, to_wire(START))

    assert (message.id, message.body) == ("m1", b"body of m1")
    assert message.headers.items() >= one.message.headers.items()


@pytest.mark.behaviour(23)
def test_what_is_delivered_says_when_it_was_dispatched_and_from_which_timeout() -> None:
    one = a_timeout()

    given_headers = delivered(one, to_wire(START + 5)).headers

    assert given_headers["TimeoutManager.DispatchedAt"] == to_wire(START + 5)
    assert given_headers["NServiceBus.RelatedToTimeoutId"] == one.id
