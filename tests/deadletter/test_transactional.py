"""What its source keeps of a transactional message until it knows how the delivery ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.deadletter.making import Nodes, a_letter, ids, queues
from tests.support.clock import START
from tests.support.makers import a_received
from timeoutmgr.deadletter.acknowledging import SettleKept
from timeoutmgr.deadletter.classes import JournalLevel, MessageClass
from timeoutmgr.deadletter.letters import Box, Letter, Placed
from timeoutmgr.deadletter.manager import SWEEP, QueueManager
from timeoutmgr.deadletter.marks import CLASS, TARGET_QUEUE
from timeoutmgr.deadletter.queues import LetterQueue
from timeoutmgr.errors import MessageRejected
from timeoutmgr.headers import CORRELATION_ID
from timeoutmgr.message import Message
from timeoutmgr.telemetry import Counters

DAY = 86_400_000_000


def sent(
    message_id: str = "m1", level: JournalLevel = JournalLevel.DEADLETTER, **given: Any
) -> Letter:
    return a_letter(message_id, transactional=True, journal=level, message_class=0, **given)


def everywhere(manager: QueueManager) -> list[list[str]]:
    return [ids(queue) for queue in queues(manager)]


@pytest.mark.behaviour(104)
def test_a_received_message_is_forgotten(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + DAY, None)

    settled = manager.acknowledge(sent().key, MessageClass.ACK_RECEIVE)

    assert settled is Placed.NOT_ASKED
    assert manager.sweep(START + 9 * DAY) == 0
    assert everywhere(manager) == [[], [], []]


def test_a_received_message_is_journaled_where_that_was_asked_for(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent(level=JournalLevel.BOTH)], START + DAY, None)

    assert manager.acknowledge(sent().key, MessageClass.ACK_RECEIVE) is Placed.PLACED

    assert everywhere(manager) == [[], [], ["m1"]]


@pytest.mark.behaviour(104)
def test_a_negative_acknowledgement_moves_the_copy_at_once(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + DAY, None)

    manager.acknowledge(sent().key, MessageClass.NACK_Q_PURGED, reason="purged by hand")

    [letter] = queues(manager)[1].peek()
    assert (letter.message_class, letter.reason) == (MessageClass.NACK_Q_PURGED, "purged by hand")
    assert manager.sweep(START + 9 * DAY) == 0


def test_journal_alone_leaves_nothing_of_what_failed(nodes: Nodes) -> None:
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
def test_what_nobody_acknowledges_dies_with_the_next_sweep_after_its_time(
    nodes: Nodes, arrives: bool, ended: MessageClass
) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + 1, START + 2)
    if arrives:
        manager.arrived([sent().key])
    deadline = START + 1 + arrives

    assert manager.sweep(deadline - 1) == 0
    assert manager.sweep(deadline) == 1

    [letter] = queues(manager)[1].peek()
    assert letter.message_class == ended
    assert letter.kept == deadline


def test_what_never_arrived_and_was_to_be_received_by_now_died_at_its_sender(nodes: Nodes) -> None:
    manager = nodes.manager()
    timers: dict[str, Any] = {"time_to_be_received": 1, "time_to_reach_queue": 5}
    manager.keep([sent("never", **timers), sent("there", **timers)], START + 1, START + 1)
    manager.arrived([sent("there").key])

    manager.sweep(START + 1)

    assert {one.message.id: one.message_class for one in queues(manager)[1].peek()} == {
        "never": MessageClass.NACK_RECEIVE_TIMEOUT_AT_SENDER,
        "there": MessageClass.NACK_RECEIVE_TIMEOUT,
    }


def test_what_has_arrived_and_may_be_received_whenever_is_kept_for_ever(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START + 1, None)
    manager.arrived([sent().key])

    assert manager.sweep(START + 10_000 * DAY) == 0


@pytest.mark.behaviour(104)
def test_a_late_acknowledgement_is_marked_and_sends_nothing(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START, None)
    manager.sweep(START)

    assert manager.acknowledge(sent().key, MessageClass.ACK_RECEIVE) is Placed.PLACED

    [letter] = queues(manager)[1].peek()
    assert letter.late
    assert letter.message_class == MessageClass.NACK_REACH_QUEUE_TIMEOUT


def test_a_late_refusal_is_the_last_known_status(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START, None)
    manager.sweep(START)

    manager.acknowledge(sent().key, MessageClass.NACK_RECEIVE_REJECTED)

    [letter] = queues(manager)[1].peek()
    assert not letter.late
    assert letter.message_class == MessageClass.NACK_RECEIVE_REJECTED


def test_an_acknowledgement_of_nothing_that_is_known_changes_nothing(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.place(a_letter("m1"))

    assert manager.acknowledge(("m1", "billing"), MessageClass.ACK_RECEIVE) is None
    assert manager.acknowledge(("m2", "billing"), MessageClass.NACK_PURGED) is None

    assert not queues(manager)[0].peek()[0].late


def test_sent_again_a_dead_letter_is_moved_back_to_what_awaits(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.keep([sent()], START, None)
    manager.sweep(START)

    manager.keep([sent()], START + 2, None)

    assert everywhere(manager) == [[], [], []]
    assert manager.sweep(START + 2) == 1
    assert everywhere(manager) == [[], ["m1"], []]


def test_an_application_has_its_own_queue_for_its_transactional_messages(nodes: Nodes) -> None:
    manager = nodes.manager()
    own = LetterQueue(manager, Box.DEADXACT, "sales.dead")
    letter = a_letter("m1", transactional=True, application_queue="sales.dead")
    manager.keep([letter], START, None)

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

    assert manager.acknowledge(sent().key, MessageClass.NACK_PURGED) is Placed.OVER_QUOTA

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


def test_a_node_that_is_over_its_quota_still_moves_what_it_has(nodes: Nodes) -> None:
    nodes.manager().keep([sent()], START, None)
    manager = nodes.manager(node=1)  # lowered since

    assert manager.sweep(START) == 1

    assert everywhere(manager) == [[], ["m1"], []]


@pytest.mark.parametrize("code", ["", "x", "-1", "65536", "000000001" + "9" * 20, "\u0663"])
def test_what_has_no_class_is_no_acknowledgement(nodes: Nodes, code: str) -> None:
    given = {CLASS: code, CORRELATION_ID: "m1", TARGET_QUEUE: "billing"}
    received = a_received(Message(id="a1", headers=given))
    step = SettleKept(manager=nodes.manager(), telemetry=Counters(), joins=False)

    with pytest.raises(MessageRejected, match="no acknowledgement"):
        step([received], None)  # type: ignore[arg-type]  # it is refused before that
