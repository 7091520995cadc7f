"""A level whose exchange is missing accepts no message, and its sender hears so."""

from __future__ import annotations

import logging

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_message
from timeoutmgr.contracts import SendResult
from timeoutmgr.message.message import Outgoing
from timeoutmgr.native.names import CELERY, to_levels
from timeoutmgr.transport.amqp.session import RabbitMQSession


def test_a_message_to_a_missing_level_is_refused_and_the_log_names_the_exchange(
    session: RabbitMQSession, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = CELERY.prefixed(unique)
    outgoing = Outgoing("billing", a_message())

    with caplog.at_level(logging.WARNING, "timeoutmgr"):
        results = session.send([to_levels(outgoing, START + 5 * SECOND, names, FakeClock(START))])

    assert results == [SendResult.REFUSED]
    [line] = caplog.messages
    assert f"no exchange '{names.level_name(2)}'" in line
    assert "timeoutmgr install" in line
