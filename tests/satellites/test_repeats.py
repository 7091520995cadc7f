"""A further message under a used id: counted, logged, replaced, or moved to the error queue."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from tests.satellites.test_timeouts import LATER, SCOPE, Counter
from tests.support.clock import START
from tests.support.makers import SECOND, a_delayed, a_received
from tests.support.ports import FakeReceiver
from timeoutmgr.contracts import CancelResult, OnConflict, RepeatKind, TransactionMode
from timeoutmgr.errors import ContentConflict, IdInUse, MessageRejected, StorageUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message, Received, with_headers
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.transport.work import Work

OTHER = a_delayed("m1", LATER, "stock")


def replacing(message_id: str, sent: int, destination: str = "stock") -> Message:
    """Return a replacement that was sent so many seconds after the start."""
    return a_delayed(
        message_id,
        LATER,
        destination,
        time_sent=to_wire(START + sent * SECOND),
        on_conflict="replace",
    )


def rejected(counter: Counter, *messages: Message) -> list[tuple[Received, Exception]]:
    session = counter.transport.session()
    with Work(session, FakeReceiver(counter.transport, "sales"), counter.mode) as work:
        counter.step([a_received(message) for message in messages], work)
    return work.failed


@pytest.mark.parametrize("mode", [TransactionMode.RECEIVE_ONLY, SCOPE])
def test_a_duplicate_is_counted_and_logged(
    mode: TransactionMode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "timeoutmgr")
    counter = Counter(mode)
    counter.receive(a_delayed("m1", LATER))

    counter.receive(a_delayed("m1", LATER), a_delayed("m2", LATER))

    counted = counter.telemetry.snapshot()
    assert (counted["duplicates"], counted["timeouts_stored"]) == (1, 2)
    [logged] = [one for one in caplog.records if "duplicate" in one.getMessage()]
    assert logged.levelno == logging.INFO
    assert logged.getMessage() == (
        "timeout manager of sales drops a duplicate: message 'm1', timeout "
        f"{timeout_id('sales', 'm1')!r}"
    )


def test_a_repeat_is_not_logged_if_the_transaction_is_rolled_back() -> None:
    counter = Counter(SCOPE)
    counter.receive(a_delayed("m1", LATER))
    counter.store.fail("now", StorageUnavailable("away"))  # asked after the message is stored

    with pytest.raises(StorageUnavailable):
        counter.receive(a_delayed("m1", LATER))

    assert "duplicates" not in counter.telemetry.snapshot()


def test_other_content_is_rejected_and_its_neighbours_are_stored() -> None:
    counter = Counter()
    counter.receive(a_delayed("m1", LATER))

    [(received, error)] = rejected(counter, a_delayed("m2", LATER), OTHER, a_delayed("m3", LATER))

    assert received.message == OTHER
    assert isinstance(error, ContentConflict)
    assert str(error).startswith("message id 'm1' was used before with other content")
    assert [one.destination for one in counter.stored()] == ["billing"] * 3
    counted = counter.telemetry.snapshot()
    assert (counted["id_conflicts"], counted["timeouts_stored"]) == (1, 3)


def test_from_a_queue_an_error_is_met_as_a_keep() -> None:
    counter = Counter()
    counter.receive(a_delayed("m1", LATER))

    [(_, error)] = rejected(counter, a_delayed("m1", LATER, "stock", on_conflict="error"))

    assert isinstance(error, ContentConflict)


def test_a_replacement_that_was_sent_later_takes_the_place() -> None:
    counter = Counter()
    counter.receive(a_delayed("m1", LATER, time_sent=to_wire(START)))

    found = rejected(counter, replacing("m1", 2), replacing("m1", 1, "late"))

    [stored] = counter.stored()
    assert (found, stored.destination) == ([], "stock")
    counted = counter.telemetry.snapshot()
    assert (counted["timeouts_replaced"], counted["superseded"]) == (1, 1)


def test_a_replacement_says_when_it_was_sent() -> None:
    with pytest.raises(MessageRejected, match=headers.TIME_SENT):
        Counter().receive(a_delayed("m1", LATER, on_conflict="replace"))


def test_an_unknown_conflict_policy_is_rejected() -> None:
    with pytest.raises(MessageRejected, match="keep, replace, error"):
        Counter().receive(a_delayed("m1", LATER, on_conflict="maybe"))


def test_the_choice_for_used_ids_is_not_passed_on() -> None:
    counter = Counter()

    counter.receive(
        a_delayed(
            "m1",
            LATER,
            time_sent=to_wire(START),
            on_conflict="replace",
            deliver_at_given="True",
        )
    )

    [stored] = counter.stored()
    assert headers.ON_CONFLICT not in stored.message.headers
    assert headers.DELIVER_AT_GIVEN not in stored.message.headers


def test_two_given_due_times_under_one_id_are_a_conflict() -> None:
    counter = Counter()
    counter.receive(a_delayed("m1", LATER, deliver_at_given="True"))

    found = rejected(
        counter,
        a_delayed("m1", LATER + 1, deliver_at_given="True"),
        a_delayed("m1", LATER + 1),
        a_delayed("m1", LATER, deliver_at_given="True"),
    )

    assert len(found) == 1
    assert counter.telemetry.snapshot()["duplicates"] == 2


def test_a_cancelled_message_that_arrives_is_logged() -> None:
    counter = Counter()
    assert counter.store.cancel(timeout_id("sales", "m1")) is CancelResult.WILL_BE_CANCELLED

    counter.receive(a_delayed("m1", LATER))

    assert counter.telemetry.snapshot()["cancelled_on_arrival"] == 1
    assert counter.store.statistics().outcomes == {"cancelled": 1}


def test_past_the_queue_the_caller_gets_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter()
    counter.step.store_directly([a_delayed("m1", LATER)], None)

    answers = counter.step.store_directly([OTHER, a_delayed("m2"), a_delayed("m1")], None)

    assert answers == [RepeatKind.CONFLICT, None, RepeatKind.DUPLICATE]
    assert "timeout manager of sales refused a used id: message 'm1'" in caplog.text


def test_past_the_queue_a_replacement_that_finds_no_timeout_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "timeoutmgr")
    counter = Counter()
    counter.step.store_directly([a_delayed("m1", LATER)], None)
    counter.store.cancel(timeout_id("sales", "m1"))

    answers = counter.step.store_directly([replacing("m1", 1)], None)

    assert answers == [RepeatKind.CONFLICT]
    assert [(one.levelno, one.getMessage().partition(":")[0]) for one in caplog.records] == [
        (logging.INFO, "timeout manager of sales found no timeout to replace")
    ]


def test_past_the_queue_an_error_is_raised_and_nothing_stored() -> None:
    counter = Counter()
    counter.step.store_directly([a_delayed("m1", LATER)], None)
    refused = a_delayed("m1", LATER, "stock", on_conflict=OnConflict.ERROR.value)

    with pytest.raises(IdInUse, match="'m1'"):
        counter.step.store_directly([a_delayed("m2", LATER), refused], None)

    assert [one.message.id for one in counter.stored()] == ["m1"]


def test_the_caller_hears_of_a_message_that_was_cancelled_before_it_came() -> None:
    heard: list[str] = []
    counter = Counter()
    counter.step = replace(counter.step, on_cancelled=lambda one: heard.append(one.message.id))
    counter.store.cancel(timeout_id("sales", "m1"))

    counter.receive(a_delayed("m1", LATER), a_delayed("m2", LATER))
    counter.receive(a_delayed("m1", LATER))

    assert heard == ["m1"]


def test_malformed_labels_are_rejected() -> None:
    message = a_delayed("m1", LATER)
    labelled = with_headers(message, {**message.headers, headers.LABELS: "[1]"})

    with pytest.raises(MessageRejected, match=headers.LABELS):
        Counter().receive(labelled)
