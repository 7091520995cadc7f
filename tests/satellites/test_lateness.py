"""A telemetry that observes messages gets each one's lateness, on every way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.satellites.dispatching import SCOPE, DispatchHarness
from tests.satellites.test_moved_in_database import _Mover
from tests.support.makers import a_timeout
from timeoutmgr.message.instants import Micros
from timeoutmgr.satellites.control import chunk_message
from timeoutmgr.telemetry import Counters, Dispatched


class Observer(Counters):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, float]] = []

    def late(self, at: Micros, sent: Iterable[Dispatched]) -> None:
        self.seen += [(to, (at - due) / 1_000_000) for to, due in sent]


def observed(harness: DispatchHarness) -> Observer:
    observer = Observer()
    harness.telemetry = observer
    harness.step = replace(harness.step, telemetry=observer)
    return observer


def test_each_message_of_a_batch_is_observed() -> None:
    harness = DispatchHarness()
    observer = observed(harness)
    first = a_timeout("m1")
    harness.put(first, replace(a_timeout("m2"), due=first.due + 500_000, destination="shipping"))
    harness.clock.advance(2.0)
    harness.order_due()

    assert sorted(observer.seen) == [("billing", 2.0), ("shipping", 1.5)]
    assert observer.snapshot()["lateness_seconds"] == 2.0


def test_a_message_that_was_not_sent_is_not_observed() -> None:
    harness = DispatchHarness()
    observer = observed(harness)
    harness.put(replace(a_timeout("m1"), destination="no such queue"))
    harness.order_due()

    assert observer.seen == []
    assert "lateness_seconds" not in observer.snapshot()


def test_each_message_that_is_moved_in_the_database_is_observed() -> None:
    harness = DispatchHarness(SCOPE)
    observer = observed(harness)
    harness.step = replace(harness.step, move_many=_Mover())
    harness.put(a_timeout("m1"), a_timeout("m2"))
    harness.clock.advance(2.0)
    harness.order_due()

    assert observer.seen == [("billing", 2.0), ("billing", 2.0)]


@pytest.mark.parametrize("ahead", [-60.0, 60.0])
def test_a_message_that_is_moved_in_the_database_is_late_by_its_clock(ahead: float) -> None:
    harness, mover = DispatchHarness(SCOPE), _Mover()
    observer = observed(harness)
    harness.step = replace(harness.step, move_many=mover)
    harness.put(a_timeout("m1"))
    chunk = harness.store.claim(harness.clock.now(), 100, "me")
    mover.now = harness.clock.now() + 500_000
    harness.clock.advance(ahead)
    harness.order(chunk_message(chunk.token, chunk.keys, "c1"))

    assert observer.seen == [("billing", 0.5)]
