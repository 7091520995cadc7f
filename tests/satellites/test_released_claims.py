"""Claimed keys that were not handed on are released, and handed on by a later poll."""

from __future__ import annotations

import pytest

from tests.satellites.polling import AWAY, CONTROL, SCOPE, PollHarness
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import QueueMissing, StorageUnavailable, TransportUnavailable
from timeoutmgr.satellites.poller import AT_ONCE


@pytest.mark.behaviour(43)
@pytest.mark.parametrize(
    "answer",
    [
        SendResult.UNKNOWN,
        SendResult.REFUSED,
        SendResult.UNROUTABLE,
        TransportUnavailable("gone"),
        QueueMissing([CONTROL], "install it"),
        RuntimeError("a bug in the transport"),
    ],
)
def test_a_failing_send_releases_the_claim(answer: SendResult | Exception) -> None:
    one = PollHarness(chunk=10)
    keys = one.put(3)
    one.transport.script(CONTROL, answer)
    with pytest.raises((TransportUnavailable, QueueMissing, RuntimeError)):
        one.poll()

    one.poll()

    assert one.claimed() == [keys]


@pytest.mark.behaviour(43)
def test_after_a_failing_send_the_earlier_chunks_are_not_claimed_again() -> None:
    one = PollHarness(chunk=2)
    keys = one.put(6)
    one.transport.script(CONTROL, SendResult.CONFIRMED, SendResult.UNKNOWN)
    with pytest.raises(TransportUnavailable):
        one.poll()

    one.poll()

    assert sorted(key for chunk in one.claimed() for key in chunk) == keys


@pytest.mark.behaviour(48)
def test_a_claim_whose_release_fails_too_lapses_by_itself() -> None:
    one = PollHarness()
    keys = one.put(1)
    one.transport.script(CONTROL, TransportUnavailable("gone"))
    one.store.fail("release", AWAY)
    with pytest.raises((StorageUnavailable, TransportUnavailable)):
        one.poll()
    one.poll()
    assert one.claimed() == []

    one.fake.advance(61)
    one.poll()

    assert one.claimed() == [keys]


@pytest.mark.behaviour(63)
def test_in_transaction_scope_a_failing_send_rolls_back() -> None:
    one = PollHarness(SCOPE)
    one.put(1)
    one.transport.script(CONTROL, SendResult.REFUSED)

    with pytest.raises(TransportUnavailable):
        one.poll()

    assert one.transport.journal[-1] == "rollback"


def test_refused_chunks_of_a_joint_send_are_released() -> None:
    one = PollHarness(chunk=1)
    keys = one.put(1 + AT_ONCE)
    answers = [SendResult.REFUSED, SendResult.CONFIRMED, SendResult.UNKNOWN]
    one.transport.script(CONTROL, *[SendResult.CONFIRMED] * 2, *answers)

    with pytest.raises(TransportUnavailable, match="did not take"):
        one.poll()
    one.poll()

    given_back = sorted(keys[place] for place in (2, 4))
    assert len(one.store.released) == 2
    claimed = [key for chunk in one.claimed() for key in chunk]
    assert claimed == [*(key for key in keys if key not in given_back), *given_back]
