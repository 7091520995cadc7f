from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_composer, a_message, a_received
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.handlers import (
    AGAIN,
    ANY,
    Handler,
    HandlerContext,
    HandlerStep,
    retry_later,
)
from timeoutmgr.errors import InvalidMessage, MessageRejected
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message, Outgoing, enclosed_types
from timeoutmgr.message.routes import to_timeout_manager
from timeoutmgr.resilience.recovery import LONGEST_WAIT, RecoverabilitySettings
from timeoutmgr.sender.composer import SendOptions
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.work import Work


def to_sales(outgoing: Outgoing, due: Micros) -> Outgoing:
    return to_timeout_manager(outgoing, due, "sales.Timeouts")


class Harness:
    """One endpoint's handlers over a simulated transport."""

    def __init__(self, **handlers: Sequence[Handler]) -> None:
        self.clock = FakeClock()
        self.telemetry = Counters()
        self.transport = FakeTransport("billing", "sales.Timeouts")
        self.step = HandlerStep(
            queue="sales",
            handlers={name.replace("any", ANY): found for name, found in handlers.items()},
            composer=a_composer(self.clock, to_sales),
            clock=self.clock,
            telemetry=self.telemetry,
        )

    def handle(
        self, message: Message, mode: TransactionMode = TransactionMode.RECEIVE_ONLY
    ) -> None:
        session = self.transport.session()
        with Work(session, FakeReceiver(self.transport, "sales"), mode) as work:
            self.step([a_received(message)], work)


def bill(body: bytes = b'{"n": 1}', /, **given: str) -> Message:
    return a_message("m1", body, enclosed_message_types="Bill", **given)


def test_a_handler_gets_the_decoded_body_and_the_message_type() -> None:
    seen: list[tuple[object, str]] = []
    harness = Harness(Bill=[lambda body, context: seen.append((body, context.message_type))])

    harness.handle(bill())

    assert seen == [({"n": 1}, "Bill")]


def sent_ids(harness: Harness, message: Message, **given: Any) -> list[str]:
    """Handle *message*, and return the ids of its delayed and its immediate send."""
    harness.handle(message, **given)
    return [harness.transport.ids(queue)[-1] for queue in ("sales.Timeouts", "billing")]


def send_two(_body: object, context: HandlerContext) -> None:
    context.send("billing", "Reminder", {"n": 1}, delay=timedelta(days=1))
    context.send("billing", "Bill", {"n": 1}, message_id="mine")


def test_a_message_that_is_handled_again_sends_under_the_same_ids() -> None:
    harness = Harness(Bill=[send_two])
    bill_ = bill(time_sent=to_wire(START))

    first, again = sent_ids(harness, bill_), sent_ids(harness, bill_)
    # An id may be used again by its sender, for a message of another time.
    other = sent_ids(harness, bill(time_sent=to_wire(START + SECOND)))

    assert first == again
    assert first[1] == other[1] == "mine"
    assert first[0] != other[0]


def test_a_saga_that_is_left_out_the_next_time_leaves_its_ids_to_no_other_saga() -> None:
    sagas = ["a", "b"]

    def remind_each(_body: object, context: HandlerContext) -> None:
        for one in sagas:
            context.send("billing", "Reminder", {}, delay=timedelta(days=1), saga_id=one)

    harness = Harness(Bill=[remind_each])
    harness.handle(bill(time_sent=to_wire(START)))
    del sagas[0]
    harness.handle(bill(time_sent=to_wire(START)))

    of_a, of_b, again = harness.transport.ids("sales.Timeouts")
    assert of_a != of_b == again


def test_where_a_failed_send_is_undone_or_nothing_tells_two_messages_apart_ids_are_new() -> None:
    harness = Harness(Bill=[send_two])
    bill_ = bill(time_sent=to_wire(START))

    atomic = [
        sent_ids(harness, bill_, mode=TransactionMode.SENDS_ATOMIC_WITH_RECEIVE)[0] for _ in "ab"
    ]
    of_no_time = [sent_ids(harness, bill())[0] for _ in "ab"]

    assert len({*atomic, *of_no_time}) == 4


def test_all_handlers_of_a_type_run_in_order() -> None:
    ran: list[int] = []
    harness = Harness(Bill=[lambda *_: ran.append(1), lambda *_: ran.append(2)])

    harness.handle(bill())

    assert ran == [1, 2]


def test_the_catch_all_handler_gets_messages_without_a_handler_of_their_own() -> None:
    seen: list[str] = []
    harness = Harness(
        any=[lambda _, context: seen.append(context.message_type)], Other=[lambda *_: None]
    )

    harness.handle(bill())

    assert seen == ["Bill"]


def test_a_message_without_a_handler_is_rejected_by_its_type() -> None:
    with pytest.raises(
        MessageRejected, match="no handler for message type 'Bill'; handlers here: Other"
    ):
        Harness(Other=[lambda *_: None]).handle(bill())


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 200_000])
def test_a_body_that_contradicts_its_content_type_is_rejected(body: bytes) -> None:
    with pytest.raises(MessageRejected, match="body is no application/json"):
        Harness(Bill=[lambda *_: None]).handle(bill(body))


def test_sends_of_a_handler_leave_after_all_handlers_returned() -> None:
    harness = Harness(Bill=[])

    def send(_: object, context: HandlerContext) -> None:
        context.send("billing", "Paid", {})
        assert harness.transport.ids("billing") == []

    harness.step = HandlerStep(
        queue="sales",
        handlers={"Bill": [send]},
        composer=harness.step.composer,
        clock=harness.clock,
        telemetry=harness.telemetry,
    )
    harness.handle(bill())

    assert harness.transport.ids("billing") == ["new-1"]


def test_sends_of_a_failing_handler_do_not_leave() -> None:
    def send_and_fail(_: object, context: HandlerContext) -> None:
        context.send("billing", "Paid", {})
        raise RuntimeError("after the send")

    harness = Harness(Bill=[send_and_fail])

    with pytest.raises(RuntimeError, match="after the send"):
        harness.handle(bill())

    assert harness.transport.ids("billing") == []


def test_sends_of_a_handler_join_the_transaction_of_an_atomic_mode() -> None:
    harness = Harness(Bill=[lambda _, context: context.send("billing", "Paid", {})])

    harness.handle(bill(), TransactionMode.SENDS_ATOMIC_WITH_RECEIVE)

    assert harness.transport.journal == ["begin", "send in transaction billing confirmed", "commit"]


@pytest.mark.behaviour(12)
def test_a_send_from_the_handler_of_a_delayed_message_is_not_delayed() -> None:
    harness = Harness(Bill=[lambda _, context: context.send("billing", "Paid", {})])

    harness.handle(bill(deliver_at=to_wire(START), related_to_timeout="t1"))

    assert harness.transport.ids("billing") == ["new-1"]
    assert harness.transport.ids("sales.Timeouts") == []


def test_a_delayed_send_from_a_handler_goes_to_the_manager() -> None:
    harness = Harness(Bill=[lambda _, context: context.send_local("Remind", {}, delay=60)])

    harness.handle(bill())

    [routed] = harness.transport.messages("sales.Timeouts")
    assert routed.headers[headers.DESTINATION] == "sales"


def test_a_reply_goes_to_the_reply_address() -> None:
    harness = Harness(Bill=[lambda _, context: context.reply("Paid", {})])

    harness.handle(bill(reply_to="billing"))

    assert harness.transport.ids("billing") == ["new-1"]


def test_a_reply_without_a_reply_address_is_an_error() -> None:
    harness = Harness(Bill=[lambda _, context: context.reply("Paid", {})])

    with pytest.raises(InvalidMessage, match="no reply address"):
        harness.handle(bill())


def test_the_refusal_of_an_unknown_keyword_names_it() -> None:
    misspelt: dict[str, Any] = {"dleay": 5}
    harness = Harness(Bill=[lambda _, context: context.send("billing", "Paid", {}, **misspelt)])

    with pytest.raises(TypeError, match=r"send\(\) got an unexpected keyword argument 'dleay'"):
        harness.handle(bill())


def test_a_send_refuses_a_type_of_half_a_surrogate_pair_with_a_sentence() -> None:
    harness = Harness(Bill=[lambda _, context: context.send("billing", "Pa\ud800id", {})])

    with pytest.raises(InvalidMessage, match="EnclosedMessageTypes' cannot be encoded as UTF-8"):
        harness.handle(bill(time_sent=to_wire(0)))


def test_a_send_refuses_options_of_another_class() -> None:
    options: Any = {"delay": 5}
    harness = Harness(Bill=[lambda _, context: context.send("billing", "Paid", {}, options)])

    with pytest.raises(InvalidMessage, match=r"are a SendOptions, got \{'delay': 5\}"):
        harness.handle(bill())


@pytest.mark.behaviour(9)
def test_the_same_option_given_again_overwrites() -> None:
    options = SendOptions(delay=5)
    harness = Harness(
        Bill=[lambda _, context: context.send("billing", "Paid", {}, options, delay=90)]
    )

    harness.handle(bill())

    [routed] = harness.transport.messages("sales.Timeouts")
    assert routed.headers[headers.EXPIRE] == to_wire(START + 90 * SECOND)


def test_a_keyword_of_none_takes_the_same_option_away() -> None:
    options = SendOptions(delay=5, saga_id="saga")
    harness = Harness(Bill=[lambda _, context: context.reply("Paid", {}, options, delay=None)])

    harness.handle(bill(reply_to="billing"))

    [sent] = harness.transport.messages("billing")
    assert sent.headers[headers.SAGA_ID] == "saga"


def test_a_session_needs_a_mode_with_a_transaction() -> None:
    def handle(_message: object, context: HandlerContext) -> None:
        context.session.flush()

    harness = Harness(Bill=[handle])

    with pytest.raises(RuntimeError, match="transaction"):
        harness.handle(bill())


@pytest.mark.behaviour(103)
@pytest.mark.parametrize(
    ("sent_ago", "limit", "handled"),
    [
        (11, "00:00:10", False),
        (10, "00:00:10", True),
        (9, "00:00:10", True),
        (11, None, True),
        (None, "00:00:10", True),
        (11, "nonsense", True),
    ],
)
def test_a_message_past_its_time_to_be_received_is_discarded(
    sent_ago: int | None, limit: str | None, handled: bool
) -> None:
    ran: list[object] = []
    harness = Harness(Bill=[lambda body, _: ran.append(body)])
    given: dict[str, str] = {}
    if sent_ago is not None:
        given["time_sent"] = to_wire(START - sent_ago * SECOND)
    if limit is not None:
        given["time_to_be_received"] = limit

    harness.handle(bill(**given))

    assert bool(ran) is handled
    assert harness.telemetry.snapshot().get("expired_on_receipt", 0) == (0 if handled else 1)


def test_discarding_an_expired_message_is_a_warning_with_its_id_and_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness(Bill=[lambda body, _: None])

    harness.handle(bill(time_sent=to_wire(START - 11 * SECOND), time_to_be_received="00:00:10"))

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "endpoint discards message 'm1' from queue 'sales': its time to be received is over"
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("Bill", ["Bill"]),
        (
            "Shop.Messages.Bill, Shop, Version=1.0.0.0;Shop.IEvent, Shop",
            ["Shop.Messages.Bill", "Bill", "Shop.IEvent", "IEvent"],
        ),
        ("Shop.Outer+Bill", ["Shop.Outer+Bill", "Bill"]),
        (" ; ,x", []),
    ],
)
def test_enclosed_types_are_read_full_and_short_once_each(text: str, names: list[str]) -> None:
    assert enclosed_types(a_message(enclosed_message_types=text)) == names


def later(message: Message, **settings: Any) -> Outgoing:
    return retry_later(
        message,
        queue="sales",
        settings=RecoverabilitySettings(**settings),
        delays=to_sales,
        clock=FakeClock(),
    )


@pytest.mark.behaviour(127)
@pytest.mark.parametrize(("behind", "wait"), [(None, 10), ("0", 10), ("1", 20), ("2", 30)])
def test_a_delayed_retry_is_due_ten_seconds_later_each_time(behind: str | None, wait: int) -> None:
    message = bill() if behind is None else bill(retries=behind)

    assert later(message).message.headers[headers.EXPIRE] == to_wire(START + wait * SECOND)


def test_a_delayed_retry_past_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="past the year 9999"):
        later(bill(retries="9"), delayed=1, increase=LONGEST_WAIT)


@pytest.mark.behaviour(127)
def test_a_delayed_retry_counts_itself_and_stamps_its_time() -> None:
    written = later(bill(retries="1")).message.headers

    assert written["NServiceBus.Retries"] == "2"
    assert written["NServiceBus.Retries.Timestamp"] == to_wire(START)


@pytest.mark.behaviour(128)
def test_a_delayed_retry_carries_the_original_body_headers_and_id() -> None:
    message = bill(b"\x01\x02", saga_id="s", time_sent=to_wire(START))

    retried = later(message).message

    assert (retried.id, retried.body) == (message.id, message.body)
    assert retried.headers.items() >= message.headers.items()


@pytest.mark.behaviour(128)
def test_a_delayed_retry_does_not_touch_the_incoming_message() -> None:
    message = bill()
    before = dict(message.headers)

    later(message)

    assert message.headers == before


def test_a_delayed_retry_comes_back_to_the_queue_it_failed_in() -> None:
    retried = later(bill())

    assert retried.destination == "sales.Timeouts"
    assert retried.message.headers[headers.DESTINATION] == "sales"


def test_the_increase_of_delayed_retries_is_a_setting() -> None:
    retried = later(bill(retries="1"), increase=timedelta(minutes=1))

    assert retried.message.headers[headers.EXPIRE] == to_wire(START + 120 * SECOND)


def test_a_context_shows_the_headers_of_its_message() -> None:
    seen: list[HandlerContext] = []
    harness = Harness(Bill=[lambda _, context: seen.append(context)])

    harness.handle(bill(saga_id="s1", reply_to="billing"))

    [context] = seen
    assert (context.message_id, context.saga_id, context.reply_to) == ("m1", "s1", "billing")


def test_a_handler_cannot_change_the_headers_with_which_its_message_comes_back() -> None:
    def change(_message: object, context: HandlerContext) -> None:
        headers_of_it: Any = context.headers
        headers_of_it["tenant"] = "other"

    harness, message = Harness(Bill=[change]), bill(saga_id="s1")
    before = dict(message.headers)

    with pytest.raises(TypeError, match="does not support item assignment"):
        harness.handle(message)

    assert message.headers == before


SENDS: dict[str, Callable[[HandlerContext], object]] = {
    "send": lambda context: context.send("billing", "Paid", {}),
    "send_local": lambda context: context.send_local("Paid", {}),
    "reply": lambda context: context.reply("Paid", {}),
    "clear_timeouts": lambda context: context.clear_timeouts("saga"),
}


@pytest.mark.parametrize("failure", [None, ValueError("declined")])
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_send_after_the_handler_has_ended_is_an_error(
    send: Callable[[HandlerContext], object], failure: Exception | None
) -> None:
    seen: list[HandlerContext] = []

    def handle(_message: object, context: HandlerContext) -> None:
        seen.append(context)
        if failure is not None:
            raise failure

    harness = Harness(Bill=[handle])
    with suppress(ValueError):
        harness.handle(bill(reply_to="billing"))

    with pytest.raises(RuntimeError, match="handler of this context has ended"):
        send(seen[0])


def test_a_handler_that_has_ended_opens_no_session() -> None:
    seen: list[HandlerContext] = []
    harness = Harness(Bill=[lambda _, context: seen.append(context)])
    harness.handle(bill(), TransactionMode.SENDS_ATOMIC_WITH_RECEIVE)

    with pytest.raises(RuntimeError, match="handler of this session has ended"):
        _ = seen[0].session


def test_messages_that_are_handled_alone_split_a_batch_in_its_order() -> None:
    harness = Harness(A=[lambda _body, _context: None], B=[lambda _body, _context: None])
    step = replace(harness.step, alone=frozenset({"B"}))
    batch = [a_received(a_message(kind, enclosed_message_types=kind)) for kind in "AABAAB"]

    parts = [[received.message.id for received in part] for part in step.split(batch)]

    assert parts == [["A", "A"], ["B"], ["A", "A"], ["B"]]


def test_messages_that_were_delivered_before_are_settled_by_few_and_then_alone() -> None:
    """One of them may have killed its process, and its neighbours' commit with it."""
    step = Harness(A=[lambda _body, _context: None]).step
    counts = [0, 0, *[1] * (AGAIN + 1), 2, 2, 0]
    batch = [
        replace(a_received(a_message(str(number), enclosed_message_types="A")), delivery_count=n)
        for number, n in enumerate(counts)
    ]

    parts = [len(part) for part in step.split(batch)]

    assert parts == [2, AGAIN, 1, 1, 1, 1]


@pytest.mark.behaviour(78)
def test_a_critical_error_of_a_handler_reaches_the_hooks_and_the_handler_goes_on() -> None:
    raised: list[tuple[str, BaseException]] = []
    cause = RuntimeError("the printer burns")

    def handle(_body: object, context: HandlerContext) -> None:
        context.raise_critical_error("Printing is impossible", cause)
        context.raise_critical_error("and more")
        context.send("billing", "Bill", 1)

    harness = Harness(Bill=[handle])
    harness.step = replace(
        harness.step, raise_critical=lambda error, exception: raised.append((error, exception))
    )
    harness.handle(bill())

    assert raised[0] == ("Printing is impossible", cause)
    assert (raised[1][0], str(raised[1][1])) == ("and more", "and more")
    assert len(harness.transport.ids("billing")) == 1


def test_a_critical_error_without_a_sentence_is_refused() -> None:
    harness = Harness(Bill=[lambda _, context: context.raise_critical_error("")])

    with pytest.raises(InvalidMessage, match="needs a sentence"):
        harness.handle(bill())
