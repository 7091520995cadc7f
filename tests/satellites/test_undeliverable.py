"""An undeliverable timeout goes to the error queue, and stays until that has accepted it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import exc

from tests.satellites.dispatching import ATOMIC, RECEIVE, SCOPE, DispatchHarness
from tests.support.makers import SECOND, a_timeout
from tests.support.ports import FakeReceiver, FakeSession, FakeTransport
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import (
    CancelResult,
    Key,
    SendResult,
    TimeoutFilter,
    TimeoutState,
    TransactionMode,
)
from timeoutmgr.errors import InvalidMessage, StorageUnavailable, TransportUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.validation import Limits
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites.timeout_manager.dispatcher import ATTEMPTS, DispatchTimeouts
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.sql import SqlTransport
from timeoutmgr.transport.sql.session import SqlSession
from timeoutmgr.transport.work import Work


@pytest.mark.behaviour(59)
def test_a_message_that_no_broker_can_carry_goes_to_the_error_queue_and_its_neighbours_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = DispatchHarness()
    refuse_to_send(monkeypatch, lambda one: one.message.id == "m2")
    harness.put(a_timeout("m1"), a_timeout("m2"), a_timeout("m3"))

    harness.order_due()

    assert sorted(harness.transport.ids("billing")) == ["m1", "m3"]
    [copy] = harness.transport.messages("error")
    assert copy.headers[headers.ORIGINAL_ID] == '"m2"'
    assert (copy.headers["NServiceBus.FailedQ"], copy.body) == ("billing", b"body of m2")
    assert harness.state("m2") is TimeoutState.FAILED


def test_a_message_that_not_even_the_error_queue_can_carry_stays_and_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = DispatchHarness()
    refuse_to_send(monkeypatch, lambda one: one.message.body == b"body of m2")
    harness.put(a_timeout("m1"), a_timeout("m2"))

    harness.order_due()

    assert harness.transport.ids("billing") == ["m1"]
    assert harness.state("m2") is TimeoutState.PENDING
    assert harness.attempts() == 1


def refuse_to_send(
    monkeypatch: pytest.MonkeyPatch, is_unsendable: Callable[[Outgoing], bool]
) -> None:
    send = FakeSession.send

    def checked(session: FakeSession, outgoing: Sequence[Outgoing], **how: Any) -> Any:
        if any(is_unsendable(one) for one in outgoing):
            raise InvalidMessage("cannot be written")
        return send(session, outgoing, **how)

    monkeypatch.setattr(FakeSession, "send", checked)


@pytest.mark.behaviour(64)
def test_a_copy_that_the_error_queue_may_have_accepted_sets_maybe_sent() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1", destination="nobody's"))
    harness.transport.script("error", SendResult.UNKNOWN)

    harness.order_due()

    assert harness.store.cancel(a_timeout("m1").id) is CancelResult.MAYBE_SENT


@pytest.mark.behaviour(64)
def test_a_timeout_for_a_missing_queue_goes_whole_to_the_error_queue() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(destination="nowhere"))

    harness.order_due()

    [copy] = harness.transport.messages("error")
    assert (copy.id, copy.body) == ("m1", b"body of m1")
    assert copy.headers[headers.FAILED_QUEUE] == "nowhere"
    assert "no queue 'nowhere'" in copy.headers[headers.EXCEPTION_MESSAGE]
    assert harness.state() is TimeoutState.FAILED


@pytest.mark.behaviour(64)
def test_the_neighbours_of_a_timeout_for_a_missing_queue_go_on_time() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"), a_timeout("m3"))

    harness.order_due()

    assert sorted(harness.transport.ids("billing")) == ["m1", "m3"]
    assert [harness.state(one) for one in ("m1", "m2", "m3")] == [
        TimeoutState.DISPATCHED,
        TimeoutState.FAILED,
        TimeoutState.DISPATCHED,
    ]


@pytest.mark.behaviour(91)
def test_the_error_queue_takes_the_message_before_the_row_is_closed() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(destination="nowhere"))
    harness.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        harness.order_due()

    assert harness.transport.ids("error") == ["m1"]
    assert harness.state() is TimeoutState.PENDING


@pytest.mark.behaviour(91)
@pytest.mark.parametrize("answer", [SendResult.UNKNOWN, SendResult.REFUSED, SendResult.UNROUTABLE])
def test_a_timeout_stays_without_a_confirmed_copy_in_the_error_queue(answer: SendResult) -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(destination="nowhere"))
    harness.transport.script("error", *[answer] * 5)

    harness.order_due()

    assert harness.state() is TimeoutState.PENDING
    assert harness.attempts() == 1


@pytest.mark.behaviour(65)
def test_a_refused_full_error_copy_falls_back_to_a_smaller_copy() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout(destination="nowhere"))
    harness.transport.script("error", SendResult.REFUSED)

    harness.order_due()

    [copy] = harness.transport.messages("error")
    assert headers.EXCEPTION_STACK not in copy.headers
    assert copy.headers[headers.FAILED_QUEUE] == "nowhere"
    assert harness.state() is TimeoutState.FAILED


BUG = RuntimeError("of no broker")


def failed_once(mode: TransactionMode = RECEIVE) -> DispatchHarness:
    """Return a harness whose chunk has failed for a bad message among its neighbours."""
    harness = DispatchHarness(mode)
    harness.put(a_timeout("m1"), a_timeout("bad", destination="shipping"), a_timeout("m2"))
    harness.transport.script("shipping", BUG)
    with pytest.raises(RuntimeError):
        harness.order_due()
    return harness


@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC])
def test_a_message_that_fails_its_chunk_sinks_no_neighbour(mode: TransactionMode) -> None:
    harness = failed_once(mode)
    harness.transport.script("shipping", BUG)

    harness.order_due()

    assert set(harness.transport.ids("billing")) == {"m1", "m2"}
    assert [harness.state(one) for one in ("m1", "m2")] == [TimeoutState.DISPATCHED] * 2
    assert (harness.attempts(), harness.transport.ids("shipping")) == (1, [])
    assert harness.store.cancel(a_timeout("bad").id) is CancelResult.MAYBE_SENT


def test_a_message_that_fails_in_each_attempt_goes_to_the_error_queue() -> None:
    harness = failed_once()
    harness.transport.script("shipping", *[BUG] * (2 * ATTEMPTS - 1))

    harness.order_due()
    for _ in range(ATTEMPTS - 1):
        assert harness.transport.ids("error") == []
        harness.clock.advance(60)
        with pytest.raises(RuntimeError):
            harness.order_due()
        harness.order_due()

    [copy] = harness.transport.messages("error")
    assert (copy.id, copy.headers[headers.FAILED_QUEUE]) == ("bad", "shipping")
    assert "of no broker" in copy.headers[headers.EXCEPTION_MESSAGE]
    assert harness.state("bad") is TimeoutState.FAILED
    assert harness.counted("timeouts_failed") == 1


def test_a_message_whose_error_copy_fails_too_stays() -> None:
    harness = DispatchHarness()
    harness.put(a_timeout("bad", destination="shipping", attempts=ATTEMPTS))
    harness.transport.script("shipping", BUG, BUG)
    harness.transport.script("error", BUG)

    with pytest.raises(RuntimeError):
        harness.order_due()
    harness.order_due()

    assert harness.state("bad") is TimeoutState.PENDING
    assert harness.attempts() == ATTEMPTS + 1


def test_an_outage_while_each_message_is_sent_alone_costs_no_attempt() -> None:
    harness = failed_once()
    harness.transport.script("shipping", TransportUnavailable("away"))

    with pytest.raises(TransportUnavailable):
        harness.order_due()

    assert [row.timeout.attempts for row in harness.store._in.rows.values()] == [0, 0, 0]
    harness.transport.script("shipping", BUG)
    harness.order_due()
    assert harness.attempts() == 1


class SharedHarness:
    """The step over a real store and queues in one transaction; messages ``bad…`` fail to send."""

    def __init__(self, url: str, prefix: str) -> None:
        self.persistence = SqlPersistence(url, prefix=prefix)
        self.transport = SqlTransport(self.persistence.database, prefix=prefix)
        self.persistence.install()
        self.transport.install()
        self.session = self.transport.session()
        self.session.create_queues(["billing", "error"])
        self.store = self.persistence.timeouts("sales", SystemClock(), atomic_dispatch=True)
        self.telemetry = Counters()
        self.step = DispatchTimeouts(
            store=self.store,
            error_queue="error",
            limits=Limits(),
            clock=SystemClock(),
            telemetry=self.telemetry,
        )
        self.keys: list[Key] = []

    def put(self, **attempts: int) -> None:
        due = SystemClock().now() - SECOND
        put = [a_timeout(name, due, attempts=count) for name, count in attempts.items()]
        self.store.store_many(put)
        self.keys = [one.key for one in put]

    def dispatch(self) -> None:
        with Work(self.session, FakeReceiver(FakeTransport(), "control"), SCOPE) as work:
            self.step.dispatch("", self.keys, work)

    def ids(self, queue: str) -> list[str]:
        return [one.message.id for one in self.session.browse(queue, 9)]

    def fail_behind(self, statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have each send of a bad message to its queue fail behind *statement*."""
        send = SqlSession.send

        def spoiled(session: SqlSession, outgoing: Sequence[Outgoing], **how: Any) -> Any:
            bad = [one for one in outgoing if one.message.id.startswith("bad")]
            if any(one.destination != "error" for one in bad):
                with suppress(exc.SQLAlchemyError):
                    how["transaction"].exec_driver_sql(statement)
                raise BUG
            return send(session, outgoing, **how)

        monkeypatch.setattr(SqlSession, "send", spoiled)


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def shared(request: pytest.FixtureRequest, unique: str) -> Iterator[SharedHarness]:
    made = SharedHarness(request.getfixturevalue(f"{request.param}_url"), f"{unique}_")
    yield made
    made.transport.close()
    made.persistence.close()


def test_a_message_that_fails_in_the_shared_transaction_sinks_no_neighbour(
    shared: SharedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.put(bad=0, bad_too=ATTEMPTS, m1=0)
    # PostgreSQL does nothing more in a transaction after that.
    shared.fail_behind("SELECT nothing_there", monkeypatch)

    with pytest.raises(RuntimeError):
        shared.dispatch()
    assert shared.ids("billing") == []
    shared.dispatch()

    assert (shared.ids("billing"), shared.ids("error")) == (["m1"], ["bad_too"])
    [pending] = shared.store.list(TimeoutFilter())
    assert (pending.message.id, pending.attempts) == ("bad", 1)
    assert shared.store.cancel(pending.id) is CancelResult.CANCELLED
    assert shared.telemetry.snapshot()["timeouts_dispatched"] == 1


def test_a_shared_transaction_that_the_server_has_undone_loses_no_message(
    shared: SharedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.put(m1=0, m2=0, bad=0, m3=0, m4=0)
    shared.fail_behind("ROLLBACK", monkeypatch)  # as MySQL does for a deadlock
    with pytest.raises(RuntimeError):
        shared.dispatch()

    with pytest.raises(StorageUnavailable):
        shared.dispatch()

    assert shared.ids("billing") == []
    assert [one.attempts for one in shared.store.list(TimeoutFilter())] == [0] * 5
    monkeypatch.undo()
    shared.dispatch()
    assert sorted(shared.ids("billing")) == ["bad", "m1", "m2", "m3", "m4"]
