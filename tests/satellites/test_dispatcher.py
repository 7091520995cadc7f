from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_received, a_timeout
from tests.support.ports import FakeReceiver, FakeSession, FakeTransport
from tests.support.store import ScriptedStore
from timeoutmgr import headers
from timeoutmgr.contracts import (
    CancelResult,
    Key,
    SendResult,
    Taken,
    Timeout,
    TimeoutState,
    Transaction,
    TransactionMode,
)
from timeoutmgr.errors import (
    InvalidMessage,
    MessageRejected,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.instants import Micros, to_wire
from timeoutmgr.message import Message, Outgoing
from timeoutmgr.satellites.control import chunk_message
from timeoutmgr.satellites.delivering import back_off, delivered
from timeoutmgr.satellites.dispatcher import ATTEMPTS, DispatchTimeouts
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.work import Work

RECEIVE = TransactionMode.RECEIVE_ONLY
ATOMIC = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE
SCOPE = TransactionMode.TRANSACTION_SCOPE


class Desk:
    """The step over a real store and a simulated broker, in one mode."""

    def __init__(self, mode: TransactionMode = RECEIVE) -> None:
        self.mode = mode
        self.clock = FakeClock()
        self.store = ScriptedStore(self.clock)
        self.transport = FakeTransport("billing", "shipping")
        self.telemetry = Counters()
        self.step = DispatchTimeouts(
            store=self.store, error_queue="error", clock=self.clock, telemetry=self.telemetry
        )

    def put(self, *timeouts: Timeout) -> None:
        self.store.store_many(timeouts)

    def order(self, *control: Message) -> None:
        session = self.transport.session()
        with Work(session, FakeReceiver(self.transport, "control"), self.mode) as work:
            self.step([a_received(message) for message in control], work)

    def order_due(self) -> None:
        chunk = self.store.claim(self.clock.now(), 100, "me")
        self.order(chunk_message(chunk.token, chunk.keys, "c1"))

    def state(self, message_id: str = "m1") -> TimeoutState | None:
        found = self.store.find(a_timeout(message_id).id)
        return None if found is None else found[0]

    def attempts(self) -> int:
        [stored] = [row.timeout for row in self.store._in.rows.values()]
        return stored.attempts

    def counted(self, event: str) -> float:
        return self.telemetry.snapshot().get(event, 0)


@pytest.mark.behaviour(57)
@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC, SCOPE])
def test_a_found_timeout_is_sent_to_its_destination_and_removed(mode: TransactionMode) -> None:
    desk = Desk(mode)
    desk.put(a_timeout())

    desk.order_due()

    assert desk.transport.ids("billing") == ["m1"]
    assert desk.state() is TimeoutState.DISPATCHED


@pytest.mark.behaviour(57)
def test_a_timeout_is_sent_before_it_is_removed() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        desk.order_due()

    assert desk.transport.ids("billing") == ["m1"]
    assert desk.state() is TimeoutState.PENDING


@pytest.mark.behaviour(61, 62)
def test_a_repeat_after_a_failed_removal_has_the_same_message_id() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.store.fail("close", StorageUnavailable("away at the removal"))
    with pytest.raises(StorageUnavailable):
        desk.order_due()

    desk.order_due()

    assert desk.transport.ids("billing") == ["m1", "m1"]


@pytest.mark.behaviour(60, 61, 63)
def test_in_transaction_scope_a_failed_removal_takes_the_send_back() -> None:
    desk = Desk(SCOPE)
    desk.put(a_timeout())
    desk.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        desk.order_due()

    assert desk.transport.ids("billing") == []


@pytest.mark.behaviour(63)
def test_in_transaction_scope_look_up_and_send_share_the_transaction() -> None:
    desk = Desk(SCOPE)
    desk.put(a_timeout())

    desk.order_due()

    assert [
        joined is not None for method, joined in desk.store.joined if method == "take_many"
    ] == [True]
    assert "send in transaction billing confirmed" in desk.transport.journal


@pytest.mark.behaviour(58, 66)
def test_a_timeout_that_is_gone_is_a_counted_benign_outcome() -> None:
    desk = Desk()

    desk.order(chunk_message("token", [Key(START, "nobody")], "c1"))

    assert desk.counted("timeouts_gone") == 1
    assert desk.transport.ids("error") == []


@pytest.mark.behaviour(66)
def test_a_control_message_for_what_was_dispatched_already_sends_nothing() -> None:
    desk = Desk()
    one = a_timeout()
    desk.put(one)
    control = chunk_message("token", [one.key], "c1")
    desk.order(control)

    desk.order(control)

    assert desk.transport.ids("billing") == ["m1"]
    assert desk.counted("timeouts_gone") == 1


@pytest.mark.behaviour(58)
def test_a_single_id_that_nobody_knows_is_a_counted_benign_outcome() -> None:
    desk = Desk()

    desk.order(Message(id="c1", headers={headers.TIMEOUT_ID: "nobody"}))

    assert desk.counted("timeouts_gone") == 1


def test_a_single_id_of_nservicebus_is_dispatched() -> None:
    desk = Desk()
    one = a_timeout()
    desk.put(one)

    desk.order(Message(id="c1", headers={headers.TIMEOUT_ID: one.id}))

    assert desk.transport.ids("billing") == ["m1"]


@pytest.mark.behaviour(26)
def test_a_single_id_that_is_not_due_yet_is_not_dispatched() -> None:
    desk = Desk()
    one = a_timeout(due=START + 1)
    desk.put(one)

    desk.order(Message(id="c1", headers={headers.TIMEOUT_ID: one.id}))

    assert desk.transport.ids("billing") == []
    assert desk.state() is TimeoutState.PENDING


@pytest.mark.behaviour(26, 138)
def test_a_timeout_that_was_moved_after_its_claim_is_not_dispatched_early() -> None:
    desk = Desk()
    one = a_timeout()
    desk.put(one)
    chunk = desk.store.claim(START, 100, "me")
    desk.store.reschedule(one.id, START + SECOND)

    desk.order(chunk_message(chunk.token, chunk.keys, "c1"))

    assert desk.transport.ids("billing") == []


@pytest.mark.behaviour(138)
def test_a_timeout_that_was_cancelled_after_its_claim_is_not_dispatched() -> None:
    desk = Desk()
    one = a_timeout()
    desk.put(one)
    chunk = desk.store.claim(START, 100, "me")
    assert desk.store.cancel(one.id) is CancelResult.CANCELLED

    desk.order(chunk_message(chunk.token, chunk.keys, "c1"))

    assert desk.transport.ids("billing") == []


def test_a_message_that_is_no_order_is_rejected() -> None:
    with pytest.raises(MessageRejected):
        Desk().order(Message(id="c1"))


# --- what is delivered


@pytest.mark.behaviour(22, 23)
def test_what_is_delivered_keeps_id_body_and_headers() -> None:
    one = a_timeout()

    message = delivered(one, to_wire(START))

    assert (message.id, message.body) == ("m1", b"body of m1")
    assert message.headers.items() >= one.message.headers.items()


@pytest.mark.behaviour(23)
def test_what_is_delivered_says_when_it_was_dispatched_and_from_which_timeout() -> None:
    one = a_timeout()

    given_headers = delivered(one, to_wire(START + 5)).headers

    assert given_headers["TimeoutManager.DispatchedAt"] == to_wire(START + 5)
    assert given_headers["NServiceBus.RelatedToTimeoutId"] == one.id


@pytest.mark.behaviour(20)
def test_what_is_delivered_has_no_routing_headers() -> None:
    given_headers = delivered(a_timeout(), to_wire(START)).headers

    assert not {headers.EXPIRE, headers.DESTINATION} & given_headers.keys()


# --- what cannot be sent


@pytest.mark.behaviour(59, 62)
def test_a_message_that_no_broker_can_carry_goes_to_the_error_queue_and_its_neighbours_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    refuse_to_send(monkeypatch, lambda one: one.message.id == "m2")
    desk.put(a_timeout("m1"), a_timeout("m2"), a_timeout("m3"))

    desk.order_due()

    assert sorted(desk.transport.ids("billing")) == ["m1", "m3"]
    [copy] = desk.transport.messages("error")
    assert copy.headers[headers.ORIGINAL_ID] == '"m2"'
    assert (copy.headers["NServiceBus.FailedQ"], copy.body) == ("billing", b"body of m2")
    assert desk.state("m2") is TimeoutState.FAILED


def test_a_message_that_not_even_the_error_queue_can_carry_stays_and_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    refuse_to_send(monkeypatch, lambda one: one.message.body == b"body of m2")
    desk.put(a_timeout("m1"), a_timeout("m2"))

    desk.order_due()

    assert desk.transport.ids("billing") == ["m1"]
    assert desk.state("m2") is TimeoutState.PENDING
    assert desk.attempts() == 1


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
def test_a_copy_that_the_error_queue_may_have_taken_leaves_a_mark() -> None:
    desk = Desk()
    desk.put(a_timeout("m1", destination="nobody's"))
    desk.transport.script("error", SendResult.UNKNOWN)

    desk.order_due()

    assert desk.store.cancel(a_timeout("m1").id) is CancelResult.MAYBE_SENT


# --- what the broker answers


@pytest.mark.behaviour(64)
def test_a_timeout_for_a_missing_queue_goes_whole_to_the_error_queue() -> None:
    desk = Desk()
    desk.put(a_timeout(destination="nowhere"))

    desk.order_due()

    [copy] = desk.transport.messages("error")
    assert (copy.id, copy.body) == ("m1", b"body of m1")
    assert copy.headers[headers.FAILED_QUEUE] == "nowhere"
    assert "no queue 'nowhere'" in copy.headers[headers.EXCEPTION_MESSAGE]
    assert desk.state() is TimeoutState.FAILED


@pytest.mark.behaviour(64)
def test_the_neighbours_of_a_timeout_for_a_missing_queue_go_on_time() -> None:
    desk = Desk()
    desk.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"), a_timeout("m3"))

    desk.order_due()

    assert sorted(desk.transport.ids("billing")) == ["m1", "m3"]
    assert [desk.state(one) for one in ("m1", "m2", "m3")] == [
        TimeoutState.DISPATCHED,
        TimeoutState.FAILED,
        TimeoutState.DISPATCHED,
    ]


@pytest.mark.behaviour(91)
def test_the_error_queue_takes_the_message_before_the_row_is_closed() -> None:
    desk = Desk()
    desk.put(a_timeout(destination="nowhere"))
    desk.store.fail("close", StorageUnavailable("away at the removal"))

    with pytest.raises(StorageUnavailable):
        desk.order_due()

    assert desk.transport.ids("error") == ["m1"]
    assert desk.state() is TimeoutState.PENDING


@pytest.mark.behaviour(91)
@pytest.mark.parametrize("answer", [SendResult.UNKNOWN, SendResult.REFUSED, SendResult.UNROUTABLE])
def test_a_timeout_stays_while_the_error_queue_does_not_take_it(answer: SendResult) -> None:
    desk = Desk()
    desk.put(a_timeout(destination="nowhere"))
    desk.transport.script("error", *[answer] * 5)

    desk.order_due()

    assert desk.state() is TimeoutState.PENDING
    assert desk.attempts() == 1


@pytest.mark.behaviour(65)
def test_a_full_error_copy_that_is_refused_falls_back_to_a_smaller_one() -> None:
    desk = Desk()
    desk.put(a_timeout(destination="nowhere"))
    desk.transport.script("error", SendResult.REFUSED)

    desk.order_due()

    [copy] = desk.transport.messages("error")
    assert headers.EXCEPTION_STACK not in copy.headers
    assert copy.headers[headers.FAILED_QUEUE] == "nowhere"
    assert desk.state() is TimeoutState.FAILED


@pytest.mark.behaviour(92)
def test_a_refused_timeout_stays_and_is_tried_again_after_its_pause() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", SendResult.REFUSED)
    desk.order_due()
    assert desk.transport.ids("billing") == []

    desk.clock.advance(0.999)
    desk.order_due()
    assert desk.transport.ids("billing") == []

    desk.clock.advance(0.001)
    desk.order_due()
    assert desk.transport.ids("billing") == ["m1"]


class EarlyDesk(Desk):
    """A desk whose orders come before their time; *rests* has the seconds that it waited."""

    def __init__(self, mode: TransactionMode = RECEIVE) -> None:
        super().__init__(mode)
        self.rests: list[float] = []
        self.resting: Callable[[], None] = lambda: None
        self.step = replace(self.step, ahead=6_000, rest=self._rest)

    def order_early(self, *due: Micros) -> None:
        """Order a message for each of *due*, in a chunk of its own."""
        self.put(*(a_timeout(f"m{number}", at) for number, at in enumerate(due, start=1)))
        chunks = self.store.claim(self.clock.now(), 1, "me", chunks=len(due), ahead=6_000)
        self.order(*(chunk_message(one.token, one.keys, one.token) for one in chunks.all))

    def _rest(self, seconds: float) -> None:
        self.resting()
        self.rests.append(seconds)
        self.clock.advance(seconds)


def test_what_is_ordered_before_its_time_is_sent_when_it_is_due() -> None:
    desk = EarlyDesk()
    desk.resting = lambda: _assert_nothing_was_sent(desk)

    desk.order_early(START + 2_000)

    assert desk.rests == [0.002]
    [sent] = desk.transport.messages("billing")
    assert sent.headers[headers.DISPATCHED_AT] == to_wire(START + 2_000)
    assert [one.at for one in desk.store.outcomes] == [START + 2_000]


def _assert_nothing_was_sent(desk: Desk) -> None:
    assert desk.transport.ids("billing") == []


def test_the_stores_clock_decides_when_and_not_the_hosts() -> None:
    desk = EarlyDesk()
    desk.step = replace(desk.step, clock=FakeClock(START + SECOND))

    desk.order_early(START + 2_000)

    assert desk.rests == [0.002]


def test_nobody_waits_while_what_was_sent_before_is_not_recorded() -> None:
    desk = EarlyDesk()
    recorded: list[TimeoutState | None] = []
    desk.resting = lambda: recorded.append(desk.state("m1"))

    desk.order_early(START, START + 5_000)

    assert recorded == [TimeoutState.DISPATCHED]
    assert desk.transport.ids("billing") == ["m1", "m2"]


def test_in_transaction_scope_what_is_not_due_is_left_where_it_is() -> None:
    desk = EarlyDesk(SCOPE)

    desk.order_early(START + 1)

    assert desk.rests == []
    assert desk.transport.ids("billing") == []
    assert desk.state() is TimeoutState.PENDING


def test_a_clock_that_is_set_back_prolongs_no_wait() -> None:
    desk = EarlyDesk()
    desk.store.after["take_many"] = lambda: desk.clock.step_wall(-timedelta(hours=1))

    desk.order_early(START + 2_000)

    assert desk.rests == [0.006]
    assert desk.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("ahead", [-15, 15])
def test_a_pause_is_measured_by_the_stores_clock_and_not_the_hosts(ahead: int, tells: bool) -> None:
    desk = Desk()
    desk.store.tells_its_time = tells
    desk.step = replace(desk.step, clock=FakeClock(START + ahead * SECOND))
    desk.put(a_timeout())
    desk.transport.script("billing", SendResult.REFUSED)
    desk.order_due()

    desk.clock.advance(0.999)
    desk.order_due()
    assert desk.transport.ids("billing") == []

    desk.clock.advance(0.001)
    desk.order_due()
    assert desk.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("ahead", [-15, 15])
def test_so_is_the_pause_of_what_the_error_queue_did_not_take(ahead: int, tells: bool) -> None:
    desk = Desk()
    desk.store.tells_its_time = tells
    desk.step = replace(desk.step, clock=FakeClock(START + ahead * SECOND))
    desk.put(a_timeout(destination="nowhere"))
    desk.transport.script("error", *[SendResult.UNKNOWN] * 5)

    desk.order_due()

    assert [one.next_try for one in desk.store.outcomes] == [START + SECOND]


def test_the_store_is_asked_for_the_time_only_where_something_is_tried_again() -> None:
    desk = Desk()
    desk.store.tells_its_time = False
    desk.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"))

    desk.order_due()

    assert desk.store.calls["now"] == 0


@pytest.mark.behaviour(92)
def test_a_refused_timeout_does_not_hold_up_the_others() -> None:
    desk = Desk()
    desk.put(a_timeout("m1"), a_timeout("m2", destination="shipping"))
    desk.transport.script("billing", SendResult.REFUSED)

    desk.order_due()

    assert desk.transport.ids("shipping") == ["m2"]


@pytest.mark.behaviour(59, 90)
def test_a_timeout_that_is_refused_five_times_goes_to_the_error_queue() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", *[SendResult.REFUSED] * ATTEMPTS)

    for _ in range(ATTEMPTS - 1):
        desk.order_due()
        desk.clock.advance(60)
    assert desk.transport.ids("error") == []
    desk.order_due()

    assert desk.transport.ids("error") == ["m1"]
    assert desk.state() is TimeoutState.FAILED


def test_an_unknown_answer_never_moves_a_timeout_to_the_error_queue() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", *[SendResult.UNKNOWN] * 20)

    for _ in range(20):
        desk.order_due()
        desk.clock.advance(60)

    assert desk.state() is TimeoutState.PENDING
    assert desk.transport.ids("error") == []


@pytest.mark.behaviour(59)
def test_a_broker_that_is_away_leaves_the_timeout_where_it_is_and_at_once_free() -> None:
    desk = Desk()
    desk.put(a_timeout())
    desk.transport.script("billing", TransportUnavailable("gone"))

    with pytest.raises(TransportUnavailable):
        desk.order_due()
    desk.order_due()

    assert desk.transport.ids("billing") == ["m1"]


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (10, 60), (10_000, 60)]
)
def test_the_pause_doubles_up_to_a_minute(attempts: int, seconds: int) -> None:
    assert back_off(attempts) == seconds * SECOND


# --- counting


@pytest.mark.behaviour(139)
def test_outcomes_are_counted_by_kind() -> None:
    desk = Desk()
    desk.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"), a_timeout("m3"))

    desk.order_due()

    assert (desk.counted("timeouts_dispatched"), desk.counted("timeouts_failed")) == (2, 1)


@pytest.mark.behaviour(139)
def test_lateness_is_that_of_the_oldest() -> None:
    desk = Desk()
    desk.put(a_timeout("m1", START - 3 * SECOND), a_timeout("m2", START - SECOND))

    desk.order_due()

    assert desk.counted("lateness_seconds") == pytest.approx(3.0)


def test_what_was_stored_in_this_very_transaction_can_be_dispatched_in_it() -> None:
    desk = Desk(SCOPE)
    one = a_timeout()
    desk.put(one)

    session = desk.transport.session()
    with Work(session, FakeReceiver(desk.transport, "control"), SCOPE) as work:
        desk.step.dispatch_now([one.key], work)

    assert desk.transport.ids("billing") == ["m1"]


class _Mover:
    """Moves what is not to be kept back."""

    def __init__(self, *kept_back: str) -> None:
        self._kept_back = kept_back
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(
        self, token: str, keys: Sequence[Key], _at: Micros, transaction: Transaction
    ) -> list[Key]:
        assert transaction is not None
        self.asked.append((token, [key.id for key in keys]))
        return [key for key in keys if key.id not in self._kept_back]


def test_what_is_moved_in_the_database_is_counted_and_not_sent() -> None:
    desk, mover = Desk(SCOPE), _Mover()
    desk.put(a_timeout("m1"), a_timeout("m2"))
    desk.step = replace(desk.step, move_many=mover)
    desk.clock.advance(2.0)
    desk.order_due()

    [(token, asked)] = mover.asked
    assert token
    assert asked == sorted([a_timeout("m1").id, a_timeout("m2").id])
    assert desk.transport.ids("billing") == []
    assert desk.counted("timeouts_dispatched") == 2
    assert desk.counted("timeouts_gone") == 0
    assert desk.telemetry.snapshot()["lateness_seconds"] == 2.0


def test_what_cannot_be_moved_is_sent() -> None:
    desk = Desk(SCOPE)
    desk.put(a_timeout("m1"), a_timeout("m2"))
    desk.step = replace(desk.step, move_many=_Mover(a_timeout("m2").id))
    desk.order_due()

    assert desk.transport.ids("billing") == ["m2"]
    assert desk.state("m2") is TimeoutState.DISPATCHED
    assert desk.counted("timeouts_dispatched") == 2


@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC])
def test_nothing_is_moved_outside_of_the_one_transaction(mode: TransactionMode) -> None:
    desk, mover = Desk(mode), _Mover()
    desk.put(a_timeout("m1"))
    desk.step = replace(desk.step, move_many=mover)
    desk.order_due()

    assert (mover.asked, desk.transport.ids("billing")) == ([], ["m1"])


class _LateSession(FakeSession):
    """One whose answers come when they are asked for."""

    def __init__(self, desk: Desk, journal: list[str]) -> None:
        super().__init__(desk.transport)
        self._desk = desk
        self._journal = journal

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        self._journal.append("sent")
        return super().send(outgoing, transaction=transaction)

    def start_sending(self, outgoing: Sequence[Outgoing]) -> _LateSession:
        self._answers = super().send(outgoing)
        self._journal.append("sent " + " ".join(one.message.id for one in outgoing))
        return self

    def results(self) -> list[SendResult]:
        self._journal.append(f"{len(self._desk.store._in.held)} in hand")
        return self._answers


def two_chunks(desk: Desk, journal: list[str]) -> None:
    desk.put(a_timeout("m1", START - SECOND), a_timeout("m2", START))
    chunks = [desk.store.claim(desk.clock.now(), 1, "me") for _ in range(2)]
    orders = [chunk_message(chunk.token, chunk.keys, chunk.token) for chunk in chunks]
    session = _LateSession(desk, journal)
    with Work(session, FakeReceiver(desk.transport, "control"), desk.mode) as work:
        desk.step([a_received(order) for order in orders], work)


def test_the_next_chunk_is_in_hand_when_the_answers_to_the_first_are_asked_for() -> None:
    desk, journal = Desk(), list[str]()

    two_chunks(desk, journal)

    assert journal == ["sent m1", "2 in hand", "sent m2", "1 in hand"]
    assert desk.state("m1") is desk.state("m2") is TimeoutState.DISPATCHED


def test_in_transaction_scope_one_chunk_is_in_hand_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, journal = Desk(SCOPE), list[str]()
    take_many = desk.store.take_many

    @contextmanager
    def noted(*given: Any, **named: Any) -> Iterator[Taken]:
        with take_many(*given, **named) as taken:
            journal.append("taken")
            yield taken
        journal.append("closed")

    monkeypatch.setattr(desk.store, "take_many", noted)
    two_chunks(desk, journal)

    assert journal == ["taken", "sent", "closed"] * 2
    assert desk.transport.ids("billing") == ["m1", "m2"]


def test_a_chunk_that_is_no_order_keeps_its_whole_batch_from_being_begun() -> None:
    desk = Desk()
    desk.put(a_timeout("m1"))
    chunk = desk.store.claim(desk.clock.now(), 1, "me")

    with pytest.raises(MessageRejected):
        desk.order(chunk_message(chunk.token, chunk.keys, "c1"), Message(id="no order"))

    assert desk.transport.ids("billing") == []
