"""Leases that are lost while a pump is at work: the pump drops the messages of these leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import text

from tests.support.clock import FakeClock
from tests.support.makers import a_breaker
from tests.transport.sql.conftest import Maker
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings
from timeoutmgr.transport.sql import SqlTransport
from timeoutmgr.transport.work import Step, Work

Make = Callable[..., list[Outgoing]]

ATOMIC = [TransactionMode.SENDS_ATOMIC_WITH_RECEIVE, TransactionMode.TRANSACTION_SCOPE]


class Thief:
    """Takes over the first message of a batch, as if its owner had slept; so many times."""

    def __init__(self, transport: SqlTransport, prefix: str, times: int) -> None:
        self.receiver = transport.session().receiver("q", prefetch=0)
        self.leased: list[Received] = []
        self.batches: list[list[str]] = []
        self._database = transport.database
        self._table = f"{prefix}queue_messages"
        self._times = times

    def step(self, batch: Sequence[Received], work: Work) -> None:
        self.batches.append(ids(batch))
        if len(self.leased) == self._times:
            return
        tag = batch[0].tag
        assert isinstance(tag, tuple)
        lapse = text(f"UPDATE {self._table} SET lease_until = 1 WHERE sequence = :sequence")
        with self._database.begin() as connection:
            connection.execute(lapse, {"sequence": tag[0]})
        self.leased += self.receiver.receive(1, 0)


def ids(received: Sequence[Received]) -> list[str]:
    return [one.message.id for one in received]


def a_pump(transport: SqlTransport, step: Step, mode: TransactionMode, batch: int) -> Pump:
    clock = FakeClock()
    return Pump(
        Consumption(name="Test", queue="q", step=step, batch=batch),
        PumpSurroundings(
            endpoint="q",
            transport=transport,
            mode=mode,
            error_queue="other",
            clock=clock,
            telemetry=Counters(),
            broker=a_breaker(clock),
        ),
    )


@pytest.mark.parametrize("mode", ATOMIC)
def test_the_rest_of_a_batch_in_which_one_lease_was_lost_comes_again(
    transport: SqlTransport,
    make_transport: Maker,
    prefix: str,
    messages: Make,
    mode: TransactionMode,
) -> None:
    session = transport.session()
    session.send(messages(3))
    receiver = session.receiver("q", prefetch=6)
    thief = Thief(make_transport(), prefix, times=1)
    pump = a_pump(transport, thief.step, mode, batch=3)

    pump.pump_once(session, receiver, 0)
    held = receiver.held()
    pump.pump_once(session, receiver, 0)

    assert held == []
    assert thief.batches == [["0", "1", "2"], ["1", "2"]]
    thief.receiver.ack(thief.leased)  # the messages are the thief's, also after the pump's release
    receiver.close()
    thief.receiver.close()
    assert session.count("q") == 0


@pytest.mark.parametrize("mode", ATOMIC)
def test_a_receiver_that_lost_as_many_leases_as_it_has_room_for_goes_on(
    transport: SqlTransport,
    make_transport: Maker,
    prefix: str,
    messages: Make,
    mode: TransactionMode,
) -> None:
    session = transport.session()
    session.send(messages(3))
    receiver = session.receiver("q", prefetch=2)
    thief = Thief(make_transport(), prefix, times=2)
    pump = a_pump(transport, thief.step, mode, batch=1)

    turns = [pump.pump_once(session, receiver, 0) for _ in range(3)]

    assert turns == [1, 1, 1]
    assert thief.batches == [["0"], ["1"], ["2"]]
    assert ids(thief.leased) == ["0", "1"]
