"""A timeout ordered early is sent when it is due by the store's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from tests.satellites.dispatching import RECEIVE, SCOPE, DispatchHarness
from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_timeout
from timeoutmgr.contracts import TimeoutState, TransactionMode
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.satellites.control import chunk_message


class EarlyDispatchHarness(DispatchHarness):
    """A harness whose orders come before their time; *rests* has the seconds that it waited."""

    def __init__(self, mode: TransactionMode = RECEIVE) -> None:
        super().__init__(mode)
        self.rests: list[float] = []
        self.resting: Callable[[], None] = lambda: None
        self.step = replace(self.step, ahead=6_000, rest=self._rest)

    def order_early(self, *due: Micros) -> None:
        """Order a message for each of *due*, in a chunk of its own."""
        self.put(*(a_timeout(f"m{number}", at) for number, at in enumerate(due, start=1)))
        chunks = self.store.claim(self.clock.now(), 1, "me", chunks=len(due), ahead=6_000)
        self.order(*(chunk_message(one.token, one.keys, one.token) for one in chunks.all))

    def _rest(self, seconds: float) -> None:
        self.resting()
        self.rests.append(seconds)
        self.clock.advance(seconds)


def test_a_timeout_ordered_early_is_sent_when_it_is_due() -> None:
    harness = EarlyDispatchHarness()
    harness.resting = lambda: _assert_nothing_was_sent(harness)

    harness.order_early(START + 2_000)

    assert harness.rests == [0.002]
    [sent] = harness.transport.messages("billing")
    assert sent.headers[headers.DISPATCHED_AT] == to_wire(START + 2_000)
    assert [one.at for one in harness.store.outcomes] == [START + 2_000]


def _assert_nothing_was_sent(harness: DispatchHarness) -> None:
    assert harness.transport.ids("billing") == []


def test_the_stores_clock_decides_when_and_not_the_hosts() -> None:
    harness = EarlyDispatchHarness()
    harness.step = replace(harness.step, clock=FakeClock(START + SECOND))

    harness.order_early(START + 2_000)

    assert harness.rests == [0.002]


def test_a_dispatcher_waits_for_a_due_time_only_after_recording_earlier_sends() -> None:
    harness = EarlyDispatchHarness()
    recorded: list[TimeoutState | None] = []
    harness.resting = lambda: recorded.append(harness.state("m1"))

    harness.order_early(START, START + 5_000)

    assert recorded == [TimeoutState.DISPATCHED]
    assert harness.transport.ids("billing") == ["m1", "m2"]


def test_transaction_scope_leaves_a_later_timeout_in_the_store() -> None:
    harness = EarlyDispatchHarness(SCOPE)

    harness.order_early(START + 1)

    assert harness.rests == []
    assert harness.transport.ids("billing") == []
    assert harness.state() is TimeoutState.PENDING


def test_a_clock_that_is_set_back_makes_no_wait_longer_than_orders_are_ahead() -> None:
    harness = EarlyDispatchHarness()
    harness.store.after["lock_for_dispatch"] = lambda: harness.clock.step_wall(-timedelta(hours=1))

    harness.order_early(START + 2_000)

    assert harness.rests == [0.006]
    assert harness.transport.ids("billing") == ["m1"]
