"""A server's clock is asked once a second, and carried on by the monotonic clock in between."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_composer
from timeoutmgr.clock import CarriedClock
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.routes import to_timeout_manager
from timeoutmgr.sender.composer import SendOptions


def to_sales(outgoing: Outgoing, due: Micros) -> Outgoing:
    return to_timeout_manager(outgoing, due, "sales.Timeouts")


def test_a_carried_clock_asks_once_a_second_and_goes_on_if_the_wall_clock_steps() -> None:
    host, answers = FakeClock(), [START, START + 90 * SECOND]

    def ask() -> Micros:
        host.advance(0.25)  # the answer needs its time: too late rather than early
        return answers.pop(0)

    server = CarriedClock(ask, host)

    assert server() == START + 1
    host.advance(0.5)
    host.step_wall(timedelta(hours=-1))
    assert server() == server.carried() == START + 3 * SECOND // 4 + 1
    assert len(answers) == 1

    host.advance(0.25)
    assert server.carried() == START + SECOND + 1
    assert server() == START + 90 * SECOND + 1
    assert answers == []


def test_a_carried_clock_without_a_server_has_no_time_and_asks_once_a_second() -> None:
    asked = []

    def ask() -> None:
        asked.append(1)

    server = CarriedClock(ask, FakeClock())

    assert [server.carried(), server(), server()] == [None, None, None]
    assert len(asked) == 1


def test_only_a_relative_delay_asks_for_the_time() -> None:
    composer = a_composer(FakeClock(), to_sales)
    at_noon = SendOptions(deliver_at=from_micros(START))
    both = SendOptions(delay=1, deliver_at=from_micros(START))

    def ask() -> Micros:
        raise AssertionError("the time is not needed")

    for options in (SendOptions(), at_noon):
        composer.compose("billing", "Bill", {}, options, delay_clock=ask)
    with pytest.raises(InvalidMessage, match="exclude each other"):
        composer.compose("billing", "Bill", {}, both, delay_clock=ask)


def test_a_relative_delay_counts_from_the_clock_that_is_asked() -> None:
    composer = a_composer(FakeClock(), to_sales)

    def due(theirs: Micros | None) -> object:
        options = SendOptions(delay=60)
        return composer.compose("billing", "Bill", {}, options, delay_clock=lambda: theirs).sent.due

    assert due(START - 600 * SECOND) == from_micros(START - 540 * SECOND)
    assert due(None) == from_micros(START + 60 * SECOND)
