from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_delayed, a_message, a_received
from tests.support.ports import FakeReceiver, FakeTransport
from tests.support.store import ScriptedStore
from timeoutmgr.contracts import Key, Timeout, TimeoutState, TimeoutStore, TransactionMode
from timeoutmgr.errors import InvalidMessage, MessageRejected, StorageUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import clear_timeouts, timeout_id, wake_manager
from timeoutmgr.message.validation import Limits
from timeoutmgr.satellites.timeout_manager.timeouts import StoreTimeouts, read_timeout
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.work import Consumer, Work

RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE
LATER = START + 60 * SECOND


class Counter:
    """The step over a real store, in one mode."""

    def __init__(self, mode: TransactionMode = RECEIVE, offset: Micros = 0) -> None:
        self.mode = mode
        self.clock = FakeClock()
        self.store = ScriptedStore(self.clock, offset=offset)
        self.transport = FakeTransport()
        self.telemetry = Counters()
        self.woken: list[Micros] = []
        self.straight_on: list[Key] = []
        self.step = StoreTimeouts(
            store=self.store,
            limits=Limits(),
            clock=self.clock,
            telemetry=self.telemetry,
            wake=self._wake,
            dispatch_now=self._dispatch,
        )

    def receive(
        self, *messages: Message, again: Sequence[str] = (), consumer: Consumer | None = None
    ) -> None:
        """Take a batch; the ids *again* were delivered before."""
        session, receiver = self.transport.session(), FakeReceiver(self.transport, "sales")
        batch = [
            replace(a_received(message), delivery_count=int(message.id in again))
            for message in messages
        ]
        with Work(session, receiver, self.mode, consumer=consumer) as work:
            self.step(batch, work)

    def consumer(self, number: int = 1) -> Consumer:
        """Return a consumer whose line is empty until now."""
        return Consumer(number, self.clock.monotonic())

    def stored(self) -> list[Timeout]:
        return [row.timeout for row in self.store._in.rows.values()]

    def _wake(self, due: Micros) -> None:
        self.transport.journal.append("woken")
        self.woken.append(due)

    def _dispatch(self, keys: Sequence[Key], work: Work) -> None:
        assert work.scope is not None
        self.straight_on += keys


class WithoutOrder:
    """A store of another author, as it was before clears went by the order of the queue."""

    endpoint = "sales"

    def __init__(self, store: ScriptedStore) -> None:
        self.store_many = store.store_many
        self.cancel_saga = store.cancel_saga
        self.now = store.now


def a_clear(message_id: str, sent: Micros) -> Message:
    return clear_timeouts("s1", "sales.Timeouts", message_id, sent).message


def a_sagas(message_id: str, sent: Micros) -> Message:
    return a_delayed(message_id, saga_id="s1", time_sent=to_wire(sent))


@pytest.mark.behaviour(24)
def test_a_timeout_is_stored_with_all_that_it_came_with() -> None:
    counter = Counter()

    counter.receive(
        a_delayed("m1", LATER, "billing", saga_id="s1", time_sent=to_wire(START - SECOND))
    )

    [stored] = counter.stored()
    assert stored.id == timeout_id("sales", "m1")
    assert (stored.due, stored.destination, stored.saga_id) == (LATER, "billing", "s1")
    assert (stored.created, stored.message.body) == (START - SECOND, b"{}")


@pytest.mark.behaviour(20)
def test_the_routing_headers_are_removed_and_deliver_at_is_kept() -> None:
    stored = read_timeout(a_delayed("m1", LATER), "sales", Limits(), START)

    assert headers.EXPIRE not in stored.message.headers
    assert headers.DESTINATION not in stored.message.headers
    assert stored.message.headers[headers.DELIVER_AT] == to_wire(LATER)


@pytest.mark.behaviour(22, 23)
def test_message_id_and_time_sent_are_kept() -> None:
    arrived = a_delayed("m1", LATER, time_sent=to_wire(START - SECOND))

    stored = read_timeout(arrived, "sales", Limits(), START)

    assert stored.message.id == "m1"
    assert stored.message.headers[headers.TIME_SENT] == to_wire(START - SECOND)


@pytest.mark.behaviour(28)
def test_without_a_destination_a_timeout_goes_to_the_reply_address() -> None:
    arrived = a_message(expire=to_wire(LATER), reply_to="shipping")

    assert read_timeout(arrived, "sales", Limits(), START).destination == "shipping"


@pytest.mark.behaviour(28)
@pytest.mark.parametrize("given_headers", [{}, {"destination": "", "reply_to": ""}])
def test_a_timeout_without_a_destination_is_rejected_before_it_is_stored(
    given_headers: Any,
) -> None:
    with pytest.raises(MessageRejected, match="names no destination"):
        read_timeout(a_message(expire=to_wire(LATER), **given_headers), "sales", Limits(), START)


@pytest.mark.behaviour(27)
def test_a_message_that_is_no_timeout_is_rejected_with_the_documented_sentence() -> None:
    with pytest.raises(MessageRejected) as rejected:
        read_timeout(a_message("m7", destination="billing"), "sales", Limits(), START)

    assert str(rejected.value) == "Non timeout message arrived at the timeout manager, id:m7"


@pytest.mark.behaviour(27)
@pytest.mark.parametrize(
    "due", ["", "tomorrow", "2030-01-01T00:00:00Z", "0000-01-01 00:00:00:000000 Z"]
)
def test_a_due_time_that_cannot_be_read_is_rejected(due: str) -> None:
    with pytest.raises(MessageRejected, match=headers.EXPIRE):
        read_timeout(a_message(expire=due, destination="billing"), "sales", Limits(), START)


@pytest.mark.behaviour(29)
@pytest.mark.parametrize("saga", ["", "x" * 201, "a\nb"])
def test_a_malformed_saga_id_is_rejected(saga: str) -> None:
    with pytest.raises(MessageRejected, match="malformed saga id"):
        read_timeout(a_delayed(saga_id=saga), "sales", Limits(), START)


def test_the_empty_guid_of_nservicebus_means_no_saga() -> None:
    arrived = a_delayed(saga_id="00000000-0000-0000-0000-000000000000")

    assert read_timeout(arrived, "sales", Limits(), START).saga_id is None


@pytest.mark.behaviour(35)
@pytest.mark.parametrize(
    ("limits", "destination"),
    [
        (Limits(max_body=1), "billing"),
        (Limits(max_headers=10), "billing"),
        (Limits(), "x" * 200),
        (Limits(allowed_destinations=("shipping",)), "billing"),
        (Limits(), "sales.TimeoutsDispatcher"),
        (Limits().of_endpoint("sales", "error"), "error"),
        (Limits(max_delay=timedelta(seconds=29)), "billing"),
    ],
)
def test_a_timeout_that_no_door_would_let_through_is_rejected(
    limits: Limits, destination: str
) -> None:
    with pytest.raises(MessageRejected):
        read_timeout(a_delayed(destination=destination), "sales", limits, START)


def test_a_senders_clock_that_is_a_little_ahead_costs_no_message_its_delay() -> None:
    limits = Limits(max_delay=timedelta(seconds=60))

    read_timeout(a_delayed(due=START + 90 * SECOND), "sales", limits, START)
    with pytest.raises(MessageRejected, match="more than max_delay"):
        read_timeout(a_delayed(due=START + 90 * SECOND + 1), "sales", limits, START)


def test_a_message_id_that_no_store_keeps_is_rejected() -> None:
    with pytest.raises(MessageRejected, match="200 characters"):
        read_timeout(a_delayed("m" * 201), "sales", Limits(), START)


@pytest.mark.parametrize("text", [None, "", "nonsense"])
def test_without_a_time_of_sending_a_timeout_was_created_now(text: str | None) -> None:
    arrived = a_delayed() if text is None else a_delayed(time_sent=text)

    assert read_timeout(arrived, "sales", Limits(), START).created == START


@pytest.mark.behaviour(127)
def test_a_delayed_retry_of_a_dispatched_timeout_is_another_timeout() -> None:
    first = read_timeout(a_delayed("m1"), "sales", Limits(), START)
    retry = read_timeout(
        a_delayed("m1", retries="1", retries_timestamp=to_wire(START)), "sales", Limits(), START
    )

    assert first.id != retry.id


wire_times = st.integers(EARLIEST, LATEST).map(to_wire)
known_names = st.sampled_from(
    [
        headers.EXPIRE,
        headers.DESTINATION,
        headers.REPLY_TO,
        headers.SAGA_ID,
        headers.TIME_SENT,
        headers.RETRIES_TIMESTAMP,
    ]
)
any_text = st.text(st.characters(codec="utf-8"))


@given(
    st.dictionaries(known_names | any_text, wire_times | st.just("billing") | any_text),
    st.binary(max_size=100),
    st.text(max_size=300),
)
def test_every_arriving_message_is_a_timeout_or_rejected(
    given_headers: dict[str, str], body: bytes, message_id: str
) -> None:
    message = Message(
        id=message_id.encode(errors="replace").decode(), headers=given_headers, body=body
    )
    try:
        timeout = read_timeout(message, "sales", Limits(), START)
    except MessageRejected:
        return
    assert EARLIEST <= timeout.due <= LATEST


@given(st.dictionaries(known_names | st.text(), st.text()))
def test_headers_that_cannot_be_encoded_do_no_more_than_be_rejected(
    given_headers: dict[str, str],
) -> None:
    message = Message(id="m1", headers={headers.EXPIRE: to_wire(START), **given_headers})
    try:
        read_timeout(message, "sales", Limits(), START)
    except MessageRejected:
        return


# --- the step


@pytest.mark.behaviour(34)
def test_a_redelivered_store_message_makes_no_second_row() -> None:
    counter = Counter()

    counter.receive(a_delayed("m1", LATER))
    counter.receive(a_delayed("m1", LATER))

    assert len(counter.stored()) == 1


@pytest.mark.behaviour(34)
def test_a_redelivered_store_message_does_not_bring_a_dispatched_timeout_back() -> None:
    counter = Counter()
    counter.receive(a_delayed("m1", LATER))
    counter.store.cancel(timeout_id("sales", "m1"))

    counter.receive(a_delayed("m1", LATER))

    assert counter.stored() == []


@pytest.mark.behaviour(29)
def test_one_bad_message_of_a_batch_leaves_nothing_half_done() -> None:
    counter = Counter()

    with pytest.raises(MessageRejected):
        counter.receive(a_delayed("m1", LATER), a_delayed("m2", saga_id="a\nb"))

    assert counter.stored() == []


@pytest.mark.behaviour(38)
def test_the_poller_is_woken_with_the_earliest_due_time_of_a_batch() -> None:
    counter = Counter()

    counter.receive(a_delayed("m1", LATER), a_delayed("m2", LATER - SECOND), a_delayed("m3", LATER))

    assert counter.woken == [LATER - SECOND]


@pytest.mark.behaviour(41)
def test_the_poller_is_woken_after_the_commit() -> None:
    counter = Counter(SCOPE)

    counter.receive(a_delayed("m1", LATER))

    assert counter.transport.journal == ["begin", "commit", "woken"]


@pytest.mark.behaviour(41)
def test_the_poller_is_not_woken_when_nothing_was_stored() -> None:
    counter = Counter()
    counter.store.fail("store_many", StorageUnavailable("away"))

    with pytest.raises(StorageUnavailable):
        counter.receive(a_delayed("m1", LATER))

    assert counter.woken == []


def test_in_transaction_scope_the_store_takes_part_in_the_transaction() -> None:
    counter = Counter(SCOPE)

    counter.receive(a_delayed("m1", LATER))

    [transaction] = {joined for method, joined in counter.store.joined if method == "store_many"}
    assert transaction is not None


def test_in_other_modes_the_store_commits_by_itself() -> None:
    counter = Counter(RECEIVE)

    counter.receive(a_delayed("m1", LATER))

    assert ("store_many", None) in counter.store.joined


@pytest.mark.behaviour(25)
@pytest.mark.parametrize(("due", "straight"), [(START - SECOND, 1), (START, 1), (START + 1, 0)])
def test_transaction_scope_sends_a_due_message_straight_on_and_never_early(
    due: Micros, straight: int
) -> None:
    counter = Counter(SCOPE)

    counter.receive(a_delayed("m1", due))

    assert len(counter.straight_on) == straight
    assert len(counter.woken) == 1 - straight


@pytest.mark.behaviour(25)
def test_other_modes_store_a_due_message_and_wake_the_poller_at_once() -> None:
    counter = Counter(RECEIVE)

    counter.receive(a_delayed("m1", START - SECOND))

    assert len(counter.stored()) == 1
    assert (counter.straight_on, counter.woken) == ([], [START - SECOND])


@pytest.mark.behaviour(26, 55)
@pytest.mark.parametrize(("offset", "straight"), [(-300 * SECOND, 0), (300 * SECOND, 1)])
def test_due_is_judged_by_the_databases_clock(offset: Micros, straight: int) -> None:
    counter = Counter(SCOPE, offset)

    counter.receive(a_delayed("m1", START + SECOND if straight else START - SECOND))

    assert len(counter.straight_on) == straight


@pytest.mark.behaviour(30)
def test_clear_forgets_that_saga_and_no_other() -> None:
    counter = Counter()
    counter.receive(a_delayed("m1", saga_id="s1"), a_delayed("m2", saga_id="s2"), a_delayed("m3"))

    counter.receive(clear_timeouts("s1", "sales.Timeouts", "c1", LATER).message)

    assert sorted(stored.message.id for stored in counter.stored()) == ["m2", "m3"]


@pytest.mark.behaviour(30)
def test_a_clear_leaves_a_delayed_retry_of_a_message_of_the_saga() -> None:
    counter = Counter()
    counter.receive(
        a_delayed("m1", saga_id="s1"),
        a_delayed("m2", saga_id="s1", retries="1", retries_timestamp=to_wire(START)),
    )

    counter.receive(clear_timeouts("s1", "sales.Timeouts", "c1", LATER).message)

    [retry] = counter.stored()
    assert retry.message.id == "m2"
    assert retry.message.headers[headers.SAGA_ID] == "s1"


def test_a_clear_names_its_queue_message_and_sender_in_the_history() -> None:
    counter = Counter()
    counter.receive(a_delayed("m1", saga_id="s1"))
    order = a_message(
        "forged", clear_timeouts="True", saga_id="s1", originating_endpoint="crm\n" + "x" * 99
    )

    counter.receive(order)

    [entry] = counter.store.history(timeout_id("sales", "m1"))
    assert entry.event == "cancelled"
    assert entry.channel is not None
    assert entry.channel.startswith("queue 'sales', message 'forged', says endpoint 'crm\\nxxx")
    assert len(entry.channel) < 120


@pytest.mark.behaviour(30)
@pytest.mark.parametrize("saga", [None, "00000000-0000-0000-0000-000000000000"])
def test_clear_without_a_saga_is_rejected_with_the_documented_sentence(saga: str | None) -> None:
    given_headers = {"clear_timeouts": "True"} | ({} if saga is None else {"saga_id": saga})

    with pytest.raises(MessageRejected) as rejected:
        Counter().receive(a_message("c1", **given_headers))

    assert str(rejected.value) == (
        "Invalid saga id specified, clear timeouts is only supported for saga instances"
    )


@pytest.mark.behaviour(31)
def test_a_clear_cancels_a_redelivery_of_what_was_sent_before_it() -> None:
    counter = Counter()

    counter.receive(
        a_clear("c1", START), a_sagas("m1", START - 1), again=["m1"], consumer=counter.consumer()
    )

    assert counter.store.find(timeout_id("sales", "m1")) == (TimeoutState.CANCELLED, None)
    [entry] = counter.store.history(timeout_id("sales", "m1"))
    assert (entry.event, entry.channel) == ("cancelled", "queue 'sales', message 'c1'")


@pytest.mark.behaviour(31)
@pytest.mark.parametrize("mode", [RECEIVE, SCOPE])
@pytest.mark.parametrize("sender", [-60 * SECOND, 60 * SECOND])
def test_a_clear_goes_by_the_order_of_the_queue_and_by_no_senders_clock(
    mode: TransactionMode, sender: Micros
) -> None:
    counter = Counter(mode)
    consumer = counter.consumer()
    counter.receive(a_sagas("m1", START + 60 * SECOND), consumer=consumer)

    counter.receive(
        a_sagas("m2", START + 60 * SECOND),
        a_clear("c1", START + sender),
        a_sagas("m3", START - 60 * SECOND),
        consumer=consumer,
    )
    counter.receive(a_sagas("m4", START - 60 * SECOND), consumer=consumer)

    assert [stored.message.id for stored in counter.stored()] == ["m3", "m4"]


@pytest.mark.behaviour(31)
def test_two_clears_of_a_batch_clear_each_what_stands_ahead() -> None:
    counter = Counter()

    counter.receive(
        a_sagas("m1", START),
        a_clear("c1", START - 60 * SECOND),
        a_sagas("m2", START),
        a_clear("c2", START - 60 * SECOND),
        a_sagas("m3", START),
        consumer=counter.consumer(),
    )

    assert [stored.message.id for stored in counter.stored()] == ["m3"]
    assert counter.telemetry.snapshot()["timeouts_cleared"] == 2


@pytest.mark.behaviour(31)
def test_a_clear_reaches_what_another_consumer_stored_before_the_clear_came() -> None:
    counter = Counter()
    one, other = counter.consumer(1), counter.consumer(2)
    counter.receive(a_sagas("m1", START + 60 * SECOND), consumer=one)
    counter.clock.advance(5)
    other.received([], 1, counter.clock.monotonic())
    counter.clock.advance(5)
    order = a_clear("c1", START - 60 * SECOND)
    other.received([a_received(order)], 2, counter.clock.monotonic())

    counter.receive(order, consumer=other)

    assert counter.stored() == []


@pytest.mark.behaviour(31)
@pytest.mark.parametrize(("sent", "left"), [(START - 1, []), (START + 1, ["m1"])])
def test_of_what_another_consumer_had_the_time_of_sending_decides(
    sent: Micros, left: list[str]
) -> None:
    stored_first, cleared_first = Counter(), Counter()
    order, timeout = a_clear("c1", START), a_sagas("m1", sent)

    one, other = stored_first.consumer(1), stored_first.consumer(2)
    stored_first.receive(timeout, consumer=one)
    stored_first.receive(order, consumer=other)
    one, other = cleared_first.consumer(1), cleared_first.consumer(2)
    cleared_first.receive(order, consumer=other)
    cleared_first.receive(timeout, consumer=one)

    assert [stored.message.id for stored in stored_first.stored()] == left
    assert [stored.message.id for stored in cleared_first.stored()] == left


@pytest.mark.behaviour(31)
def test_a_message_that_comes_after_a_clear_was_handled_is_a_later_message() -> None:
    counter = Counter()
    one, other = counter.consumer(1), counter.consumer(2)
    counter.receive(a_clear("c1", START), consumer=other)
    counter.clock.advance(5)
    one.received([], 1, counter.clock.monotonic())
    counter.clock.advance(5)
    later = a_sagas("m1", START - 60 * SECOND)
    one.received([a_received(later)], 2, counter.clock.monotonic())

    counter.receive(later, consumer=one)

    assert [stored.message.id for stored in counter.stored()] == ["m1"]


@pytest.mark.behaviour(31)
def test_after_a_crash_a_redelivered_batch_is_in_its_order_again() -> None:
    counter = Counter()
    batch = [a_sagas("m1", START + 60 * SECOND), a_clear("c1", START), a_sagas("m2", START - 1)]
    counter.receive(batch[0], consumer=counter.consumer(1))

    counter.receive(*batch, again=["m1", "c1", "m2"], consumer=counter.consumer(2))

    assert [stored.message.id for stored in counter.stored()] == ["m2"]


@pytest.mark.behaviour(31)
def test_a_redelivered_clear_that_was_carried_out_does_nothing() -> None:
    counter = Counter()
    consumer = counter.consumer()
    order = a_clear("c1", START)
    counter.receive(a_sagas("m1", START), order, consumer=consumer)
    counter.receive(a_sagas("m2", START - 60 * SECOND), consumer=consumer)

    counter.receive(order, again=["c1"], consumer=counter.consumer(2))

    assert [stored.message.id for stored in counter.stored()] == ["m2"]


def test_a_store_that_cannot_clear_in_order_goes_by_the_time_of_sending() -> None:
    counter = Counter()
    counter.step = replace(counter.step, store=cast(TimeoutStore, WithoutOrder(counter.store)))

    counter.receive(
        a_sagas("m1", START),
        a_sagas("m2", START + 2),
        a_clear("c1", START + 1),
        consumer=counter.consumer(),
    )

    assert [stored.message.id for stored in counter.stored()] == ["m2"]


@pytest.mark.behaviour(31)
def test_a_clear_leaves_later_timeouts_of_the_saga_in_the_same_batch() -> None:
    counter = Counter()
    order = clear_timeouts("s1", "sales.Timeouts", "c1", START).message
    later = a_delayed("m2", saga_id="s1", time_sent=to_wire(START + 1))

    counter.receive(a_delayed("m1", saga_id="s1", time_sent=to_wire(START)), order, later)
    counter.receive(order)

    assert [stored.message.id for stored in counter.stored()] == ["m2"]


@pytest.mark.behaviour(30, 31)
def test_a_clear_leaves_the_timeouts_that_it_names_whenever_they_were_sent() -> None:
    counter = Counter()
    kept = timeout_id("sales", "m2")
    counter.receive(a_delayed("m1", saga_id="s1"), a_delayed("m2", saga_id="s1"))

    counter.receive(clear_timeouts("s1", "sales.Timeouts", "c1", LATER, [kept]).message)

    assert [stored.message.id for stored in counter.stored()] == ["m2"]


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"\xff", b"[" * 100_000])
def test_a_clear_whose_body_lists_no_ids_is_rejected(body: bytes) -> None:
    order = a_message("c1", body, clear_timeouts="True", saga_id="s1", keeps_timeouts="True")

    with pytest.raises(MessageRejected, match="not a list of the ids to keep"):
        Counter().receive(order)


def test_a_clear_of_another_program_may_have_a_body_of_its_own() -> None:
    counter = Counter()
    counter.receive(a_delayed("m1", saga_id="s1"))

    counter.receive(a_message("c1", b"order#1", clear_timeouts="True", saga_id="s1"))

    assert counter.stored() == []


def test_a_wake_message_wakes_the_poller_and_stores_nothing() -> None:
    counter = Counter()

    counter.receive(wake_manager("sales.Timeouts", LATER, "w1").message)

    assert (counter.woken, counter.stored()) == ([LATER], [])


def test_wakes_are_logged_with_their_channel_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    counter = Counter()
    wakes = [wake_manager("sales.Timeouts", LATER, f"w{n}").message for n in range(4)]

    counter.receive(*wakes[:2])
    counter.receive(wakes[2])
    counter.clock.advance(60)
    counter.receive(wakes[3])

    assert [record.getMessage() for record in caplog.records] == [
        "satellite received 2 wakes; the newest by queue 'sales', message 'w1'",
        "satellite received 2 wakes; the newest by queue 'sales', message 'w3'",
    ]


def test_wakes_without_a_pause_wake_the_poller_ten_times_a_second() -> None:
    counter = Counter()

    for number in range(100):
        counter.receive(wake_manager("sales.Timeouts", START - SECOND, f"w{number}").message)
        counter.clock.advance(0.01)

    assert counter.telemetry.snapshot()["wakes_received"] == 100
    assert sum(due < START for due in counter.woken) <= 10  # the others join a later poll


def test_a_malformed_wake_is_rejected() -> None:
    with pytest.raises(MessageRejected, match=r"TimeoutManager\.Wake"):
        Counter().receive(a_message("w1", wake="soon"))


def test_stored_timeouts_are_counted() -> None:
    counter = Counter()

    counter.receive(a_delayed("m1"), a_delayed("m2"))

    assert counter.telemetry.snapshot()["timeouts_stored"] == 2


def test_past_the_queue_only_a_timeout_can_be_stored() -> None:
    with pytest.raises(InvalidMessage, match="not a timeout"):
        Counter().step.store_directly([wake_manager("x", LATER, "w").message], None)


def test_past_the_queue_the_poller_is_not_woken() -> None:
    counter = Counter()

    counter.step.store_directly([a_delayed("m1", LATER)], None)

    assert (len(counter.stored()), counter.woken) == (1, [])


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "a\ud800b"},
        {"content_type": "\udfff"},
        {"content_encoding": "\ud800"},
        {"headers": {**a_delayed().headers, headers.RETRIES_TIMESTAMP: "\ud800"}},
        {"headers": {**a_delayed().headers, headers.SAGA_ID: "\ud800"}},
        {"headers": {**a_delayed().headers, "Any": "\ud800"}},
        {"headers": {**a_delayed().headers, headers.DESTINATION: "\ud800"}},
    ],
    ids=ascii,
)
def test_half_a_surrogate_pair_is_rejected_at_once(changed: dict[str, Any]) -> None:
    with pytest.raises(MessageRejected):
        read_timeout(replace(a_delayed(), **changed), "sales", Limits(), START)
