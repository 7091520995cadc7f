"""A message with a lost lease belongs to its new owner; the pump drops it."""

from __future__ import annotations

import pytest

from tests.support.makers import a_message
from tests.transport.pumping import RECEIVE, SAFE, Mill, send_all
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.errors import LeaseLost
from timeoutmgr.message.message import Outgoing


@pytest.mark.parametrize("mode", SAFE)
def test_a_lost_lease_undoes_the_step_and_leaves_the_message_to_its_new_owner(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.receiver.lost.add("a")
    mill.before_step = lambda batch, work: send_all(work, [Outgoing("billing", a_message("out"))])

    mill.pump_once()

    assert mill.errors == []
    assert mill.telemetry.snapshot()["leases_lost"] == 1
    assert mill.transport.ids("billing") == (["out"] if mode is RECEIVE else [])


@pytest.mark.parametrize("mode", SAFE)
def test_the_rest_of_a_batch_with_a_lost_lease_comes_again(mode: TransactionMode) -> None:
    mill = Mill(mode, batch=10)
    mill.put("a", "b", "c")
    mill.receiver.lost.add("b")

    mill.pump_once()

    assert (mill.held, mill.errors) == ([], [])
    # Outside a transaction, the pump acknowledges the message before the lost lease.
    assert mill.transport.ids("sales") == (["c"] if mode is RECEIVE else ["a", "c"])


@pytest.mark.parametrize("mode", SAFE)
def test_a_lease_that_is_lost_during_a_retry_ends_the_retries(mode: TransactionMode) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.failures["a"] = [RuntimeError("first"), LeaseLost("second")]

    mill.pump_once()

    assert (len(mill.batches), mill.held, mill.errors) == (2, [], [])
