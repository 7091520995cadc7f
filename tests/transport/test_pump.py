"""A message is acknowledged once, when its mode says so; a pump that ends leaves nothing open."""

from __future__ import annotations

import pytest

from tests.support.makers import a_message
from tests.transport.pumping import BROKER_AWAY, NONE, RECEIVE, SAFE, SCOPE, Mill
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.errors import MessageRejected


@pytest.mark.parametrize("mode", SAFE)
def test_a_handled_message_is_acknowledged(mode: TransactionMode) -> None:
    mill = Mill(mode)
    mill.put("a")

    assert mill.pump_once() == 1

    assert (mill.held, mill.errors) == ([], [])


@pytest.mark.parametrize("mode", SAFE)
def test_a_message_is_acknowledged_only_after_its_step(mode: TransactionMode) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.pump_once()

    acked = next(n for n, line in enumerate(mill.transport.journal) if line.startswith("ack"))
    assert mill.transport.journal.index("step") < acked


def test_in_mode_none_a_message_is_acknowledged_before_its_step() -> None:
    mill = Mill(NONE)
    mill.put("a")
    mill.pump_once()

    assert mill.transport.journal == ["ack a", "step"]


def test_a_batch_of_large_messages_is_a_step_for_as_many_as_are_held_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timeoutmgr.transport.pump.BATCH_BYTES", 10)
    mill = Mill(batch=4)
    for name, size in (("m1", 6), ("m2", 4), ("m3", 11), ("m4", 1)):
        mill.transport.put("sales", a_message(name, b"x" * size))
    mill.always_fails("m3", MessageRejected("too large for its own good"))

    mill.pump_once()

    assert mill.batches == [["m1", "m2"], ["m3"], ["m4"]]
    assert mill.errors == ["m3"]
    assert mill.held == []


def test_a_batch_is_one_step_and_one_acknowledgement() -> None:
    mill = Mill(SCOPE, batch=10)
    mill.put("a", "b", "c")

    assert mill.pump_once() == 3

    assert mill.batches == [["a", "b", "c"]]
    assert mill.transport.journal.count("commit") == 1


def test_every_session_is_closed_when_the_pump_ends() -> None:
    mill = Mill()
    mill.session.close()
    mill.put("a")
    mill.transport.fail("receive", BROKER_AWAY, ValueError("bug"))

    mill.pump.run()

    assert mill.transport.open_sessions == 0


def test_a_pump_that_is_stopped_before_it_runs_consumes_nothing() -> None:
    mill = Mill()
    mill.put("a")
    mill.stop.set()

    mill.pump.run()

    assert mill.transport.ids("sales") == ["a"]


@pytest.mark.behaviour(41)
@pytest.mark.parametrize("mode", SAFE)
def test_a_wake_that_fails_after_the_commit_does_not_undo_or_repeat_the_step(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")

    def explode() -> None:
        raise RuntimeError("the wake")

    mill.before_step = lambda batch, work: work.after_commit(explode)

    mill.pump.run()

    assert (mill.batches, mill.errors) == ([["a"]], [])


def test_interrupt_reaches_the_receiver_that_waits() -> None:
    mill = Mill()
    mill.put("a")
    mill.before_step = lambda batch, work: mill.pump.interrupt()

    mill.pump.run()

    assert mill.transport.journal.count("interrupt") == 1


def test_interrupt_before_the_first_run_is_fine() -> None:
    Mill().pump.interrupt()


@pytest.mark.parametrize(("mode", "handled"), [(NONE, 3), (RECEIVE, 1), (SCOPE, 1)])
def test_a_stopped_pump_begins_no_further_part_unless_its_messages_are_acknowledged(
    mode: TransactionMode, handled: int
) -> None:
    mill = Mill(mode, batch=3, split=lambda batch: [[received] for received in batch])
    mill.put("a", "b", "c")
    mill.before_step = lambda _batch, _work: mill.stop.set()

    mill.pump_once()

    assert mill.batches == [["a"], ["b"], ["c"]][:handled]
