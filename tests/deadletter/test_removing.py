"""Queues that are purged or deleted through us: every message gets its class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.deadletter.making import ids
from tests.deadletter.scene import Scene
from timeoutmgr.deadletter import DeliveryOptions, JournalLevel, MessageClass, NodeQueue
from timeoutmgr.deadletter.delivery_headers import DeliveryHeaders
from timeoutmgr.deadletter.removal import remove_messages
from timeoutmgr.errors import InvalidMessage, MessageRejected, QueueMissing, TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql.receiver import SqlReceiver


@pytest.fixture
def scene(sqlite_url: str) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(sqlite_url, stack)


@pytest.mark.parametrize(
    ("delete", "ended"),
    [(False, MessageClass.NACK_Q_PURGED), (True, MessageClass.NACK_Q_DELETED)],
)
def test_messages_of_a_removed_queue_become_dead_letters_with_its_class(
    scene: Scene, delete: bool, ended: MessageClass
) -> None:
    sales = scene.endpoint("sales", "n1", {})
    service = sales._parts.features.dead_letters
    assert service is not None
    scene.session.create_queues(["asleep"])
    sales.send("asleep", "A", 1, message_id="plain")
    sales.send("asleep", "A", 2, message_id="xact", delivery=DeliveryOptions(transactional=True))
    none = DeliveryOptions(journal=JournalLevel.NONE)
    sales.send("asleep", "A", 3, message_id="none", delivery=none)
    seen: list[int] = []

    done = remove_messages(
        scene.transport, service, "asleep", delete_queue=delete, progress=seen.append
    )

    assert (done.messages, done.dead, seen) == (3, 2, [3])
    assert ids(scene.box("n1", NodeQueue.DEADLETTER)) == ["plain"]
    [copy] = scene.box("n1", NodeQueue.DEADXACT).peek()
    assert (copy.message.id, copy.message_class) == ("xact", ended)
    assert scene.awaiting("n1") == []
    assert scene.session.missing_queues(["asleep"]) == (["asleep"] if delete else [])


def test_with_a_full_dead_letter_queue_nothing_is_removed(scene: Scene) -> None:
    sales = scene.endpoint("sales", "n1", {}, dead_letter_quota=0)
    service = sales._parts.features.dead_letters
    assert service is not None
    scene.session.create_queues(["asleep"])
    sales.send("asleep", "A", 1)

    with pytest.raises(TransportUnavailable, match="dead-letter queue is full"):
        remove_messages(scene.transport, service, "asleep", delete_queue=True)

    assert scene.session.count("asleep") == 1


def test_a_message_whose_source_is_refused_stays_and_the_error_says_so(scene: Scene) -> None:
    sales = scene.endpoint("sales", "n1", {})
    service = sales._parts.features.dead_letters
    assert service is not None
    scene.session.create_queues(["asleep"])
    asked = DeliveryHeaders(
        journal=JournalLevel.DEADLETTER,
        transactional=True,
        source_node="n2",
        source_queue="amq.gen-x",
    )
    scene.session.send([Outgoing("asleep", Message(id="m", headers=asked.as_headers()))])

    with pytest.raises(TransportUnavailable, match="the source that it names is refused"):
        remove_messages(scene.transport, service, "asleep")

    assert scene.session.count("asleep") == 1


def test_a_purge_goes_on_behind_a_message_of_which_no_copy_can_be_kept(scene: Scene) -> None:
    sales = scene.endpoint("sales", "n1", {})
    service = sales._parts.features.dead_letters
    assert service is not None
    scene.session.create_queues(["asleep"])
    asked = DeliveryHeaders(journal=JournalLevel.DEADLETTER, source_queue="q" * 300)
    scene.session.send([Outgoing("asleep", Message(id="m", headers=asked.as_headers()))])
    sales.send("asleep", "A", 1, message_id="behind")

    with pytest.raises(MessageRejected, match=r"removed 1 messages .* the source has 300 char"):
        remove_messages(scene.transport, service, "asleep")

    assert ids(scene.box("n1", NodeQueue.DEADLETTER)) == ["behind"]
    assert scene.session.count("asleep") == 1


@pytest.mark.parametrize("queue", ["sales.Timeouts", "amq.gen-x"])
def test_removal_leaves_queues_of_other_endpoints(scene: Scene, queue: str) -> None:
    sales = scene.endpoint("sales", "n1", {})
    service = sales._parts.features.dead_letters
    assert service is not None

    with pytest.raises(InvalidMessage, match="belongs to"):
        remove_messages(scene.transport, service, queue)
    with pytest.raises(QueueMissing):
        remove_messages(scene.transport, service, "nowhere")


def test_a_message_that_arrives_before_the_deletion_is_not_deleted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales = scene.endpoint("sales", "n1", {})
    service = sales._parts.features.dead_letters
    assert service is not None
    scene.session.create_queues(["asleep"])
    coming = ["late"]
    close = SqlReceiver.close

    def closed(receiver: SqlReceiver) -> None:
        if coming and receiver.queue == "asleep":
            sales.send("asleep", "A", 1, message_id=coming.pop())
        close(receiver)

    monkeypatch.setattr(SqlReceiver, "close", closed)

    done = remove_messages(scene.transport, service, "asleep", delete_queue=True)

    assert (done.messages, done.dead) == (1, 1)
    assert ids(scene.box("n1", NodeQueue.DEADLETTER)) == ["late"]
