"""A message that left the delay levels without a bound queue is settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_message, a_received
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr.contracts import DeadLetterResult, SendResult, TransactionMode
from timeoutmgr.deadletter.policies import DeadLetterForwarding
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.headers import PROBE
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message, Received
from timeoutmgr.message.validation import Limits
from timeoutmgr.native.levels import routing_key
from timeoutmgr.native.names import UNROUTABLE
from timeoutmgr.satellites import SettleUnroutable
from timeoutmgr.testing import RecordingTelemetry
from timeoutmgr.transport.delivery_policy import PLAIN_FORWARDING, ForwardingPolicy
from timeoutmgr.transport.work import Work


class Bench:
    """The step over a simulated broker, where ``billing`` exists and nothing else."""

    def __init__(
        self, policy: ForwardingPolicy = PLAIN_FORWARDING, limits: Limits | None = None
    ) -> None:
        self.transport = FakeTransport("billing")
        self.telemetry = RecordingTelemetry()
        self.rests: list[float] = []
        self._step = SettleUnroutable(
            endpoint="sales",
            error_queue="error",
            limits=limits or Limits(),
            clock=FakeClock(),
            telemetry=self.telemetry,
            policy=policy,
            rest=self.rests.append,
        )

    def settle(self, *batch: Received) -> None:
        session = self.transport.session()
        receiver = FakeReceiver(self.transport, UNROUTABLE)
        receiver.held = list(batch)
        with Work(session, receiver, TransactionMode.RECEIVE_ONLY) as work:
            self._step(list(batch), work)


def out_of_the_levels(
    message: Message, destination: str = "nowhere", key: str | None = None
) -> Received:
    received = a_received(message, UNROUTABLE)
    return replace(received, routing_key=routing_key(5, destination) if key is None else key)


@pytest.mark.behaviour(113)
def test_neighbours_are_parted_by_whether_their_queue_exists() -> None:
    bench = Bench()

    bench.settle(
        out_of_the_levels(a_message("m1")),
        out_of_the_levels(a_message("m2"), "billing"),
        out_of_the_levels(a_message("m3"), "eu.nowhere"),
    )

    assert bench.transport.ids("billing") == ["m2"]
    copies = bench.transport.messages("error")
    assert {copy.id: copy.headers["NServiceBus.FailedQ"] for copy in copies} == {
        "m1": "nowhere",
        "m3": "eu.nowhere",
    }
    assert bench.telemetry.counted("unroutable") == 2
    assert bench.telemetry.counted("unroutable_delivered") == 1


def test_a_message_that_left_its_level_early_is_never_sent_on() -> None:
    bench = Bench()
    early = a_message("m1", deliver_at=to_wire(START + SECOND))

    bench.settle(out_of_the_levels(early, "billing"))

    assert bench.transport.ids("billing") == []
    [copy] = bench.transport.messages("error")
    assert copy.headers["NServiceBus.FailedQ"] == "billing"
    assert "before it was due" in copy.headers["NServiceBus.ExceptionInfo.Message"]


def test_a_clock_behind_the_senders_makes_no_message_early() -> None:
    bench = Bench()
    on_time = a_message("m1", deliver_at=to_wire(START + SECOND // 4))

    bench.settle(out_of_the_levels(on_time, "billing"))

    assert bench.transport.ids("billing") == ["m1"]
    assert bench.rests == [0.25]


@pytest.mark.parametrize("key", ["", "billing", "1.0.billing"])
def test_a_key_that_names_no_destination_is_logged(key: str) -> None:
    bench = Bench()

    bench.settle(out_of_the_levels(a_message("m1"), key=key))

    [copy] = bench.transport.messages("error")
    assert repr(key) in copy.headers["NServiceBus.ExceptionInfo.Message"]
    assert copy.headers["NServiceBus.FailedQ"] == UNROUTABLE


def test_a_probe_is_dropped() -> None:
    bench = Bench()
    probe = Message(id="p1", headers={PROBE: "True"})

    bench.settle(out_of_the_levels(probe, "billing"))

    assert bench.transport.ids("billing") == bench.transport.ids("error") == []


@pytest.mark.parametrize(
    ("queue", "answer"),
    [("billing", SendResult.UNKNOWN), ("error", SendResult.UNKNOWN)],
)
def test_an_unconfirmed_message_comes_back(queue: str, answer: SendResult) -> None:
    bench = Bench()
    bench.transport.script(queue, answer)
    destination = "billing" if queue == "billing" else "nowhere"

    with pytest.raises(TransportUnavailable, match="tried again"):
        bench.settle(out_of_the_levels(a_message("m1"), destination))


def test_a_forwarded_message_does_not_return_with_an_unconfirmed_message() -> None:
    bench = Bench()
    bench.transport.script("billing", SendResult.UNKNOWN)

    with pytest.raises(TransportUnavailable, match="1 messages"):
        bench.settle(
            out_of_the_levels(a_message("m1"), "billing"),
            out_of_the_levels(a_message("m2"), "billing"),
            out_of_the_levels(a_message("m3")),
        )

    assert [line for line in bench.transport.journal if line.startswith("ack")] == ["ack m2"]


def test_a_full_queue_is_no_reason_to_try_for_ever() -> None:
    bench = Bench()
    bench.transport.script("billing", SendResult.REFUSED)

    bench.settle(out_of_the_levels(a_message("m1"), "billing"))

    [copy] = bench.transport.messages("error")
    assert "is it full?" in copy.headers["NServiceBus.ExceptionInfo.Message"]


# --- with dead-letter queues ------------------------------------------------------------------


class Graves:
    """Dead-letter queues that answer as a test says; the rest of the contract is not asked."""

    def __init__(self, answer: Callable[[], DeadLetterResult | None]) -> None:
        self._answer = answer
        self.buried: list[tuple[str, str, str]] = []

    def dead_letter(
        self, message: Message, error: BaseException, *, queue: str, **_: object
    ) -> DeadLetterResult | None:
        self.buried.append((message.id, queue, type(error).__name__))
        return self._answer()


def forwarding(graves: Graves) -> ForwardingPolicy:
    return DeadLetterForwarding(graves)  # type: ignore[arg-type]  # only what the step asks for


def settle_with(answer: Callable[[], DeadLetterResult | None]) -> tuple[Bench, Graves]:
    graves = Graves(answer)
    bench = Bench(forwarding(graves))
    bench.settle(out_of_the_levels(a_message("m1")))
    return bench, graves


@pytest.mark.behaviour(113)
def test_its_dead_letter_says_which_queue_there_was_not() -> None:
    bench, graves = settle_with(DeadLetterResult)

    assert graves.buried == [("m1", "nowhere", "Unroutable")]
    assert bench.transport.ids("error") == []


def test_a_message_without_a_dead_letter_goes_to_the_error_queue() -> None:
    bench, _ = settle_with(lambda: None)

    assert bench.transport.ids("error") == ["m1"]


def test_while_the_dead_letters_are_away_it_comes_back() -> None:
    def away() -> DeadLetterResult:
        raise StorageUnavailable("the database is away")

    with pytest.raises(StorageUnavailable, match="have no place now"):
        settle_with(away)


def test_a_forwarded_message_does_not_return_with_messages_that_have_no_queue() -> None:
    def away() -> DeadLetterResult:
        raise StorageUnavailable("the database is away")

    bench = Bench(forwarding(Graves(away)))

    with pytest.raises(StorageUnavailable):
        bench.settle(
            out_of_the_levels(a_message("m1")), out_of_the_levels(a_message("m2"), "billing")
        )

    assert [line for line in bench.transport.journal if line.startswith("ack")] == ["ack m2"]


@pytest.mark.parametrize("destination", ["error", "billing.Timeouts", "amq.direct"])
def test_a_message_with_a_forbidden_key_goes_to_the_error_queue(destination: str) -> None:
    bench = Bench(limits=Limits().of_endpoint("sales", "error"))
    bench.transport.session().create_queues([destination])

    bench.settle(out_of_the_levels(a_message("m1"), destination))

    [copy] = bench.transport.messages("error")
    assert copy.headers["NServiceBus.FailedQ"] == destination
    assert "DestinationNotAllowed" in copy.headers["NServiceBus.ExceptionInfo.ExceptionType"]
