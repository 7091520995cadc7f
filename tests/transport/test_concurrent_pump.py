"""A pump that handles messages at once settles each as it ends, in safe order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.support.clock import FakeClock
from tests.support.makers import Pauses, a_breaker, a_message
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.errors import (
    DeliveryUnknown,
    HandlerStopped,
    LeaseLost,
    MessageRejected,
    StorageConflict,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.batch_progress import MOST_DELIVERIES
from timeoutmgr.transport.concurrent_pump import ConcurrentPump
from timeoutmgr.transport.in_flight import ConcurrentHandling, HandlingOutcome, Slots
from timeoutmgr.transport.pump import ConsumedQueue, Consumption, PumpSurroundings
from timeoutmgr.transport.work import Work, require_confirmed

SLOTS = 4
AHEAD = 2


class Script:
    """A step whose messages end when the test says so; each ended message sends one to billing."""

    def __init__(self) -> None:
        self.running: dict[str, Callable[[HandlingOutcome], None]] = {}
        self.received: dict[str, Received] = {}
        self.begun: list[str] = []
        self.cancelled: list[str] = []

    def handles(self, received: Received) -> bool:
        return not received.message.id.startswith("plain")

    def begin(
        self, received: Received, ended: Callable[[HandlingOutcome], None]
    ) -> Callable[[], None]:
        name = received.message.id
        self.begun.append(name)
        self.running[name] = ended
        self.received[name] = received
        return lambda: self.cancel(name, ended)

    def cancel(self, name: str, ended: Callable[[HandlingOutcome], None]) -> None:
        """End a handling as a cancelled coroutine ends."""
        self.cancelled.append(name)
        ended(HandlingOutcome(self.received[name], HandlerStopped()))

    def end(self, name: str, error: Exception | None = None) -> None:
        """End the handling of a message."""
        self.running.pop(name)(HandlingOutcome(self.received[name], error))

    def settle(self, outcomes: Sequence[HandlingOutcome], work: Work) -> None:
        for outcome in outcomes:
            if outcome.error is not None:
                work.fail(outcome.received, outcome.error)
                continue
            sent = [Outgoing("billing", a_message(f"of {outcome.received.message.id}"))]
            require_confirmed(sent, work.try_send(sent))


class StandingBack(FakeReceiver):
    """A receiver that gives messages back, unless another writer *is_busy*."""

    is_busy = False

    def stand_back(
        self, received: Sequence[Received], _may_return: Callable[[Received], bool]
    ) -> int:
        if self.is_busy:
            raise StorageConflict("there is another writer")
        self.release(received)
        return len(received)


class Bench:
    """A concurrent pump over a simulated queue."""

    def __init__(
        self, mode: TransactionMode = TransactionMode.RECEIVE_ONLY, *, is_alone: bool = True
    ) -> None:
        self.clock = FakeClock()
        self.telemetry = Counters()
        self.transport = FakeTransport("billing")
        self.script = Script()
        self.slots = Slots(SLOTS)
        self.stop = Pauses()
        self.plain: list[str] = []
        self.pump = ConcurrentPump(
            Consumption(
                name="Handlers",
                queue="sales",
                step=self._step,
                batch=10,
                is_paced=True,
                policy=RecoverabilitySettings(immediate=2, delayed=0),
            ),
            PumpSurroundings(
                endpoint="sales",
                transport=self.transport,
                mode=mode,
                error_queue="error",
                clock=self.clock,
                telemetry=self.telemetry,
                broker=a_breaker(self.clock),
                stop=self.stop,
            ),
            ConcurrentHandling(
                step=self.script, most=SLOTS, slots=self.slots, pumps=1, is_alone=is_alone
            ),
        )
        self.session = self.transport.session()
        self.receiver = FakeReceiver(self.transport, "sales")

    def put(self, *names: str) -> None:
        self.transport.put("sales", *(a_message(name) for name in names))

    def once(self) -> int:
        return self.pump.pump_once(self.session, self.receiver, 0)

    def settled(self) -> list[str]:
        """Return the ids of acknowledged messages, in order."""
        acks = (line for line in self.transport.journal if line.startswith("ack"))
        return [line.rpartition(" ")[2] for line in acks]

    def _step(self, batch: Sequence[Received], work: Work) -> None:
        self.plain += [received.message.id for received in batch]


def test_a_message_is_settled_when_it_ends_and_its_slow_neighbour_later() -> None:
    bench = Bench()
    bench.put("slow", "quick")
    bench.once()
    bench.script.end("quick")
    bench.once()

    assert bench.settled() == ["quick"]
    bench.script.end("slow")
    bench.once()
    assert bench.settled() == ["quick", "slow"]
    assert bench.slots.free == SLOTS


def test_sends_are_confirmed_before_the_acknowledgement() -> None:
    bench = Bench()
    bench.put("a", "b")
    bench.once()
    bench.script.end("b")
    bench.script.end("a")
    bench.once()

    steps = [line for line in bench.transport.journal if line.startswith(("send", "ack"))]
    assert steps == ["send billing confirmed"] * 2 + ["ack b", "ack a"]


def test_messages_that_ended_are_one_transaction_where_the_mode_has_it() -> None:
    bench = Bench(TransactionMode.SENDS_ATOMIC_WITH_RECEIVE)
    bench.put("a", "b")
    bench.once()
    bench.script.end("a")
    bench.script.end("b")
    bench.once()

    assert bench.transport.journal == [
        *("interrupt", "begin"),
        *["send in transaction billing confirmed"] * 2,
        *("ack in transaction a", "ack in transaction b", "commit"),
    ]


def test_no_more_messages_are_begun_than_there_are_slots() -> None:
    bench = Bench()
    bench.put(*"abcdefgh")
    bench.once()
    bench.once()
    assert bench.script.begun == [*"abcd"]

    bench.script.end("b")
    bench.once()
    assert bench.script.begun == [*"abcd", "e"]


def test_a_slot_that_becomes_free_waits_for_no_receive() -> None:
    bench = Bench()
    bench.put(*"abcdefgh")
    assert [bench.once() for _ in range(3)] == [SLOTS, AHEAD, 0]
    assert len(bench.receiver.held) == SLOTS + AHEAD, "no more are received ahead"

    bench.script.end("b")
    bench.script.end("a")
    bench.transport.fail("receive", TransportUnavailable("the broker is away"))
    with pytest.raises(TransportUnavailable):
        bench.once()

    assert bench.settled() == ["b", "a"]
    assert bench.script.begun == [*"abcdef"]


def test_messages_that_were_not_begun_go_back_while_each_slot_is_occupied_for_long() -> None:
    bench = Bench()
    receiver = bench.receiver = StandingBack(bench.transport, "sales")
    bench.put(*"abcdefgh")
    worn = replace(bench.transport.queues["sales"][4], delivery_count=MOST_DELIVERIES)
    bench.transport.queues["sales"][4] = worn
    bench.once()
    receiver.is_busy = True
    bench.once()
    bench.once()
    assert bench.telemetry.snapshot().get("messages_given_back", 0) == 0
    receiver.is_busy = False
    bench.once()

    # A message that was delivered often stays, or the broker would move the message away.
    assert [each.message.id for each in bench.receiver.held] == [*"abcde"]
    assert bench.transport.ids("sales") == [*"fgh"]
    bench.once()
    assert bench.transport.ids("sales") == [*"fgh"], "none is received ahead again"

    bench.script.end("c")
    bench.once()
    assert bench.script.begun == [*"abcde"]
    assert bench.transport.ids("sales") == ["h"], "a slot was free, so it goes on"


def test_a_failed_message_is_tried_again_and_moved_without_its_neighbours() -> None:
    bench = Bench()
    bench.put("bad", "good", "slow")
    bench.once()
    bench.script.end("good")
    bench.script.end("bad", ValueError("no"))
    bench.once()
    assert bench.script.begun == ["bad", "good", "slow", "bad"]
    assert bench.settled() == ["good"]

    bench.script.end("bad", ValueError("no"))
    bench.once()
    assert bench.transport.ids("error") == ["bad"]
    assert bench.settled() == ["good", "bad"]
    assert bench.slots.free == SLOTS - 1
    assert bench.script.cancelled == []


def test_a_rejected_message_is_moved_at_once() -> None:
    bench = Bench()
    bench.put("bad")
    bench.once()
    bench.script.end("bad", MessageRejected("no"))
    bench.once()

    assert (bench.script.begun, bench.transport.ids("error")) == (["bad"], ["bad"])


@pytest.mark.parametrize("outage", [StorageUnavailable("away"), TransportUnavailable("away")])
def test_an_outage_lets_the_neighbours_end_and_receives_nothing_more(outage: Exception) -> None:
    bench = Bench()
    bench.put("bad", "slow")
    bench.once()
    bench.script.end("bad", outage)
    bench.put("next")
    assert bench.once() == 0
    assert bench.script.begun == ["bad", "slow"]

    bench.script.end("slow")
    with pytest.raises(type(outage)):
        bench.once()
    assert bench.settled() == ["slow"]
    assert [one.message.id for one in bench.receiver.held] == ["bad"], "it stays in its queue"
    assert bench.slots.free == SLOTS


def test_a_send_that_is_not_confirmed_is_never_acknowledged() -> None:
    bench = Bench()
    bench.put("a")
    bench.once()
    bench.transport.script("billing", SendResult.UNKNOWN)
    bench.script.end("a")
    with pytest.raises(DeliveryUnknown):
        bench.once()

    assert bench.settled() == []


def test_a_lost_conflict_is_settled_again_without_its_handlers() -> None:
    bench = Bench(TransactionMode.TRANSACTION_SCOPE)
    bench.put("a", "b")
    bench.once()
    bench.transport.fail("commit", StorageConflict("deadlock"))
    bench.script.end("a")
    bench.script.end("b")
    bench.once()

    assert bench.script.begun == ["a", "b"]
    assert bench.receiver.held == []
    assert bench.transport.ids("billing") == ["of a", "of b"]


def test_beside_plain_handlers_no_message_waits_for_a_slot() -> None:
    bench = Bench(is_alone=False)
    bench.put(*"abcdef")
    assert (bench.once(), bench.once()) == (SLOTS, 0)

    bench.script.end("a")
    bench.transport.put("sales", a_message("plain"))
    bench.transport.queues["sales"].rotate(1)
    receive = bench.receiver.receive

    def lose_the_slot(limit: int, wait: float) -> list[Received]:
        assert bench.slots.reserve(1) == 1  # by another pump
        return receive(limit + 1, wait)

    bench.receiver.receive = lose_the_slot  # type: ignore[method-assign]  # of this receiver alone
    bench.once()

    assert bench.plain == ["plain"]
    assert bench.script.begun == [*"abcd"]
    assert bench.transport.ids("sales") == ["e", "f"]


def test_messages_of_other_types_are_handled_in_the_thread_of_the_pump() -> None:
    bench = Bench(is_alone=False)
    bench.put("a", "plain 1", "plain 2")
    bench.once()

    assert (bench.script.begun, bench.plain) == (["a"], ["plain 1", "plain 2"])
    assert bench.slots.free == SLOTS - 1


def test_a_stop_settles_what_ends_and_leaves_what_was_cancelled_in_its_queue() -> None:
    bench = Bench()
    bench.put("ends", "is cancelled")
    idle = 0

    def end_the_rest() -> None:
        nonlocal idle
        idle += 1
        if idle == 1:
            bench.stop.set()
            bench.script.end("ends")
            bench.script.end("is cancelled", HandlerStopped())

    bench.transport.on_idle = end_the_rest
    bench.pump.run()

    assert bench.settled() == ["ends"]
    assert bench.transport.ids("sales") == ["is cancelled"]
    assert bench.transport.ids("error") == []
    assert bench.slots.free == SLOTS


def test_a_stop_gives_back_at_once_what_was_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.put(*"abcdefgh")
    queued: list[list[str]] = []
    bench.once()
    bench.once()
    bench.stop.set()
    settle = bench.pump._settle_ended

    def end_the_rest(opened: ConsumedQueue) -> None:
        queued.append(bench.transport.ids("sales"))
        for name in list(bench.script.running):
            bench.script.end(name)
        settle(opened)

    monkeypatch.setattr(bench.pump, "_settle_ended", end_the_rest)
    bench.pump._finish(ConsumedQueue(bench.session, bench.receiver))

    assert queued[0] == [*"efgh"], "before any running message ends"
    assert bench.script.begun == [*"abcd"]
    assert bench.slots.free == SLOTS


def test_a_lost_receiver_cancels_what_runs_and_frees_each_slot_at_its_end() -> None:
    bench = Bench()
    bench.put("a", "b")
    idle = 0

    def fail_then_stop() -> None:
        nonlocal idle
        idle += 1
        if idle == 1:
            raise TransportUnavailable("the connection was lost")
        bench.stop.set()
        for name in list(bench.script.running):
            bench.script.end(name)

    bench.transport.on_idle = fail_then_stop
    bench.pump.run()

    assert bench.script.cancelled == ["a", "b"]
    assert bench.slots.free == SLOTS
    assert bench.settled() == ["a", "b"], "a lost message is handled again, and settled once"


@pytest.mark.parametrize("error", [HandlerStopped(), LeaseLost("of the handler's own queue")])
def test_an_error_of_ours_that_a_handler_raised_is_a_failure_of_its_message(
    error: Exception,
) -> None:
    bench = Bench()
    bench.put("bad")
    bench.once()
    bench.script.end("bad", error)
    bench.once()
    assert bench.script.begun == ["bad", "bad"]

    bench.script.end("bad", error)
    bench.once()
    assert (bench.transport.ids("error"), bench.receiver.held) == (["bad"], [])
    assert bench.slots.free == SLOTS


def test_an_error_while_messages_are_settled_frees_the_slots_of_all_that_ended() -> None:
    bench = Bench()
    bench.put("bad", "good", "worse", "slow")
    bench.once()
    bench.script.end("bad", MessageRejected("no"))
    bench.script.end("good")
    bench.script.end("worse", MessageRejected("no"))
    bench.transport.script("error", RuntimeError("a bug"))
    with pytest.raises(RuntimeError):
        bench.once()

    assert bench.settled() == ["good"]
    assert bench.slots.free == SLOTS - 1
    assert [one.message.id for one in bench.receiver.held] == ["bad", "worse", "slow"]


def test_messages_come_back_and_slots_too_however_often_settling_fails() -> None:
    bench = Bench()
    bench.put("bad")
    bench.transport.script("error", *(RuntimeError("a bug") for _ in range(2 * SLOTS)))
    begin = bench.script.begin

    def end_at_once(
        received: Received, ended: Callable[[HandlingOutcome], None]
    ) -> Callable[[], None]:
        cancel = begin(received, ended)
        bench.script.end(received.message.id, MessageRejected("no"))
        return cancel

    bench.script.begin = end_at_once  # type: ignore[method-assign]  # of this script alone
    bench.transport.on_idle = bench.stop.set
    bench.pump.run()

    assert bench.script.begun == ["bad"] * (2 * SLOTS + 1)
    assert (bench.transport.ids("sales"), bench.transport.ids("error")) == ([], ["bad"])
    assert bench.slots.free == SLOTS


@pytest.mark.parametrize("fails", [1, 2])
def test_a_message_that_cannot_be_begun_occupies_no_slot(fails: int) -> None:
    bench = Bench()
    bench.put("bad", "other")
    begin, calls = bench.script.begin, 0

    def fail_once(
        received: Received, ended: Callable[[HandlingOutcome], None]
    ) -> Callable[[], None]:
        nonlocal calls
        calls += 1
        if calls == fails:
            raise RuntimeError("a bug")
        return begin(received, ended)

    bench.script.begin = fail_once  # type: ignore[method-assign]  # of this script alone
    with pytest.raises(RuntimeError):
        bench.once()

    assert bench.slots.free == SLOTS - len(bench.script.begun)
    assert [one.message.id for one in bench.receiver.held] == ["bad", "other"]


def test_a_message_that_cannot_be_begun_again_occupies_no_slot() -> None:
    bench = Bench()
    bench.put("bad")
    bench.once()
    bench.script.end("bad", ValueError("no"))

    def fail(received: Received, ended: Callable[[HandlingOutcome], None]) -> Callable[[], None]:
        raise RuntimeError("a bug")

    bench.script.begin = fail  # type: ignore[method-assign]  # of this script alone
    with pytest.raises(RuntimeError):
        bench.once()

    assert bench.slots.free == SLOTS
