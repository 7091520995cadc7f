"""A pending timeout can be cancelled, moved, sent at once and found; every answer is true."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.acceptance.matrix import EACH_ONCE, REPRESENTATIVE, SERVED, matrix
from tests.acceptance.place import LATER, PROMPT, SOON, Party, Place
from tests.support.waiting import eventually
from timeoutmgr import CancelResult, ChangeResult, RecoverabilitySettings, TimeoutState
from timeoutmgr.clock import SystemClock
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message


@matrix(pairs=SERVED, all_modes=True)
@pytest.mark.behaviour(138)
def test_a_cancelled_message_is_never_delivered(party: Party) -> None:
    doomed = party.endpoint.send_local("Ping", 1, delay=12 * SOON)
    other = party.endpoint.send_local("Ping", 2, delay=13 * SOON)
    party.wait_until_stored(doomed.id, other.id)
    assert doomed.id is not None

    answer = party.endpoint.timeouts.cancel(doomed.id)
    again = party.endpoint.timeouts.cancel(doomed.id)

    party.inbox.wait_for_id(other.message_id)
    assert (answer, again) == (CancelResult.CANCELLED, CancelResult.CANCELLED)
    assert party.inbox.of(doomed.message_id) == []
    assert party.endpoint.timeouts.show(doomed.id) == (TimeoutState.CANCELLED, None)


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(138)
def test_a_cancel_before_its_message_is_stored_takes_effect(party: Party) -> None:
    first = party.endpoint.send_local("Ping", 1, delay=SOON, message_id="first")
    party.wait_until_dispatched(first.id)
    template = party.inbox.wait_for_id("first").headers[headers.RELATED_TO_TIMEOUT]
    doomed = party.config.new_id()
    timeout_id = _id_of(party, doomed)
    assert _id_of(party, "first") == template

    answer = party.endpoint.timeouts.cancel(timeout_id)
    sent = party.endpoint.send_local("Ping", 2, delay=SOON, message_id=doomed)
    other = party.endpoint.send_local("Ping", 3, delay=2 * SOON)

    party.inbox.wait_for_id(other.message_id)
    assert sent.id == timeout_id
    assert answer is CancelResult.WILL_BE_CANCELLED
    assert party.inbox.of(doomed) == []


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(138)
def test_a_cancel_by_label_holds_for_stored_messages_and_messages_on_their_way(
    place: Place, party: Party
) -> None:
    stored = party.endpoint.send_local("Ping", 1, delay=LATER, labels={"tenant": ["a", "b"]})
    party.wait_until_stored(stored.id)
    # Behind the message in its queue, so that the manager has it after the cancel.
    party.endpoint.timeouts.cancel_where(labels={"tenant": "c"})
    doomed = Message(
        id=party.config.new_id(),
        headers={
            headers.EXPIRE: to_wire(SystemClock().now() + 1_000_000),
            headers.DESTINATION: party.config.name,
            headers.TIME_SENT: to_wire(SystemClock().now() - 60_000_000),
            headers.LABELS: '["tenant=c"]',
        },
    )
    with party.telemetry.expect("cancelled_on_arrival", 1):
        place.put(f"{party.config.name}.Timeouts", doomed)

    [met] = party.endpoint.timeouts.cancel_where(labels={"tenant": "b"})
    later = party.endpoint.send_local("Ping", 2, delay=SOON, labels={"tenant": ["b", "c"]})

    assert (met.timeout.id, met.result) == (stored.id, CancelResult.CANCELLED)
    assert headers.LABELS not in party.inbox.wait_for_id(later.message_id).headers
    assert party.inbox.of(doomed.id) == party.inbox.of(stored.message_id) == []


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(138)
def test_a_cancel_after_dispatch_is_too_late(party: Party) -> None:
    sent = party.endpoint.send_local("Ping", 1, delay=SOON)
    party.inbox.wait_for_id(sent.message_id)
    party.wait_until_dispatched(sent.id)
    assert sent.id is not None

    assert party.endpoint.timeouts.cancel(sent.id) is CancelResult.TOO_LATE
    assert party.endpoint.timeouts.send_now(sent.id) is ChangeResult.TOO_LATE
    assert party.endpoint.timeouts.reschedule(sent.id, delay=1) is ChangeResult.TOO_LATE
    assert len(party.inbox.of(sent.message_id)) == 1


@matrix(pairs=SERVED)
@pytest.mark.behaviour(30)
def test_clearing_a_saga_keeps_the_timeouts_of_other_sagas(party: Party) -> None:
    done = [party.endpoint.send_local("Ping", n, delay=LATER, saga_id="done") for n in range(3)]
    kept = party.endpoint.send_local("Ping", 4, delay=LATER, saga_id="kept")
    none = party.endpoint.send_local("Ping", 5, delay=LATER)
    party.wait_until_stored(*(sent.id for sent in done), kept.id, none.id)

    with party.telemetry.expect("timeouts_cleared", 3):
        party.endpoint.clear_timeouts("done")

    barrier = party.endpoint.send_local("Ping", 6, delay=SOON)
    party.inbox.wait_for_id(barrier.message_id)
    party.wait_until_dispatched(barrier.id)
    assert {view.id for view in party.endpoint.timeouts.list()} == {kept.id, none.id}
    assert party.endpoint.timeouts.cancel_saga("kept") == [kept.id]
    assert party.endpoint.timeouts.cancel_saga("kept") == []
    assert [view.id for view in party.endpoint.timeouts.list()] == [none.id]


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(30)
def test_an_empty_saga_id_clears_nothing(party: Party) -> None:
    sent = party.endpoint.send_local("Ping", 1, delay=LATER)
    party.wait_until_stored(sent.id)

    with pytest.raises(InvalidMessage, match="Invalid saga id"):
        party.endpoint.clear_timeouts("")
    with pytest.raises(InvalidMessage, match="Invalid saga id"):
        party.endpoint.timeouts.cancel_saga("")

    assert party.endpoint.timeouts.count() == 1


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(31)
def test_a_clear_does_not_drop_a_later_timeout_of_the_saga(
    party: Party,
) -> None:
    with party.telemetry.expect("timeouts_cleared", 0):
        party.endpoint.clear_timeouts("saga")

    sent = party.endpoint.send_local("Ping", 1, delay=SOON, saga_id="saga")

    assert party.inbox.wait_for_id(sent.message_id).lateness >= 0


@matrix(all_modes=True)
@pytest.mark.behaviour(138)
def test_a_message_moved_ahead_is_delivered_at_its_new_time(party: Party) -> None:
    sent = party.endpoint.send_local("Ping", 1, delay=LATER)
    party.wait_until_stored(sent.id)
    assert sent.id is not None
    before = datetime.now(UTC)

    answer = party.endpoint.timeouts.reschedule(sent.id, delay=SOON)

    arrival = party.inbox.wait_for_id(sent.message_id)
    took = arrival.at / 1_000_000 - before.timestamp()
    assert answer is ChangeResult.CHANGED
    assert SOON.total_seconds() <= took < PROMPT


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(138)
def test_a_message_put_off_is_not_delivered_before_its_new_time(party: Party) -> None:
    sent = party.endpoint.send_local("Ping", 1, delay=12 * SOON)
    party.wait_until_stored(sent.id)
    assert sent.id is not None
    new = datetime.now(UTC) + 14 * SOON

    answer = party.endpoint.timeouts.reschedule(sent.id, deliver_at=new)

    arrival = party.inbox.wait_for_id(sent.message_id)
    assert answer is ChangeResult.CHANGED
    assert arrival.at >= new.timestamp() * 1_000_000
    assert len(party.inbox.arrived) == 1


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(138)
def test_a_message_sent_now_is_delivered_at_once_and_once(party: Party) -> None:
    sent = party.endpoint.send_local("Ping", 1, delay=LATER)
    party.wait_until_stored(sent.id)
    assert sent.id is not None

    answer = party.endpoint.timeouts.send_now(sent.id)

    party.inbox.wait_for_id(sent.message_id)
    party.wait_until_dispatched(sent.id)
    assert answer is ChangeResult.CHANGED
    assert len(party.inbox.arrived) == 1
    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(34)
def test_a_redelivered_store_message_undoes_no_reschedule_and_no_cancel(party: Party) -> None:
    moved = party.endpoint.send_local("Ping", 1, delay=LATER, message_id="moved")
    cancelled = party.endpoint.send_local("Ping", 2, delay=LATER, message_id="cancelled")
    party.wait_until_stored(moved.id, cancelled.id)
    assert moved.id is not None
    assert cancelled.id is not None
    party.endpoint.timeouts.reschedule(moved.id, delay=2 * LATER)
    party.endpoint.timeouts.cancel(cancelled.id)

    with party.telemetry.expect("duplicates", 2):
        party.endpoint.send_local("Ping", 1, delay=SOON, message_id="moved")
        party.endpoint.send_local("Ping", 2, delay=SOON, message_id="cancelled")
        barrier = party.endpoint.send_local("Ping", 3, delay=2 * SOON)

    party.inbox.wait_for_id(barrier.message_id)
    party.wait_until_dispatched(barrier.id)
    assert [arrival.id for arrival in party.inbox.arrived] == [barrier.message_id]
    assert party.endpoint.timeouts.count() == 1


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(138)
def test_list_and_count_select_pending_timeouts_by_their_fields(party: Party) -> None:
    other = party.place.queue(f"{party.name}-other")
    due = datetime.now(UTC).replace(microsecond=123_457) + LATER
    sent = [
        party.endpoint.send(
            other if number % 2 else party.name,
            "Ping",
            "x" * number,
            deliver_at=due + timedelta(minutes=number),
            saga_id=f"saga-{number // 2}",
        )
        for number in range(4)
    ]
    party.wait_until_stored(*(each.id for each in sent))
    timeouts = party.endpoint.timeouts

    assert [view.id for view in timeouts.list()] == [each.id for each in sent]
    assert [view.due for view in timeouts.list(limit=2)] == [each.due for each in sent[:2]]
    assert [view.id for view in timeouts.list(saga_id="saga-1")] == [each.id for each in sent[2:]]
    assert timeouts.count(destination=other) == 2
    assert timeouts.count(destination=other.upper()) == 0
    start, end = due + timedelta(minutes=1), due + timedelta(minutes=3)
    assert timeouts.count(due_from=start, due_before=end) == 2
    found = timeouts.list(due_from=start, due_before=end)
    assert [view.size for view in found] == [len('"x"'), len('"xx"')]
    [last] = timeouts.list(due_from=due + timedelta(minutes=3))
    assert (last.message_id, last.message_type) == (sent[3].message_id, "Ping")


def _id_of(party: Party, message_id: str) -> str:
    from timeoutmgr.message.routes import timeout_id

    return timeout_id(party.name, message_id)


@matrix(pairs=SERVED)
@pytest.mark.behaviour(30)
def test_a_handler_clears_its_saga_with_its_sends_and_only_if_it_succeeds(
    place: Place,
) -> None:
    party = Party(place, recoverability=RecoverabilitySettings(immediate=1, delayed=0))

    def begin_anew(body: dict[str, bool], context: HandlerContext) -> None:
        context.clear_timeouts("order-7")
        context.send_local("Ping", "anew", delay=LATER, saga_id="order-7")
        if body["fails"]:
            raise ValueError("a bug")

    party.config.add_handler("Paid", begin_anew)
    party.start()
    old = party.endpoint.send_local("Ping", "old", delay=LATER, saga_id="order-7")
    party.wait_until_stored(old.id)

    failed = party.endpoint.send_local("Paid", {"fails": True})
    party.errors.wait_for_id(failed.message_id)
    assert [view.id for view in party.endpoint.timeouts.list()] == [old.id]

    paid = a_payment(f"{place.name}-paid")
    handle(party, paid)
    eventually(
        lambda: old.id not in {view.id for view in party.endpoint.timeouts.list(saga_id="order-7")},
        "the old timeout is cleared",
    )
    eventually(lambda: party.endpoint.timeouts.count() == 1, "the new timeout is stored")

    # A crash between the sends and the acknowledgement: the same message is handled once more.
    handle(party, paid)
    barrier = party.endpoint.send_local("Ping", "barrier", delay=SOON)
    party.inbox.wait_for_id(barrier.message_id)
    party.wait_until_dispatched(barrier.id)
    assert party.endpoint.timeouts.count(saga_id="order-7") == 1


def handle(party: Party, paid: Message) -> None:
    """Have *paid* handled, and return once the timeout that its handler sends is in the store."""

    def reached_the_store() -> float:
        counted = party.telemetry.snapshot()
        return counted.get("timeouts_stored", 0) + counted.get("duplicates", 0)

    before = reached_the_store()
    party.place.put(party.name, paid)
    eventually(lambda: reached_the_store() > before, "the handler's timeout is in the store")


def a_payment(message_id: str) -> Message:
    """Return a message that clears and begins anew; its repeats have the same id and TimeSent."""
    given = {
        headers.MESSAGE_ID: message_id,
        headers.ENCLOSED_MESSAGE_TYPES: "Paid",
        headers.TIME_SENT: to_wire(SystemClock().now()),
    }
    return Message(id=message_id, headers=given, body=b'{"fails": false}')
