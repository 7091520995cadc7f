"""A delivered message is the given message, with its origin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.clock import START
from tests.support.makers import a_timeout
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import with_headers
from timeoutmgr.satellites.delivery.forwarder import delivered


@pytest.mark.behaviour(22, 23)
def test_a_delivered_message_keeps_id_body_and_headers() -> None:
    one = a_timeout()
    sent = {headers.TIME_SENT: to_wire(START - 5)}
    one = replace(one, message=with_headers(one.message, {**one.message.headers, **sent}))

    message = delivered(one, to_wire(START))

    assert (message.id, message.body) == ("m1", b"body of m1")
    assert message.headers.items() >= one.message.headers.items()


@pytest.mark.behaviour(23)
def test_a_delivered_message_names_its_dispatch_time_and_its_timeout() -> None:
    one = a_timeout()

    given_headers = delivered(one, to_wire(START + 5)).headers

    assert given_headers["TimeoutManager.DispatchedAt"] == to_wire(START + 5)
    assert given_headers["NServiceBus.RelatedToTimeoutId"] == one.id
