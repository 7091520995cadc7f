"""A message stays in its queue until the error queue has taken its copy."""

from __future__ import annotations

import pytest

from tests.transport.pumping import GONE, SAFE, Mill
from timeoutmgr import headers
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.errors import TransportUnavailable


@pytest.mark.behaviour(91)
@pytest.mark.parametrize(
    "answer", [SendResult.UNKNOWN, SendResult.UNROUTABLE, TransportUnavailable("gone")]
)
@pytest.mark.parametrize("mode", SAFE)
def test_a_message_stays_in_its_queue_while_the_error_queue_does_not_take_it(
    mode: TransactionMode, answer: SendResult | Exception
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", answer)

    with pytest.raises(TransportUnavailable):
        mill.turn()

    assert (mill.held, mill.errors) == (["a"], [])


@pytest.mark.behaviour(65)
def test_a_full_copy_that_is_refused_falls_back_to_a_minimal_one() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", SendResult.REFUSED)

    mill.turn()

    [copy] = mill.transport.messages("error")
    assert headers.EXCEPTION_STACK not in copy.headers
    assert copy.headers[headers.FAILED_QUEUE] == "sales"
    assert mill.held == []


@pytest.mark.behaviour(91)
def test_a_message_stays_when_the_minimal_copy_is_refused_too() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", SendResult.REFUSED, SendResult.REFUSED)

    with pytest.raises(TransportUnavailable):
        mill.turn()

    assert mill.held == ["a"]


@pytest.mark.parametrize("mode", SAFE)
def test_a_message_whose_copy_was_not_taken_is_moved_in_a_later_turn(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", GONE)

    mill.pump.run()

    assert (mill.errors, mill.transport.ids("sales")) == (["a"], [])
