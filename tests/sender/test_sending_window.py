from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.clock import FakeClock
from tests.support.makers import a_message
from tests.support.ports import FakeTransport
from timeoutmgr.contracts import DeadLetters, SendResult, Transaction
from timeoutmgr.deadletter.policies import DeadLetterSending
from timeoutmgr.errors import TransportUnavailable, Unroutable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.sender.sender import Sender, SessionPool
from timeoutmgr.transport.delivery_policy import PLAIN_SENDING


def to_billing(*ids: str) -> list[Outgoing]:
    return [Outgoing("billing", a_message(one)) for one in ids]


def sender(transport: FakeTransport, dead_letters: DeadLetters | None = None) -> Sender:
    policy = PLAIN_SENDING if dead_letters is None else DeadLetterSending(dead_letters)
    return Sender(SessionPool(transport), FakeClock(), policy)


def test_a_window_sends_each_message_at_once_if_the_session_can() -> None:
    transport = FakeTransport("billing", starts=True)

    with sender(transport).window() as window:
        window.add(to_billing("m1", "m2"))
        sent = transport.ids("billing")
        window.add(to_billing("m3"))
        results = window.results()

    assert sent == ["m1", "m2"]
    assert results == [SendResult.CONFIRMED] * 3
    assert [step for step in transport.journal if not step.startswith("send")] == [
        *("started 2", "started 1"),
        *("asked for 2", "asked for 1"),
    ]


def test_a_window_sends_messages_together_if_the_session_cannot_send_at_once() -> None:
    transport = FakeTransport("billing")

    with sender(transport).window() as window:
        window.add(to_billing("m1"))
        window.add(to_billing("m2"))
        sent = transport.ids("billing")
        results = window.results()

    assert sent == []
    assert results == [SendResult.CONFIRMED] * 2
    assert transport.ids("billing") == ["m1", "m2"]


class Keeping:
    """Dead letters that note when they are asked."""

    def __init__(self, transport: FakeTransport) -> None:
        self._journal = transport.journal

    def ending(self, outgoing: Sequence[Outgoing]) -> Sequence[Outgoing]:
        return outgoing

    def before_sending(self, outgoing: Sequence[Outgoing], _: Transaction | None = None) -> None:
        self._journal.append(f"keep {len(outgoing)}")

    def after_sending(
        self, outgoing: Sequence[Outgoing], _: Transaction | None = None
    ) -> list[Outgoing]:
        self._journal.append(f"note {len(outgoing)}")
        return []


def test_dead_letter_copies_are_kept_before_any_send() -> None:
    transport = FakeTransport("billing", starts=True)
    keeping: DeadLetters = Keeping(transport)  # type: ignore[assignment]  # what a send asks of them

    with sender(transport, keeping).window() as window:
        window.add(to_billing("m1"))
        window.add(to_billing("m2"))
        window.results()

    sent = "send billing confirmed"
    assert transport.journal == ["keep 2", sent, sent, "note 2"]


@pytest.mark.parametrize("starts", [True, False])
def test_a_missing_destination_stops_its_own_messages_and_no_earlier_messages(
    starts: bool,
) -> None:
    transport = FakeTransport("billing", starts=starts)

    with sender(transport).window() as window:
        window.add(to_billing("m1"), finally_for=["billing"])
        with pytest.raises(Unroutable, match="nowhere"):
            window.add(to_billing("m2"), finally_for=["nowhere"])
        results = window.results()

    assert results == [SendResult.CONFIRMED]
    assert transport.ids("billing") == ["m1"]
    assert transport.open_sessions == 1


def test_a_session_that_failed_is_closed_when_the_results_are_known() -> None:
    transport = FakeTransport("billing", starts=True)

    with sender(transport).window() as window:
        window.add(to_billing("m1"))
        transport.fail("start_sending", TransportUnavailable("gone"))
        with pytest.raises(TransportUnavailable):
            window.add(to_billing("m2"))
        lent = transport.open_sessions
        results = window.results()

    assert (lent, results, transport.open_sessions) == (1, [SendResult.CONFIRMED], 0)


def test_leaving_by_an_error_closes_the_session() -> None:
    transport = FakeTransport("billing", starts=True)

    def interrupted() -> None:
        with sender(transport).window() as window:
            window.add(to_billing("m1"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert transport.open_sessions == 0


def test_an_empty_window_takes_no_session() -> None:
    transport = FakeTransport("billing", starts=True)

    with sender(transport).window() as window:
        results = window.results()

    assert (results, transport.opened_sessions) == ([], 0)


def test_the_session_is_lent_again_afterwards() -> None:
    transport = FakeTransport("billing", starts=True)
    sending = sender(transport)

    for _ in range(2):
        with sending.window() as window:
            window.add(to_billing("m1"))
            window.results()

    assert (transport.opened_sessions, transport.open_sessions) == (1, 1)
