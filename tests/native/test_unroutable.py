"""An unroutable message does not block other messages: a dead-letter or error queue gets it."""

from __future__ import annotations

import amqp
import pytest

from tests.acceptance.place import PROMPT
from tests.native.fleet import Fleet
from tests.support.waiting import eventually
from timeoutmgr import SendOptions, ToSend
from timeoutmgr.deadletter import (
    DeadLetterQueues,
    DeadLetterStore,
    MessageClass,
    NodeQueue,
    StoredCopyQueue,
)
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.message.headers import REPLY_TO
from timeoutmgr.native.infrastructure import DelayLevels
from timeoutmgr.native.names import OURS, UNROUTABLE
from timeoutmgr.testing.signals import RecordingTelemetry


@pytest.mark.behaviour(113)
def test_forty_messages_for_a_deleted_queue_block_no_other_message(fleet: Fleet) -> None:
    deleted = fleet.queue(f"{fleet.stem}.gone")
    sales, inbox = fleet.with_inbox(fleet.native(f"{fleet.stem}.sales"))

    sales.send_many(ToSend(deleted, "Remind", n, SendOptions(delay=1)) for n in range(40))
    fleet.session.delete_queues([deleted])
    sales.send_many(
        ToSend(f"{fleet.stem}.sales", "Remind", n, SendOptions(delay=1)) for n in range(40)
    )

    assert all(0 <= one.lateness < PROMPT for one in inbox.wait_for(40))
    assert len(inbox.arrived) == 40
    error_queue = f"{fleet.stem}.error"
    eventually(lambda: fleet.session.count(error_queue) == 40, "all are in the error queue")
    copies = fleet.errors()
    assert {copy.headers["NServiceBus.FailedQ"] for copy in copies} == {deleted}
    assert "there is no queue" in copies[0].headers["NServiceBus.ExceptionInfo.Message"]


@pytest.mark.behaviour(113)
def test_each_is_in_the_dead_letter_queue_with_its_class(fleet: Fleet) -> None:
    letters = DeadLetterStore(fleet.store)
    config = fleet.native(
        f"{fleet.stem}.sales",
        DeadLetterQueues(node=fleet.stem, store=letters),
        check_destinations=False,
    )
    sales, inbox = fleet.with_inbox(config)
    dead = StoredCopyQueue(QueueManager(store=letters, node=fleet.stem), NodeQueue.DEADLETTER)
    wrong = [f"{fleet.stem}.wrong.{n}" for n in range(150)]

    sales.send_many(
        ToSend(queue, "Remind", {}, SendOptions(delay=1))
        for pair in zip(wrong, [f"{fleet.stem}.sales"] * 150, strict=True)
        for queue in pair
    )

    assert all(0 <= one.lateness < PROMPT for one in inbox.wait_for(150))
    eventually(lambda: dead.count() == 150, "all that were wrong are dead")
    found = dead.peek(limit=200)
    assert {copy.message_class for copy in found} == {MessageClass.NACK_BAD_DST_Q}
    assert {copy.destination for copy in found} == set(wrong)
    assert fleet.session.count(f"{fleet.stem}.error") == 0
    letters.close()


def test_a_queue_that_was_made_too_late_to_be_bound_gets_its_message(fleet: Fleet) -> None:
    sales, _ = fleet.with_inbox(fleet.native(f"{fleet.stem}.sales", check_destinations=False))
    late = f"{fleet.stem}.late"

    sent = sales.send(late, "Remind", {}, delay=1)
    fleet.queue(late)

    receiver = fleet.session.receiver(late, prefetch=1)
    [received] = receiver.receive(1, 10.0)
    receiver.close()
    assert received.message.id == sent.message_id
    telemetry = sales._parts.settings.telemetry
    assert isinstance(telemetry, RecordingTelemetry)
    telemetry.wait_for("unroutable_delivered")


def test_a_delay_for_the_exclusive_queue_of_another_program_fails_its_message_alone(
    fleet: Fleet, raw_channel: amqp.Channel
) -> None:
    name = f"{fleet.stem}.sales"
    raw_channel.queue_declare(f"{fleet.stem}.replies", exclusive=True)
    config = fleet.native(name)
    config.add_handler("Ask", lambda _, context: context.reply("Later", {}, delay=1))
    sales, inbox = fleet.with_inbox(config)

    sales.send_local("Ask", {}, headers={REPLY_TO: f"{fleet.stem}.replies"})
    sales.send_local("Remind", {})

    inbox.wait_for(1)
    [failed] = fleet.errors()
    assert "queue that is not exclusive" in failed.headers["NServiceBus.ExceptionInfo.Message"]


def test_a_check_of_the_alternate_exchange_leaves_no_message_and_the_order_of_others(
    fleet: Fleet, raw_channel: amqp.Channel
) -> None:
    levels = DelayLevels(transport=fleet.transport, names=OURS, queue_type="quorum")
    levels.install()
    raw_channel.queue_purge(UNROUTABLE)
    for body in ("1", "2", "3"):
        raw_channel.basic_publish(amqp.Message(body), routing_key=UNROUTABLE)
    eventually(lambda: fleet.session.count(UNROUTABLE) == 3, "all are there")

    assert levels.has_alternate()

    eventually(lambda: fleet.session.count(UNROUTABLE) >= 3, "all are back")
    found = [raw_channel.basic_get(UNROUTABLE, no_ack=True) for _ in range(4)]
    assert [each and each.body for each in found] == ["1", "2", "3", None]
