"""Where something can delay, a message that fails is retried later, and not without end."""

from __future__ import annotations

import pytest

from tests.support.unprintable import UNPRINTABLE
from tests.transport.pumping import SAFE, Mill
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.errors import InvalidMessage, TransportUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.resilience.error_copy import MOST_SENTENCE
from timeoutmgr.resilience.recovery import RecoverabilitySettings


def to_later(message: Message) -> Outgoing:
    return Outgoing("sales.Timeouts", message)


@pytest.mark.behaviour(127)
@pytest.mark.parametrize("mode", SAFE)
def test_a_failing_message_is_retried_later_where_something_can_delay(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode, policy=RecoverabilitySettings(immediate=2), retry_later=to_later)
    mill.put("a")
    mill.always_fails("a")

    mill.pump_once()

    assert mill.batches == [["a"]] * 2
    assert (mill.transport.ids("sales.Timeouts"), mill.held, mill.errors) == (["a"], [], [])


@pytest.mark.behaviour(127)
def test_after_the_last_delayed_retry_a_message_goes_to_the_error_queue() -> None:
    mill = Mill(policy=RecoverabilitySettings(immediate=1), retry_later=to_later)
    mill.put("a", retries="3")
    mill.always_fails("a")

    mill.pump_once()

    assert mill.errors == ["a"]


def test_a_retry_that_waits_carries_the_class_and_text_of_its_last_failure() -> None:
    mill = Mill(policy=RecoverabilitySettings(immediate=1), retry_later=to_later)
    given = {headers.EXCEPTION_TYPE: "builtins.KeyError", headers.EXCEPTION_MESSAGE: "before"}
    mill.transport.put("sales", Message(id="a", headers=given))
    mill.always_fails("a", ValueError("no card: \ud800" + "x" * 600))

    mill.pump_once()

    [waiting] = mill.transport.messages("sales.Timeouts")
    assert waiting.headers[headers.EXCEPTION_TYPE] == "builtins.ValueError"
    assert waiting.headers[headers.EXCEPTION_MESSAGE].startswith("no card: \\ud800xxx")
    assert len(waiting.headers[headers.EXCEPTION_MESSAGE]) == MOST_SENTENCE


def test_without_anything_that_can_delay_a_message_goes_to_the_error_queue() -> None:
    mill = Mill(policy=RecoverabilitySettings(immediate=1, delayed=3))
    mill.put("a")
    mill.always_fails("a")

    mill.pump_once()

    assert mill.errors == ["a"]


@pytest.mark.parametrize("mode", SAFE)
def test_a_message_that_cannot_be_sent_once_more_goes_to_the_error_queue(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode, policy=RecoverabilitySettings(immediate=1), retry_later=to_later)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.fail("send", InvalidMessage("its headers have no room for another"))

    mill.pump_once()

    assert (mill.transport.ids("sales.Timeouts"), mill.held, mill.errors) == ([], [], ["a"])


def test_a_message_stays_until_its_delayed_retry_is_confirmed() -> None:
    mill = Mill(policy=RecoverabilitySettings(immediate=1), retry_later=to_later)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("sales.Timeouts", SendResult.UNKNOWN)

    with pytest.raises(TransportUnavailable):
        mill.pump_once()

    assert mill.held == ["a"]
    assert mill.telemetry.snapshot().get("delayed_retries", 0) == 0


@pytest.mark.parametrize("mode", SAFE)
@pytest.mark.parametrize("refusal", [InvalidMessage("too far ahead"), OverflowError("too large")])
def test_a_message_whose_delayed_retry_cannot_be_made_goes_to_the_error_queue(
    refusal: Exception, mode: TransactionMode
) -> None:
    def refuse(_message: Message) -> Outgoing:
        raise refusal

    mill = Mill(mode, policy=RecoverabilitySettings(immediate=1), retry_later=refuse)
    mill.put("a")
    mill.always_fails("a")

    mill.pump_once()

    assert (mill.held, mill.errors) == ([], ["a"])
    assert mill.telemetry.snapshot().get("delayed_retries", 0) == 0


@pytest.mark.parametrize("kind", UNPRINTABLE)
def test_a_message_whose_error_has_no_text_is_retried_later(kind: type[Exception]) -> None:
    mill = Mill(policy=RecoverabilitySettings(immediate=1), retry_later=to_later)
    mill.put("a")
    mill.always_fails("a", kind())

    mill.pump_once()

    [waiting] = mill.transport.messages("sales.Timeouts")
    assert waiting.headers[headers.EXCEPTION_MESSAGE] == UNPRINTABLE[kind]
    assert mill.telemetry.snapshot()["delayed_retries"] == 1
