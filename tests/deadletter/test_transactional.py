"""Copies that a source keeps of transactional messages until it knows their ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest

from tests.deadletter.making import Nodes, a_stored_copy, ids, queues
from tests.support.clock import START
from tests.support.makers import a_received
from timeoutmgr.contracts.dead_letters import DeliveryOptions, JournalLevel, MessageClass
from timeoutmgr.deadletter.acknowledgements import SettleStoredCopies
from timeoutmgr.deadletter.delivery_headers import CLASS, TARGET_QUEUE
from timeoutmgr.deadletter.feature import Sweeper
from timeoutmgr.deadletter.manager import REMEMBERED, SWEEP, FirstAttempt, QueueManager
from timeoutmgr.deadletter.queues import StoredCopyQueue
from timeoutmgr.deadletter.service import DeadLetterService, JournalingRules
from timeoutmgr.deadletter.store import DeadLetterStore
from timeoutmgr.deadletter.stored_copy import NodeQueue, Placement, StoredCopy
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.headers import CORRELATION_ID
from timeoutmgr.message.instants import MICROSECOND
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.message.validation import Limits
from timeoutmgr.telemetry import Counters
from timeoutmgr.testing.conformance.samples import race
from timeoutmgr.transport.work import Work

DAY, MINUTE = 86_400_000_000, 60_000_000


def sent(
    message_id: str = "m1", level: JournalLevel = JournalLevel.DEADLETTER, **given: Any
) -> StoredCopy:
    return a_stored_copy(message_id, transactional=True, journal=level, message_class=0, **given)


def everywhere(manager: QueueManager) -> list[list[str]]:
    return [ids(queue) for queue in queues(manager)]


@pytest.mark.behaviour(104)
def test_a_received_message_is_forgotten(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + DAY, None)

    settled = manager.acknowledge(sent().key, MessageClass.ACK_RECEIVE)

    assert settled is Placement.NOT_ASKED
    assert manager.sweep(START + 9 * DAY) == 0
    assert everywhere(manager) == [[], [], []]


def test_a_received_message_is_journaled_where_that_was_asked_for(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent(level=JournalLevel.BOTH)], START + DAY, None)

    assert manager.acknowledge(sent().key, MessageClass.ACK_RECEIVE) is Placement.PLACED

    assert everywhere(manager) == [[], [], ["m1"]]


@pytest.mark.behaviour(104)
def test_a_negative_acknowledgement_moves_the_copy_at_once(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + DAY, None)

    manager.acknowledge(sent().key, MessageClass.NACK_Q_PURGED, reason="purged by hand")

    [copy] = queues(manager)[1].peek()
    assert (copy.message_class, copy.reason) == (MessageClass.NACK_Q_PURGED, "purged by hand")
    assert manager.sweep(START + 9 * DAY) == 0


def test_a_journal_alone_keeps_no_failed_message(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent(level=JournalLevel.JOURNAL)], START, None)

    assert manager.sweep(START) == 1

    assert everywhere(manager) == [[], [], []]


@pytest.mark.behaviour(104)
@pytest.mark.parametrize(
    ("arrives", "ended"),
    [
        (False, MessageClass.NACK_REACH_QUEUE_TIMEOUT),
        (True, MessageClass.NACK_RECEIVE_TIMEOUT),
    ],
)
def test_an_unacknowledged_message_becomes_a_dead_letter_at_the_sweep_after_its_time(
    nodes: Nodes, arrives: bool, ended: MessageClass
) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + 1, START + 2)
    if arrives:
        manager.arrived([sent().key])
    deadline = START + 1 + arrives

    assert manager.sweep(deadline - 1) == 0
    assert manager.sweep(deadline) == 1

    [copy] = queues(manager)[1].peek()
    assert copy.message_class == ended
    assert copy.kept == deadline


def test_a_message_that_never_arrived_in_time_becomes_a_dead_letter_of_its_sender(
    nodes: Nodes,
) -> None:
    manager = nodes.manager()
    timers: dict[str, Any] = {"time_to_be_received": 1, "time_to_reach_queue": 5}
    manager.keep([sent("never", **timers), sent("there", **timers)], START + 1, START + 1)
    manager.arrived([sent("there").key])

    manager.sweep(START + 1)

    assert {one.message.id: one.message_class for one in queues(manager)[1].peek()} == {
        "never": MessageClass.NACK_RECEIVE_TIMEOUT_AT_SENDER,
        "there": MessageClass.NACK_RECEIVE_TIMEOUT,
    }


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
@pytest.mark.parametrize("hours", [-1, 1])
def test_deadlines_count_by_the_clock_of_the_database(
    store_of: Callable[[str], DeadLetterStore], unique: str, kind: str, hours: int
) -> None:
    nodes = Nodes(store_of(kind), unique)
    manager, telemetry = nodes.manager(), Counters()
    before = nodes.database.now(nodes.clock)
    nodes.clock.step_wall(before * MICROSECOND + timedelta(hours=hours) - START * MICROSECOND)
    service = DeadLetterService(
        manager=manager,
        endpoint="sales",
        rules=JournalingRules(),
        clock=nodes.clock,
        telemetry=telemetry,
        limits=Limits(),
        joins=False,
    )
    options = DeliveryOptions(transactional=True, time_to_reach_queue=timedelta(minutes=10))
    headers = service.delivery_headers(options, {}, "billing")

    service.before_sending([Outgoing("billing", Message(id="m1", headers=headers, body=b""))])
    Sweeper(manager, timedelta(minutes=1), telemetry).sweep_kept()

    assert everywhere(manager) == [[], [], []]
    assert manager.sweep(before + 10 * MINUTE - 1) == 0
    assert manager.sweep(nodes.database.now(nodes.clock) + 10 * MINUTE) == 1


def test_an_arrived_message_without_a_time_limit_is_kept_for_ever(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + 1, None)
    manager.arrived([sent().key])

    assert manager.sweep(START + 10_000 * DAY) == 0


@pytest.mark.behaviour(104)
def test_a_late_acknowledgement_is_marked_and_sends_nothing(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START, None)
    manager.sweep(START)

    assert manager.acknowledge(sent().key, MessageClass.ACK_RECEIVE) is Placement.PLACED

    [copy] = queues(manager)[1].peek()
    assert copy.late
    assert copy.message_class == MessageClass.NACK_REACH_QUEUE_TIMEOUT


def test_a_late_refusal_is_the_last_known_status(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START, None)
    manager.sweep(START)

    manager.acknowledge(sent().key, MessageClass.NACK_RECEIVE_REJECTED)

    [copy] = queues(manager)[1].peek()
    assert not copy.late
    assert copy.message_class == MessageClass.NACK_RECEIVE_REJECTED


def test_an_acknowledgement_of_nothing_that_is_known_changes_nothing(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.place(a_stored_copy("m1"))

    assert manager.acknowledge(("m1", "billing"), MessageClass.ACK_RECEIVE) is None
    assert manager.acknowledge(("m2", "billing"), MessageClass.NACK_PURGED) is None

    assert not queues(manager)[0].peek()[0].late


def test_a_dead_letter_sent_again_awaits_its_acknowledgement_again(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START, None)
    manager.sweep(START)

    manager.keep([sent()], START + 2, None)

    assert everywhere(manager) == [[], [], []]
    assert manager.sweep(START + 2) == 1
    assert everywhere(manager) == [[], ["m1"], []]


def test_the_first_attempt_stays_the_first_until_it_is_forgotten(nodes: Nodes) -> None:
    manager, other = nodes.manager("a"), nodes.manager("b")
    first = FirstAttempt(key=("m1", "billing"), due=START, at=START + 5, reach_queue=DAY)

    manager.note_attempts([first, replace(first, key=("m2", "billing"))])
    manager.note_attempts([replace(first, at=START + 9)])

    assert manager.first_attempt(first.key, START) == START + 5
    assert manager.first_attempt(first.key, START + 1) is None
    assert other.first_attempt(first.key, START) is None
    manager.note_attempts([replace(first, due=START + 1, at=START + 9)])
    assert manager.first_attempt(first.key, START + 1) == START + 9
    assert manager.first_attempt(first.key, START) is None
    over = START + 9 + DAY + REMEMBERED
    other.forget_attempts(over)
    manager.forget_attempts(over - 1)
    assert manager.first_attempt(first.key, START + 1) == START + 9
    manager.forget_attempts(over)
    assert manager.first_attempt(first.key, START + 1) is None


def test_concurrent_first_attempts_of_one_message_are_one(nodes: Nodes) -> None:
    manager = nodes.manager()
    noted = [
        FirstAttempt(key=("m1", "billing"), due=START, at=START + n, reach_queue=DAY)
        for n in range(4)
    ]

    race(*(partial(manager.note_attempts, [one]) for one in noted))

    assert manager.first_attempt(("m1", "billing"), START) in {one.at for one in noted}


def test_an_application_has_its_own_queue_for_its_transactional_messages(nodes: Nodes) -> None:
    manager = nodes.manager()
    own = StoredCopyQueue(manager, NodeQueue.DEADXACT, "sales.dead")
    copy = a_stored_copy("m1", transactional=True, application_queue="sales.dead")
    manager.keep([copy], START, None)

    manager.sweep(START)

    assert (ids(own), queues(manager)[1].count()) == (["m1"], 0)


def test_a_sweep_is_bounded_and_takes_the_most_overdue_first(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent("late")], START + 5, None)
    manager.keep([sent(f"m{n}") for n in range(SWEEP)], START + 1, None)

    assert manager.sweep(START + 9) == SWEEP
    assert "late" not in ids(queues(manager)[1])
    assert manager.sweep(START + 9) == 1
    assert manager.sweep(START + 9) == 0


def test_a_copy_over_the_dead_letter_quota_is_discarded_when_it_dies(nodes: Nodes) -> None:
    manager = nodes.manager(dead_letters=10)
    manager.keep([sent()], START, None)

    assert manager.acknowledge(sent().key, MessageClass.NACK_PURGED) is Placement.OVER_QUOTA

    assert everywhere(manager) == [[], [], []]
    assert manager.sweep(START) == 0


def test_a_copy_that_is_discarded_is_logged_and_counted(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    counted = Counters()
    manager = replace(nodes.manager(dead_letters=10), telemetry=counted)
    manager.keep([sent()], START, None)

    manager.sweep(START)

    assert counted.snapshot()["dead_letters_over_quota"] == 1
    assert "message 'm1' for 'billing'" in caplog.text


def test_a_node_over_its_quota_still_moves_its_copies(nodes: Nodes) -> None:
    nodes.manager().keep([sent()], START, None)
    manager = nodes.manager(node=1)  # lowered since

    assert manager.sweep(START) == 1

    assert everywhere(manager) == [[], ["m1"], []]


@pytest.mark.parametrize("code", ["", "x", "-1", "65536", "000000001" + "9" * 20, "\u0663"])
def test_a_message_without_a_class_is_no_acknowledgement(nodes: Nodes, code: str) -> None:
    given = {CLASS: code, CORRELATION_ID: "m1", TARGET_QUEUE: "billing"}
    received = a_received(Message(id="a1", headers=given))
    step = SettleStoredCopies(manager=nodes.manager(), telemetry=Counters(), joins=False)

    with pytest.raises(MessageRejected, match="is not an acknowledgement"):
        step([received], None)  # type: ignore[arg-type]  # it is refused before that


def acknowledging(message_class: MessageClass, message_id: str = "a1") -> Received:
    given = {CLASS: str(int(message_class)), CORRELATION_ID: "m1", TARGET_QUEUE: "billing"}
    return a_received(Message(id=message_id, headers=given), "sales.Acknowledgements")


CHANNEL = "queue 'sales.Acknowledgements', message 'a1'"


@pytest.mark.parametrize(
    ("message_class", "box"), [(MessageClass.NACK_PURGED, 1), (MessageClass.ACK_RECEIVE, 2)]
)
def test_a_copy_names_the_acknowledgement_that_settled_it(
    nodes: Nodes, message_class: MessageClass, box: int
) -> None:
    manager = nodes.manager()
    manager.keep([sent(level=JournalLevel.BOTH)], START + DAY, None)
    step = SettleStoredCopies(manager=manager, telemetry=Counters(), joins=False)

    step([acknowledging(message_class)], cast(Work, None))

    [copy] = queues(manager)[box].peek()
    assert copy.channel == CHANNEL


def test_a_dead_letter_names_the_acknowledgement_that_came_too_late(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START, None)
    manager.sweep(START)
    [swept] = queues(manager)[1].peek()

    SettleStoredCopies(manager=manager, telemetry=Counters(), joins=False)(
        [acknowledging(MessageClass.ACK_RECEIVE)], cast(Work, None)
    )

    [late] = queues(manager)[1].peek()
    assert (swept.channel, late.channel, late.late) == (None, CHANNEL, True)


def test_a_copy_that_is_sent_again_forgets_the_acknowledgement(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + DAY, None)
    manager.acknowledge(sent().key, MessageClass.NACK_PURGED, channel=CHANNEL)
    [dead] = queues(manager)[1].peek()

    manager.keep([dead], START, None)
    manager.sweep(START)

    [again] = queues(manager)[1].peek()
    assert again.channel is None


def test_acknowledgements_that_leave_no_row_are_counted_and_logged_once_a_minute(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    manager = nodes.manager()
    manager.keep([sent()], START + DAY, None)
    counted = Counters()
    step = SettleStoredCopies(manager=manager, telemetry=counted, joins=False)
    arrived = [acknowledging(MessageClass.ACK_RECEIVE, f"a{n}") for n in range(1, 4)]

    step(arrived[:2], cast(Work, None))
    nodes.clock.advance(60)
    step(arrived[2:], cast(Work, None))

    logged = [each.getMessage() for each in caplog.records if "satellite" in each.getMessage()]
    assert logged == [
        f"satellite received 1 acknowledgements without a copy; the newest by {CHANNEL}",
        "satellite received 2 acknowledgements without a copy; the newest by "
        "queue 'sales.Acknowledgements', message 'a3'",
    ]
    assert counted.snapshot() == {"final_acknowledgements": 1, "acknowledged_unknown": 2}
