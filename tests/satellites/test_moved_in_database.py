"""In a shared transaction with a queue, movable timeouts are moved, and the rest sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.satellites.dispatching import ATOMIC, RECEIVE, SCOPE, DispatchHarness
from tests.support.makers import a_timeout
from timeoutmgr.contracts import Key, TimeoutState, Transaction, TransactionMode
from timeoutmgr.message.instants import Micros


class _Mover:
    """Moves all but the timeouts to keep back."""

    def __init__(self, *kept_back: str) -> None:
        self._kept_back = kept_back
        self.asked: list[tuple[str, list[str]]] = []
        self.now: Micros | None = None

    def __call__(
        self, token: str, keys: Sequence[Key], at: Micros, transaction: Transaction
    ) -> tuple[Micros, dict[Key, str]]:
        assert transaction is not None
        self.asked.append((token, [key.id for key in keys]))
        moved = {key: "billing" for key in keys if key.id not in self._kept_back}
        return at if self.now is None else self.now, moved


def test_timeouts_moved_in_the_database_are_counted_and_not_sent() -> None:
    harness, mover = DispatchHarness(SCOPE), _Mover()
    harness.put(a_timeout("m1"), a_timeout("m2"))
    harness.step = replace(harness.step, move_many=mover)
    harness.clock.advance(2.0)
    harness.order_due()

    [(token, asked)] = mover.asked
    assert token
    assert asked == sorted([a_timeout("m1").id, a_timeout("m2").id])
    assert harness.transport.ids("billing") == []
    assert harness.counted("timeouts_dispatched") == 2
    assert harness.counted("timeouts_gone") == 0
    assert harness.telemetry.snapshot()["lateness_seconds"] == 2.0


def test_moved_timeouts_are_counted_after_the_commit() -> None:
    harness = DispatchHarness(SCOPE)
    harness.put(a_timeout("m1"))
    harness.step = replace(harness.step, move_many=_Mover())
    harness.transport.fail("commit", RuntimeError("rolled back"))

    with pytest.raises(RuntimeError):
        harness.order_due()

    assert harness.counted("timeouts_dispatched") == 0


def test_timeouts_that_cannot_be_moved_are_sent() -> None:
    harness = DispatchHarness(SCOPE)
    harness.put(a_timeout("m1"), a_timeout("m2"))
    harness.step = replace(harness.step, move_many=_Mover(a_timeout("m2").id))
    harness.order_due()

    assert harness.transport.ids("billing") == ["m2"]
    assert harness.state("m2") is TimeoutState.DISPATCHED
    assert harness.counted("timeouts_dispatched") == 2


@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC])
def test_nothing_is_moved_outside_of_the_one_transaction(mode: TransactionMode) -> None:
    harness, mover = DispatchHarness(mode), _Mover()
    harness.put(a_timeout("m1"))
    harness.step = replace(harness.step, move_many=mover)
    harness.order_due()

    assert (mover.asked, harness.transport.ids("billing")) == ([], ["m1"])
