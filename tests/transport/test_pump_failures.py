"""A message that keeps failing goes to the error queue, and its neighbours are handled."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.makers import a_message
from tests.transport.pumping import AWAY, BROKER_AWAY, NONE, SAFE, SCOPE, Mill, send_all
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.errors import DeliveryUnknown, HandlerStopped, MessageRejected
from timeoutmgr.message import headers
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.transport.work import Work


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("mode", SAFE)
def test_a_message_that_keeps_failing_goes_to_the_error_queue_after_five_attempts(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a")

    mill.pump_once()

    assert mill.batches == [["a"]] * 5
    assert (mill.errors, mill.held) == (["a"], [])


def test_a_message_that_recovers_in_time_is_not_moved() -> None:
    mill = Mill()
    mill.put("a")
    mill.failures["a"] = [RuntimeError("once"), RuntimeError("twice")]
    attempts: list[int] = []

    def recover(batch: Sequence[Received], work: Work) -> None:
        attempts.append(1)
        if len(attempts) == 3:
            mill.failures.clear()

    mill.before_step = recover
    mill.pump_once()

    assert (len(attempts), mill.errors, mill.held) == (3, [], [])


def test_a_rejected_message_goes_to_the_error_queue_at_once() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a", MessageRejected("no timeout"))

    mill.pump_once()

    assert (mill.batches, mill.errors) == ([["a"]], ["a"])


@pytest.mark.behaviour(33)
def test_in_mode_none_the_first_failure_goes_to_the_error_queue() -> None:
    mill = Mill(NONE)
    mill.put("a")
    mill.always_fails("a")

    mill.pump_once()

    assert (mill.batches, mill.errors) == ([["a"]], ["a"])


@pytest.mark.behaviour(33)
def test_in_mode_none_a_message_is_acknowledged_once_also_when_its_batch_fails() -> None:
    mill = Mill(NONE, batch=10)
    mill.put("a", "poison", "b")
    mill.always_fails("poison")

    mill.pump_once()

    acks = [line for line in mill.transport.journal if line.startswith("ack")]
    assert acks == ["ack a", "ack poison", "ack b"]
    assert mill.errors == ["poison"]


@pytest.mark.behaviour(33)
@pytest.mark.parametrize("error", [AWAY, BROKER_AWAY, DeliveryUnknown("no confirm")])
def test_in_mode_none_an_outage_does_not_swallow_the_message(error: Exception) -> None:
    mill = Mill(NONE)
    mill.put("a")
    mill.always_fails("a", error)

    mill.pump.run()

    assert mill.errors == ["a"]


@pytest.mark.behaviour(64)
@pytest.mark.parametrize("mode", SAFE)
def test_a_poison_message_does_not_sink_its_batch(mode: TransactionMode) -> None:
    mill = Mill(mode, batch=10)
    mill.put("a", "poison", "b", "c")
    mill.always_fails("poison")
    handled: list[str] = []
    mill.before_step = lambda batch, work: work.after_commit(
        lambda: handled.extend(received.message.id for received in batch)
    )

    mill.pump_once()

    assert sorted(handled) == ["a", "b", "c"]
    assert (mill.errors, mill.held) == (["poison"], [])


@pytest.mark.behaviour(29)
def test_the_sends_of_a_failing_step_are_rolled_back() -> None:
    mill = Mill(SCOPE)
    mill.put("a")
    mill.always_fails("a")
    mill.before_step = lambda batch, work: send_all(
        work, [Outgoing("billing", a_message("partial"))]
    )

    mill.pump_once()

    assert mill.transport.ids("billing") == []
    assert mill.transport.journal.count("rollback") == 5


@pytest.mark.behaviour(65)
def test_the_copy_in_the_error_queue_names_the_queue_it_failed_in() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a")

    mill.pump_once()

    [copy] = mill.transport.messages("error")
    assert copy.headers[headers.FAILED_QUEUE] == "sales"
    assert copy.headers[headers.EXCEPTION_MESSAGE] == "a is poison"


def test_an_unreadable_envelope_goes_to_the_error_queue_without_a_step() -> None:
    mill = Mill()
    mill.transport.put("sales", a_message("a", b"\xff"), defect="headers are no UTF-8")

    mill.pump_once()

    [copy] = mill.transport.messages("error")
    assert (mill.batches, mill.held) == ([], [])
    assert copy.body == b"\xff"
    assert copy.headers[headers.EXCEPTION_MESSAGE] == "headers are no UTF-8"


def test_an_unreadable_envelope_does_not_keep_its_batch_from_the_step() -> None:
    mill = Mill(batch=10)
    mill.put("a")
    mill.transport.put("sales", a_message("broken"), defect="headers are no UTF-8")
    mill.put("b")

    mill.pump_once()

    assert (mill.batches, mill.errors, mill.held) == ([["a", "b"]], ["broken"], [])


@pytest.mark.parametrize("mode", SAFE)
def test_the_neighbours_of_a_rejected_message_are_not_rejected_with_it(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode, batch=10)
    mill.put("a", "wrong", "b")
    mill.always_fails("wrong", MessageRejected("no retry can mend it"))

    mill.pump_once()

    assert (mill.errors, mill.held) == (["wrong"], [])


def test_each_attempt_logs_class_and_message_and_the_last_attempt_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mill = Mill()
    mill.put("a")

    def fail(batch: Sequence[Received], work: Work) -> None:
        raise KeyError("customer")

    mill.before_step = fail
    with caplog.at_level("INFO", "timeoutmgr.transport.pump"):
        mill.pump_once()

    infos = [one.getMessage() for one in caplog.records if one.levelname == "INFO"]
    [error] = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert infos == [
        f"message 'a' failed in attempt {number}: KeyError: 'customer'" for number in range(1, 6)
    ]
    first, *trace = error.splitlines()
    assert first == "pump moves message 'a' from sales to the error queue: KeyError: 'customer'"
    assert trace[0] == "  | Traceback (most recent call last):"
    assert any("raise KeyError" in line for line in trace)
    assert trace[-1] == "  | KeyError: 'customer'"


def test_the_log_line_of_a_failed_attempt_carries_bounded_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mill = Mill()
    mill.put("a" * 100)

    def fail(batch: Sequence[Received], work: Work) -> None:
        raise KeyError("customer")

    mill.before_step = fail
    with caplog.at_level("INFO", "timeoutmgr.transport.pump"):
        mill.pump_once()

    lines = [vars(one) for one in caplog.records]
    assert {(line["message_id"], line["destination"]) for line in lines} == {("a" * 80, "sales")}
    attempts = [line["attempt"] for line in lines if line["event"] == "attempt_failed"]
    assert attempts == [1, 2, 3, 4, 5]
    assert [line["event"] for line in lines if "attempt" not in line] == ["message_moved"]


def test_a_senders_text_in_an_error_begins_no_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a", ValueError("x\n2026-01-01T00:00:00Z CRITICAL forged\u2028again"))

    mill.pump_once()

    [error] = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    first, *rest = error.splitlines()
    assert first.endswith(r"ValueError: x\n2026-01-01T00:00:00Z CRITICAL forged\u2028again")
    assert rest
    assert all(line.startswith("  | ") for line in rest)


@pytest.mark.parametrize("mode", SAFE)
def test_a_handler_that_says_it_was_stopped_has_failed_unless_there_is_a_stop(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a", HandlerStopped())

    mill.pump_once()
    assert (mill.held, mill.errors) == ([], ["a"])

    mill.put("a")
    mill.stop.set()
    with pytest.raises(HandlerStopped):
        mill.pump_once()
    assert (mill.held, mill.errors) == (["a"], ["a"])


@pytest.mark.parametrize("mode", SAFE)
def test_a_handler_that_says_it_was_stopped_fails_its_message_alone(mode: TransactionMode) -> None:
    mill = Mill(mode, batch=3)
    mill.put("a", "b", "c")

    def fail(batch: Sequence[Received], work: Work) -> None:
        for received in batch:
            if received.message.id == "b":
                if len(batch) == 1:
                    raise HandlerStopped
                work.fail(received, HandlerStopped())

    mill.before_step = fail

    mill.pump_once()

    assert (mill.held, mill.errors) == ([], ["b"])
