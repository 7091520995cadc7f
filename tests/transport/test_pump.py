from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from tests.support.clock import FakeClock
from tests.support.makers import Pauses, a_breaker, a_message
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr import headers
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.errors import (
    ConfigurationError,
    DeliveryUnknown,
    LeaseLost,
    MessageRejected,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.message import Message, Outgoing, Received
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.resilience.recovery import SATELLITE_POLICY, RecoverabilitySettings
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.pump import Consumption, Outage, Pump, PumpSurroundings
from timeoutmgr.transport.work import Work

NONE = TransactionMode.NONE
RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE
SAFE = [RECEIVE, TransactionMode.SENDS_ATOMIC_WITH_RECEIVE, SCOPE]
AWAY = StorageUnavailable("storage is away")
GONE = TransportUnavailable("broker is gone")


class Mill:
    """A pump over a simulated queue, whose step fails as *failures* say, by message id."""

    def __init__(
        self,
        mode: TransactionMode = RECEIVE,
        batch: int = 1,
        policy: RecoverabilitySettings = SATELLITE_POLICY,
        retry_later: Callable[[Message], Outgoing] | None = None,
        storage: bool = True,
        wait: float = 120.0,
    ) -> None:
        self.clock = FakeClock()
        self.telemetry = Counters()
        self.transport = FakeTransport("billing", "sales.Timeouts")
        self.triggered: list[BaseException] = []
        self.storage = a_breaker(self.clock, wait, self.triggered.append, "storage")
        self.broker = a_breaker(self.clock, wait, self.triggered.append, "broker")
        self.stop = Pauses()
        self.before_probe: Callable[[], None] = lambda: None
        self.failures: dict[str, list[Exception]] = {}
        self.batches: list[list[str]] = []
        self.probed: list[Exception | None] = []
        self.probes = 0
        self.before_step: Callable[[Sequence[Received], Work], None] = lambda batch, work: None
        self.transport.on_idle = self.stop.set
        self.pump = Pump(
            Consumption(
                name="Mill",
                queue="sales",
                step=self.step,
                batch=batch,
                policy=policy,
                storage=Outage(breaker=self.storage, probe=self.probe) if storage else None,
                retry_later=retry_later,
            ),
            PumpSurroundings(
                endpoint="sales",
                transport=self.transport,
                mode=mode,
                error_queue="error",
                clock=self.clock,
                telemetry=self.telemetry,
                broker=self.broker,
                stop=self.stop,
            ),
        )
        self.session = self.transport.session()
        self.receiver = FakeReceiver(self.transport, "sales")

    def step(self, batch: Sequence[Received], work: Work) -> None:
        self.batches.append([received.message.id for received in batch])
        self.transport.journal.append("step")
        self.before_step(batch, work)
        for received in batch:
            failures = self.failures.get(received.message.id)
            if failures:
                raise failures.pop(0) if len(failures) > 1 else failures[0]

    def probe(self) -> None:
        self.probes += 1
        self.before_probe()
        if self.probed:
            error = self.probed.pop(0)
            if error is not None:
                raise error

    def put(self, *ids: str, **given: str) -> None:
        self.transport.put("sales", *(a_message(one, **given) for one in ids))

    def always_fails(self, message_id: str, error: Exception | None = None) -> None:
        self.failures[message_id] = [error or RuntimeError(f"{message_id} is poison")]

    def turn(self) -> int:
        return self.pump.pump_once(self.session, self.receiver, 0.0)

    @property
    def held(self) -> list[str]:
        return [received.message.id for received in self.receiver.held]

    @property
    def errors(self) -> list[str]:
        return self.transport.ids("error")


# --- the good case


@pytest.mark.parametrize("mode", SAFE)
def test_a_handled_message_is_acknowledged(mode: TransactionMode) -> None:
    mill = Mill(mode)
    mill.put("a")

    assert mill.turn() == 1

    assert (mill.held, mill.errors) == ([], [])


@pytest.mark.parametrize("mode", SAFE)
def test_a_message_is_acknowledged_only_after_its_step(mode: TransactionMode) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.turn()

    acked = next(n for n, line in enumerate(mill.transport.journal) if line.startswith("ack"))
    assert mill.transport.journal.index("step") < acked


def test_in_mode_none_a_message_is_acknowledged_before_its_step() -> None:
    mill = Mill(NONE)
    mill.put("a")
    mill.turn()

    assert mill.transport.journal == ["ack a", "step"]


def test_a_batch_of_large_messages_is_a_step_for_as_many_as_are_held_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timeoutmgr.transport.pump.BATCH_BYTES", 10)
    mill = Mill(batch=4)
    for name, size in (("m1", 6), ("m2", 4), ("m3", 11), ("m4", 1)):
        mill.transport.put("sales", a_message(name, b"x" * size))
    mill.always_fails("m3", MessageRejected("too large for its own good"))

    mill.turn()

    assert mill.batches == [["m1", "m2"], ["m3"], ["m4"]]
    assert mill.errors == ["m3"]
    assert mill.held == []


def test_a_batch_is_one_step_and_one_acknowledgement() -> None:
    mill = Mill(SCOPE, batch=10)
    mill.put("a", "b", "c")

    assert mill.turn() == 3

    assert mill.batches == [["a", "b", "c"]]
    assert mill.transport.journal.count("commit") == 1


# --- failures of one message


@pytest.mark.behaviour(27, 32)
@pytest.mark.parametrize("mode", SAFE)
def test_a_message_that_keeps_failing_goes_to_the_error_queue_after_five_attempts(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a")

    mill.turn()

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
    mill.turn()

    assert (len(attempts), mill.errors, mill.held) == (3, [], [])


def test_a_rejected_message_goes_to_the_error_queue_at_once() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a", MessageRejected("no timeout"))

    mill.turn()

    assert (mill.batches, mill.errors) == ([["a"]], ["a"])


@pytest.mark.behaviour(33)
def test_in_mode_none_the_first_failure_goes_to_the_error_queue() -> None:
    mill = Mill(NONE)
    mill.put("a")
    mill.always_fails("a")

    mill.turn()

    assert (mill.batches, mill.errors) == ([["a"]], ["a"])


@pytest.mark.behaviour(33)
def test_in_mode_none_a_message_is_acknowledged_once_also_when_its_batch_fails() -> None:
    mill = Mill(NONE, batch=10)
    mill.put("a", "poison", "b")
    mill.always_fails("poison")

    mill.turn()

    acks = [line for line in mill.transport.journal if line.startswith("ack")]
    assert acks == ["ack a", "ack poison", "ack b"]
    assert mill.errors == ["poison"]


@pytest.mark.behaviour(33)
@pytest.mark.parametrize("error", [AWAY, GONE, DeliveryUnknown("no confirm")])
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

    mill.turn()

    assert sorted(handled) == ["a", "b", "c"]
    assert (mill.errors, mill.held) == (["poison"], [])


@pytest.mark.behaviour(29)
def test_what_a_failing_step_did_in_its_transaction_is_rolled_back() -> None:
    mill = Mill(SCOPE)
    mill.put("a")
    mill.always_fails("a")
    mill.before_step = lambda batch, work: work.send([Outgoing("billing", a_message("partial"))])

    mill.turn()

    assert mill.transport.ids("billing") == []
    assert mill.transport.journal.count("rollback") == 5


@pytest.mark.behaviour(65)
def test_the_copy_in_the_error_queue_names_the_queue_it_failed_in() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a")

    mill.turn()

    [copy] = mill.transport.messages("error")
    assert copy.headers[headers.FAILED_QUEUE] == "sales"
    assert copy.headers[headers.EXCEPTION_MESSAGE] == "a is poison"


def test_an_unreadable_envelope_goes_to_the_error_queue_without_a_step() -> None:
    mill = Mill()
    mill.transport.put("sales", a_message("a", b"\xff"), defect="headers are no UTF-8")

    mill.turn()

    [copy] = mill.transport.messages("error")
    assert (mill.batches, mill.held) == ([], [])
    assert copy.body == b"\xff"
    assert copy.headers[headers.EXCEPTION_MESSAGE] == "headers are no UTF-8"


def test_an_unreadable_envelope_does_not_keep_its_batch_from_the_step() -> None:
    mill = Mill(batch=10)
    mill.put("a")
    mill.transport.put("sales", a_message("broken"), defect="headers are no UTF-8")
    mill.put("b")

    mill.turn()

    assert (mill.batches, mill.errors, mill.held) == ([["a", "b"]], ["broken"], [])


# --- the error queue fails


@pytest.mark.behaviour(91)
@pytest.mark.parametrize(
    "answer", [SendResult.UNKNOWN, SendResult.UNROUTABLE, TransportUnavailable("gone")]
)
@pytest.mark.parametrize("mode", SAFE)
def test_a_message_stays_in_its_queue_while_the_error_queue_does_not_take_it(
    mode: TransactionMode, answer: SendResult | Exception
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", answer)

    with pytest.raises(TransportUnavailable):
        mill.turn()

    assert (mill.held, mill.errors) == (["a"], [])


@pytest.mark.behaviour(65)
def test_a_full_copy_that_is_refused_falls_back_to_a_minimal_one() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", SendResult.REFUSED)

    mill.turn()

    [copy] = mill.transport.messages("error")
    assert headers.EXCEPTION_STACK not in copy.headers
    assert copy.headers[headers.FAILED_QUEUE] == "sales"
    assert mill.held == []


@pytest.mark.behaviour(91)
def test_a_message_stays_when_the_minimal_copy_is_refused_too() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", SendResult.REFUSED, SendResult.REFUSED)

    with pytest.raises(TransportUnavailable):
        mill.turn()

    assert mill.held == ["a"]


@pytest.mark.parametrize("mode", SAFE)
def test_a_message_whose_copy_was_not_taken_is_moved_in_a_later_turn(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", GONE)

    mill.pump.run()

    assert (mill.errors, mill.transport.ids("sales")) == (["a"], [])


# --- delayed retries


def to_later(message: Message) -> Outgoing:
    return Outgoing("sales.Timeouts", message)


@pytest.mark.behaviour(127)
@pytest.mark.parametrize("mode", SAFE)
def test_a_failing_message_is_retried_later_where_something_can_delay(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode, policy=RecoverabilitySettings(immediate=2), retry_later=to_later)
    mill.put("a")
    mill.always_fails("a")

    mill.turn()

    assert mill.batches == [["a"]] * 2
    assert (mill.transport.ids("sales.Timeouts"), mill.held, mill.errors) == (["a"], [], [])


@pytest.mark.behaviour(127)
def test_after_the_last_delayed_retry_a_message_goes_to_the_error_queue() -> None:
    mill = Mill(policy=RecoverabilitySettings(immediate=1), retry_later=to_later)
    mill.put("a", retries="3")
    mill.always_fails("a")

    mill.turn()

    assert mill.errors == ["a"]


def test_without_anything_that_can_delay_a_message_goes_to_the_error_queue() -> None:
    mill = Mill(policy=RecoverabilitySettings(immediate=1, delayed=3))
    mill.put("a")
    mill.always_fails("a")

    mill.turn()

    assert mill.errors == ["a"]


def test_a_message_stays_while_its_delayed_retry_is_not_taken() -> None:
    mill = Mill(policy=RecoverabilitySettings(immediate=1), retry_later=to_later)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("sales.Timeouts", SendResult.UNKNOWN)

    with pytest.raises(TransportUnavailable):
        mill.turn()

    assert mill.held == ["a"]


# --- outages


@pytest.mark.behaviour(32)
def test_while_the_storage_is_away_messages_are_neither_acknowledged_nor_moved() -> None:
    mill = Mill(batch=10)
    mill.put("a", "b")
    mill.always_fails("a", AWAY)

    with pytest.raises(StorageUnavailable):
        mill.turn()

    assert (mill.held, mill.errors, len(mill.batches)) == (["a", "b"], [], 1)


@pytest.mark.behaviour(32)
def test_after_an_outage_of_the_storage_the_messages_flow() -> None:
    mill = Mill(batch=10)
    mill.put("a", "b")
    mill.failures["a"] = [AWAY]
    mill.probed = [AWAY, AWAY, None]
    mill.before_step = lambda batch, work: None if mill.probes == 0 else mill.failures.clear()

    mill.pump.run()

    assert mill.batches == [["a", "b"], ["a", "b"]]
    assert (mill.transport.ids("sales"), mill.errors) == ([], [])


@pytest.mark.behaviour(32)
def test_during_an_outage_of_the_storage_nothing_is_consumed() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a", AWAY)
    mill.probed = [AWAY] * 20
    seen: list[list[str]] = []
    mill.before_probe = lambda: seen.append(mill.transport.ids("sales"))
    mill.stop.stop_after = 10

    mill.pump.run()

    assert seen == [["a"]] * 9
    assert len(mill.batches) == 1


@pytest.mark.behaviour(71)
def test_the_pauses_of_an_outage_are_those_of_the_breaker() -> None:
    mill = Mill(wait=2.0)
    mill.put("a")
    mill.always_fails("a", AWAY)
    mill.probed = [AWAY] * 4

    def pass_time(batch: Sequence[Received], work: Work) -> None:
        if mill.probes:
            mill.failures.clear()

    mill.before_step = pass_time
    mill.pump.run()

    assert mill.stop.asked == [1.0] * 5


@pytest.mark.behaviour(56)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug in the probe"),
        ConfigurationError("the tables are of a newer version"),
        TransportUnavailable("gone as well"),
    ],
)
def test_a_probe_that_fails_in_another_way_does_not_end_the_pump(error: Exception) -> None:
    mill = Mill()
    mill.put("a")
    mill.failures["a"] = [AWAY]
    mill.probed = [error]
    mill.before_step = lambda batch, work: None if mill.probes == 0 else mill.failures.clear()

    mill.pump.run()

    assert mill.transport.ids("sales") == []


def test_an_outage_of_the_storage_arms_the_breaker_of_the_storage() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a", AWAY)
    mill.probed = [AWAY]
    seen: list[BreakerState] = []
    original = mill.stop.wait

    def wait(timeout: float | None = None) -> bool:
        seen.append(mill.storage.state)
        if len(seen) == 2:
            mill.stop.set()
        return original(timeout)

    mill.stop.wait = wait  # type: ignore[method-assign]  # to see the waits
    mill.pump.run()

    assert seen == [BreakerState.ARMED] * 2


def test_an_outage_of_the_broker_arms_the_breaker_of_the_broker_and_ends_by_itself() -> None:
    mill = Mill()
    mill.put("a")
    mill.transport.fail("receive", GONE, GONE)

    mill.pump.run()

    assert mill.stop.asked == [1.0, 1.0]
    assert mill.batches == [["a"]]
    assert mill.broker.state is BreakerState.DISARMED


def test_a_queue_that_is_missing_is_waited_for() -> None:
    mill = Mill()
    queue = mill.transport.queues.pop("sales")
    original = mill.stop.wait

    def wait(timeout: float | None = None) -> bool:
        mill.transport.queues["sales"] = queue
        return original(timeout)

    mill.stop.wait = wait  # type: ignore[method-assign]  # to see the waits
    mill.pump.run()

    assert len(mill.stop.asked) == 1


@pytest.mark.behaviour(56)
def test_a_bug_outside_the_step_does_not_end_the_pump() -> None:
    mill = Mill()
    mill.put("a")
    mill.transport.fail("receive", ValueError("a bug in the receiver"))

    mill.pump.run()

    assert mill.batches == [["a"]]
    assert mill.telemetry.snapshot()["pump_failures"] == 1


def test_an_empty_look_counts_as_a_success() -> None:
    mill = Mill()
    mill.broker.failure(GONE)
    mill.storage.failure(AWAY)

    mill.turn()

    assert mill.broker.state is mill.storage.state is BreakerState.DISARMED


def test_every_session_is_closed_when_the_pump_ends() -> None:
    mill = Mill()
    mill.session.close()
    mill.put("a")
    mill.transport.fail("receive", GONE, ValueError("bug"))

    mill.pump.run()

    assert mill.transport.open_sessions == 0


@pytest.mark.behaviour(51)
def test_a_pump_that_is_stopped_before_it_runs_consumes_nothing() -> None:
    mill = Mill()
    mill.put("a")
    mill.stop.set()

    mill.pump.run()

    assert mill.transport.ids("sales") == ["a"]


# --- leases and commits


@pytest.mark.parametrize("mode", SAFE)
def test_a_lost_lease_undoes_the_step_and_leaves_the_message_to_its_new_owner(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.receiver.lost.add("a")
    mill.before_step = lambda batch, work: work.send([Outgoing("billing", a_message("out"))])

    mill.turn()

    assert mill.errors == []
    assert mill.telemetry.snapshot()["leases_lost"] == 1
    assert mill.transport.ids("billing") == (["out"] if mode is RECEIVE else [])


@pytest.mark.parametrize("mode", SAFE)
def test_of_a_batch_in_which_a_lease_was_lost_the_rest_comes_again(mode: TransactionMode) -> None:
    mill = Mill(mode, batch=10)
    mill.put("a", "b", "c")
    mill.receiver.lost.add("b")

    mill.turn()

    assert (mill.held, mill.errors) == ([], [])
    # Outside a transaction, what is before it is acknowledged.
    assert mill.transport.ids("sales") == (["c"] if mode is RECEIVE else ["a", "c"])


def test_a_message_whose_lease_is_lost_during_a_retry_is_let_go_of() -> None:
    mill = Mill(SCOPE)
    mill.put("a")
    mill.failures["a"] = [RuntimeError("first"), LeaseLost("second")]

    mill.turn()

    assert mill.held == []


def test_a_lease_that_is_lost_during_a_retry_ends_the_retries() -> None:
    mill = Mill()
    mill.put("a")
    mill.failures["a"] = [RuntimeError("first"), LeaseLost("second")]

    mill.turn()

    assert (len(mill.batches), mill.errors) == (2, [])


@pytest.mark.behaviour(61)
def test_an_unknown_commit_is_no_fault_of_the_message() -> None:
    mill = Mill(SCOPE)
    mill.put("a")
    mill.transport.fail("commit", AWAY)

    with pytest.raises(StorageUnavailable):
        mill.turn()

    assert (mill.errors, len(mill.batches)) == ([], 1)


@pytest.mark.behaviour(41)
@pytest.mark.parametrize("mode", SAFE)
def test_a_wake_that_fails_after_the_commit_does_not_undo_or_repeat_what_was_committed(
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


def test_a_handler_whose_storage_nobody_probes_pauses_by_the_brokers_breaker() -> None:
    mill = Mill(storage=False)
    mill.put("a")
    mill.failures["a"] = [AWAY]
    original = mill.stop.wait

    def wait(timeout: float | None = None) -> bool:
        mill.failures.clear()
        return original(timeout)

    mill.stop.wait = wait  # type: ignore[method-assign]  # to see the waits
    mill.pump.run()

    assert (mill.stop.asked, mill.batches) == ([1.0], [["a"], ["a"]])


def test_the_wall_clock_may_jump_during_an_outage() -> None:
    mill = Mill()
    mill.storage.failure(AWAY)
    mill.clock.step_wall(timedelta(hours=-1))

    mill.turn()

    assert mill.triggered == []
