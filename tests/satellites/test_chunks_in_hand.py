"""Of a batch the next chunk is in hand while one is sent; in a transaction it has to wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.satellites.dispatching import SCOPE, DispatchHarness
from tests.support.clock import START
from tests.support.makers import SECOND, a_received, a_timeout
from tests.support.ports import FakeReceiver, FakeSession
from timeoutmgr.contracts import LockedTimeouts, SendResult, TimeoutState, Transaction
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.satellites.control import chunk_message
from timeoutmgr.transport.work import Work


class _LateSession(FakeSession):
    """A transport that answers when it is asked."""

    def __init__(self, harness: DispatchHarness, journal: list[str]) -> None:
        super().__init__(harness.transport)
        self._harness = harness
        self._journal = journal

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        self._journal.append("sent")
        return super().send(outgoing, transaction=transaction)

    def start_sending(self, outgoing: Sequence[Outgoing]) -> _LateSession:
        self._answers = super().send(outgoing)
        self._journal.append("sent " + " ".join(one.message.id for one in outgoing))
        return self

    def results(self) -> list[SendResult]:
        self._journal.append(f"{len(self._harness.store._in.locked)} locked")
        return self._answers


def two_chunks(harness: DispatchHarness, journal: list[str]) -> None:
    harness.put(a_timeout("m1", START - SECOND), a_timeout("m2", START))
    chunks = [harness.store.claim(harness.clock.now(), 1, "me") for _ in range(2)]
    orders = [chunk_message(chunk.token, chunk.keys, chunk.token) for chunk in chunks]
    session = _LateSession(harness, journal)
    with Work(session, FakeReceiver(harness.transport, "control"), harness.mode) as work:
        harness.step([a_received(order) for order in orders], work)


def test_the_next_chunk_is_locked_when_the_answers_to_the_first_are_awaited() -> None:
    harness, journal = DispatchHarness(), list[str]()

    two_chunks(harness, journal)

    assert journal == ["sent m1", "2 locked", "sent m2", "1 locked"]
    assert harness.state("m1") is harness.state("m2") is TimeoutState.DISPATCHED


def test_in_transaction_scope_one_chunk_is_locked_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, journal = DispatchHarness(SCOPE), list[str]()
    lock_for_dispatch = harness.store.lock_for_dispatch

    @contextmanager
    def noted(*given: Any, **named: Any) -> Iterator[LockedTimeouts]:
        with lock_for_dispatch(*given, **named) as locked:
            journal.append("locked")
            yield locked
        journal.append("closed")

    monkeypatch.setattr(harness.store, "lock_for_dispatch", noted)
    two_chunks(harness, journal)

    assert journal == ["locked", "sent", "closed"] * 2
    assert harness.transport.ids("billing") == ["m1", "m2"]


def test_a_chunk_that_is_no_order_keeps_its_whole_batch_from_being_begun() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1"))
    chunk = harness.store.claim(harness.clock.now(), 1, "me")

    with pytest.raises(MessageRejected):
        harness.order(chunk_message(chunk.token, chunk.keys, "c1"), Message(id="no order"))

    assert harness.transport.ids("billing") == []
