"""A storage that answers a probe and fails in use, and transactions that lose a conflict."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.transport.pumping import AWAY, Mill
from timeoutmgr.errors import StorageConflict
from timeoutmgr.message.message import Received
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.resilience.recovery import IN_A_ROW
from timeoutmgr.transport.work import Work

LOST = StorageConflict("a deadlock")


@pytest.mark.behaviour(32)
def test_a_storage_that_answers_and_fails_again_is_tried_more_and_more_seldom() -> None:
    mill = Mill(wait=3600.0)
    mill.put("a")
    mill.failures["a"] = [AWAY]
    mill.before_step = lambda batch, work: mill.failures.clear() if len(mill.batches) == 9 else None

    mill.pump.run()

    assert len(mill.batches) == 9
    between = [pause for pause in mill.stop.asked if pause != 1.0]
    assert between == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_storage_that_works_again_is_tried_at_once_after_the_next_outage() -> None:
    mill = Mill(wait=3600.0)
    mill.put("a", "b", "c")
    for name in ("a", "c"):
        mill.failures[name] = [AWAY]

    def mend_at_the_second_try(batch: Sequence[Received], _work: Work) -> None:
        name = batch[0].message.id
        if mill.batches.count([name]) == 2:
            mill.failures.pop(name, None)

    mill.before_step = mend_at_the_second_try

    mill.pump.run()

    assert mill.stop.asked == [1.0, 1.0]


@pytest.mark.behaviour(125)
def test_a_transaction_that_lost_is_done_again_and_is_no_outage() -> None:
    mill = Mill()
    mill.put("a")
    mill.failures["a"] = [LOST]
    mill.before_step = lambda batch, work: (
        mill.failures.clear() if len(mill.batches) > IN_A_ROW else None
    )

    mill.pump.run()

    assert mill.batches == [["a"]] * (IN_A_ROW + 1)
    assert (mill.probes, mill.errors) == (0, [])
    assert all(0 < pause < 0.2 for pause in mill.stop.asked)
    assert mill.telemetry.snapshot()["storage_conflicts"] == IN_A_ROW


@pytest.mark.behaviour(125)
def test_transactions_that_lose_without_end_are_an_outage() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a", LOST)
    mill.probed = [AWAY]
    mill.stop.stop_after = IN_A_ROW + 2

    mill.pump.run()

    assert mill.storage.state is BreakerState.ARMED
    assert mill.probes == 1
