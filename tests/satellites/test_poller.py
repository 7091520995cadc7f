"""A poll hands due timeouts on once, in chunks, and returns the next due time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.satellites.polling import CONTROL, DAY, RECEIVE, SCOPE, SOON, PollHarness
from tests.support.clock import START
from tests.support.makers import SECOND
from timeoutmgr.contracts import Chunk, TransactionMode
from timeoutmgr.message.instants import Micros
from timeoutmgr.satellites.poller import AT_ONCE, LEAD


@pytest.mark.behaviour(36)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
def test_without_timeouts_nothing_is_sent_and_nothing_is_next(mode: TransactionMode) -> None:
    one = PollHarness(mode)

    assert one.poll() is None
    assert one.claimed() == []


@pytest.mark.behaviour(26, 37)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
def test_a_later_timeout_is_not_claimed_and_sets_the_next_poll(mode: TransactionMode) -> None:
    one = PollHarness(mode)
    one.put(1, START + 1)

    assert one.poll() == START + 1
    assert one.claimed() == []


def test_a_timeout_due_in_a_moment_is_claimed_and_a_later_timeout_is_not() -> None:
    one = PollHarness()
    one.step.ahead = LEAD
    keys = one.put(1, START + LEAD)
    one.put(1, START + LEAD + 1)

    one.poll()

    assert one.claimed() == [keys]


@pytest.mark.parametrize(
    ("after", "looks_after"), [(2_999, 5_999), (3_000, 3_000), (20_000, 20_000), (60_000, 50_000)]
)
def test_the_next_poll_is_for_the_next_due_timeout_but_not_for_each_of_many(
    after: Micros, looks_after: Micros
) -> None:
    one = PollHarness()
    one.step.ahead = LEAD
    first_due = START + LEAD
    one.put(1, first_due)
    one.put(1, first_due + after)

    assert one.poll() == first_due + looks_after


def test_slow_claims_are_for_more_timeouts_each() -> None:
    one = PollHarness()
    one.step.ahead = LEAD
    claim = one.store.claim

    def slow(*arguments: Any, **options: Any) -> Chunk:
        one.fake.advance(0.004)
        return claim(*arguments, **options)

    one.store.claim = slow  # type: ignore[method-assign]  # a store on a busy machine
    looks_after = []
    for _ in range(30):
        due = one.fake.now() + LEAD
        one.put(1, due)
        one.put(1, due + 10_000)
        next_poll = one.poll()
        assert next_poll is not None
        looks_after.append(next_poll - due)
        one.fake.advance(1)
        one.poll()

    assert looks_after[0] == 10_000
    assert looks_after[-1] == pytest.approx(10_000 + 3 * 4_000, abs=100)


def test_nothing_is_claimed_ahead_if_the_commit_sends() -> None:
    one = PollHarness(SCOPE)
    one.step.ahead = LEAD
    one.put(1, START + 2_000)

    assert one.poll() == START + 2_000
    assert one.claimed() == []


@pytest.mark.behaviour(42, 49)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
@pytest.mark.parametrize("due", [START, START - 20 * 365 * DAY])
def test_a_due_timeout_of_any_age_is_claimed_once(mode: TransactionMode, due: Micros) -> None:
    one = PollHarness(mode)
    keys = one.put(1, due)

    one.poll()
    one.poll()

    assert one.claimed() == [keys]


@pytest.mark.behaviour(45, 50)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
def test_more_timeouts_of_one_instant_than_a_chunk_holds_are_each_claimed_once(
    mode: TransactionMode,
) -> None:
    one = PollHarness(mode, chunk=10)
    keys = one.put(25)

    one.poll()

    chunks = one.claimed()
    assert [len(chunk) for chunk in chunks] == [10, 10, 5]
    assert sorted(key for chunk in chunks for key in chunk) == keys


@pytest.mark.behaviour(63)
def test_in_transaction_scope_claim_and_control_message_are_one_transaction() -> None:
    one = PollHarness(SCOPE)
    one.put(1)

    one.poll()

    claims = [joined for method, joined in one.store.joined if method == "claim"]
    assert None not in claims
    assert one.transport.journal[:3] == [
        "begin",
        f"send in transaction {CONTROL} confirmed",
        "commit",
    ]


def test_in_transaction_scope_an_idle_poll_does_not_block_writers() -> None:
    one = PollHarness(SCOPE)
    one.put(1, START + SECOND)

    one.poll()

    assert one.transport.journal == []
    assert one.store.calls["claim"] == 0


@pytest.mark.behaviour(51)
def test_a_stop_ends_the_poll_after_the_present_chunk() -> None:
    one = PollHarness(chunk=1)
    keys = one.put(3 + AT_ONCE)
    one.step.stopping = lambda: one.store.calls["claim"] >= 2

    one.poll()
    claimed = [key for chunk in one.claimed() for key in chunk]
    one.step.stopping = lambda: False
    one.poll()

    assert claimed == keys[: 1 + AT_ONCE]
    assert [key for chunk in one.claimed() for key in chunk] == keys


@pytest.mark.parametrize("mode", list(TransactionMode))
def test_while_there_is_more_than_one_chunk_due_several_are_claimed_and_sent_together(
    mode: TransactionMode,
) -> None:
    one = PollHarness(mode, chunk=2)
    keys = one.put(4 * AT_ONCE)

    one.poll()

    assert [key for chunk in one.claimed() for key in chunk] == keys
    assert all(len(chunk) <= 2 for chunk in one.claimed())
    assert one.store.calls["claim"] == 3  # the first alone, five, and the four that are left


def test_a_poll_soon_follows_a_claim_since_its_dispatch_may_postpone_the_timeout() -> None:
    one = PollHarness()
    one.put(1)
    assert one.poll() == START + 50_000

    one.put(1, START + 1_000)
    assert one.poll() == START + 1_000


@pytest.mark.behaviour(47)
def test_two_pollers_never_claim_the_same_timeout() -> None:
    one, other = PollHarness(chunk=3), PollHarness(chunk=3)
    other.step.store = one.store
    keys = one.put(20)
    turns = threading.Barrier(2)

    def race(which: PollHarness) -> None:
        turns.wait()
        which.poll()

    threads = [threading.Thread(target=race, args=(which,)) for which in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)

    claimed = [key for which in (one, other) for chunk in which.claimed() for key in chunk]
    assert sorted(claimed) == keys


@pytest.mark.behaviour(44)
def test_a_row_that_becomes_visible_late_is_found_at_the_next_poll() -> None:
    one = PollHarness()
    first = one.put(1, START)
    one.poll()
    late = one.put(1, START - DAY)

    one.poll()

    assert one.claimed() == [first, late]
