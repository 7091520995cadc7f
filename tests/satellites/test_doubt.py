"""A lost answer leaves a doubt, and the store must remember it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.satellites.dispatching import DispatchHarness
from tests.support.clock import START, FakeClock
from tests.support.makers import a_timeout
from tests.support.ports import FakeTransport
from timeoutmgr.contracts import (
    CancelResult,
    SendResult,
    TimeoutStore,
    TransactionMode,
)
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.satellites.control import ChunkOrder, read_control
from timeoutmgr.satellites.poller import PollTimeouts
from timeoutmgr.telemetry import Counters

CONTROL = "sales.TimeoutsDispatcher"


def test_a_cancel_after_an_unknown_confirm_says_so() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout())
    harness.transport.script("billing", SendResult.UNKNOWN)

    harness.order_due()

    assert harness.store.cancel(a_timeout().id) is CancelResult.MAYBE_SENT


@pytest.fixture
def store(sqlite_url: str) -> Iterator[TimeoutStore]:
    with closing(SqlPersistence(sqlite_url, settings=SqlSettings(clock="host"))) as persistence:
        persistence.install()
        yield persistence.timeouts("sales", FakeClock())


def test_ids_that_the_dispatcher_may_have_are_not_claimed_again_meanwhile(
    store: TimeoutStore,
) -> None:
    store.store_many([a_timeout("m1"), a_timeout("m2")])
    transport = FakeTransport(CONTROL)
    poll = PollTimeouts(
        store=store,
        queue=CONTROL,
        owner="me",
        mode=TransactionMode.RECEIVE_ONLY,
        chunk=10,
        clock=FakeClock(START),
        new_id=lambda: "c1",
        telemetry=Counters(),
    )

    with ExitStack() as dispatcher:
        answer = transport.answer

        def lock_and_lose_the_answer(outgoing: Outgoing) -> SendResult:
            order = read_control(outgoing.message)
            assert isinstance(order, ChunkOrder)
            dispatcher.enter_context(store.lock_for_dispatch(order.token, order.keys))
            return SendResult.UNKNOWN

        transport.answer = lock_and_lose_the_answer  # type: ignore[method-assign]  # a script
        with pytest.raises(TransportUnavailable):
            poll(transport.session())
        transport.answer = answer  # type: ignore[method-assign]  # as it was

        poll(transport.session())

    assert transport.ids(CONTROL) == []
