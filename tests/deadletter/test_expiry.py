"""Messages whose time to be received ends in a queue that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest

from tests.deadletter.making import ids
from tests.deadletter.scene import PATIENCE, Scene
from tests.support.waiting import eventually
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.deadletter import DeliveryOptions, JournalLevel, MessageClass, NodeQueue
from timeoutmgr.deadletter.acknowledgements import ACKNOWLEDGEMENTS
from timeoutmgr.deadletter.delivery_headers import CLASS
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.message import headers

DEAD = DeliveryOptions(journal=JournalLevel.DEADLETTER)
AT_ONCE = timedelta(microseconds=1)


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def scene(request: pytest.FixtureRequest, unique: str) -> Iterator[Scene]:
    """An installed place whose queue *unread* no endpoint reads."""
    with ExitStack() as stack:
        scene = Scene(
            request.getfixturevalue(f"{request.param}_url"), stack, error=f"{unique}-error"
        )
        scene.transport.install()
        yield scene


@pytest.fixture
def unread(scene: Scene, unique: str) -> str:
    scene.session.create_queues([f"{unique}-unread"])
    return f"{unique}-unread"


@pytest.mark.behaviour(103, 104)
def test_an_expired_message_of_an_unread_queue_is_a_dead_letter(
    scene: Scene, unread: str, unique: str
) -> None:
    sales = scene.endpoint(unique, f"{unique}-n1", {})

    late = sales.send(unread, "Hello", {"n": 1}, delivery=DEAD, time_to_be_received=AT_ONCE)
    soon = sales.send(unread, "Hello", 2, delivery=DEAD, time_to_be_received=timedelta(hours=1))
    never = sales.send(unread, "Hello", 3, delivery=DEAD)

    [copy] = scene.until_dead(f"{unique}-n1")
    assert (copy.message.id, copy.message.body) == (late.message_id, b'{"n": 1}')
    assert copy.message_class == MessageClass.NACK_RECEIVE_TIMEOUT
    assert (copy.destination, copy.source, copy.attempts) == (unread, unique, 0)
    eventually(lambda: scene.session.count(unread) == 2, "it has left its queue", PATIENCE)
    left = scene.session.browse(unread, 10)  # type: ignore[attr-defined]  # of the SQL queue
    assert [one.message.id for one in left] == [soon.message_id, never.message_id]
    assert scene.session.count(scene.error) == 0


@pytest.mark.behaviour(100)
def test_an_expired_message_that_asks_for_no_dead_letter_is_discarded(
    scene: Scene, unread: str, unique: str
) -> None:
    sales = scene.endpoint(unique, f"{unique}-n1", {})

    sales.send(unread, "Hello", 1, time_to_be_received=AT_ONCE)

    eventually(lambda: scene.session.count(unread) == 0, "it has left its queue", PATIENCE)
    assert scene.nothing_is_dead(f"{unique}-n1")
    assert scene.session.count(scene.error) == 0


@pytest.mark.behaviour(104)
def test_the_source_of_an_expired_transactional_message_gets_an_acknowledgement(
    scene: Scene, unread: str, unique: str
) -> None:
    n1, n2 = f"{unique}-n1", f"{unique}-n2"
    sales = scene.endpoint(unique, n1, {}, starts=False)
    kept = DeliveryOptions(journal=JournalLevel.DEADLETTER, transactional=True)
    sent = sales.send(unread, "Hello", 1, delivery=kept, time_to_be_received=AT_ONCE)
    assert scene.awaiting(n1) == [sent.message_id]

    scene.endpoint(f"{unique}-other", n2, {})

    # The source, which is not started, has the copy; the message itself is gone.
    acknowledgements = f"{unique}{ACKNOWLEDGEMENTS}"
    eventually(
        lambda: scene.session.count(acknowledgements) == 1, "its source is notified", PATIENCE
    )
    [final] = scene.session.browse(acknowledgements, 10)  # type: ignore[attr-defined]  # of the SQL queue
    assert final.message.headers[CLASS] == str(int(MessageClass.NACK_RECEIVE_TIMEOUT))
    assert final.message.headers[headers.CORRELATION_ID] == sent.message_id
    assert scene.session.count(unread) == 0
    assert scene.nothing_is_dead(n1, n2)
    assert scene.awaiting(n1) == [sent.message_id]


def test_an_expired_message_without_room_for_its_dead_letter_is_in_the_error_queue(
    scene: Scene, unread: str, unique: str
) -> None:
    sales = scene.endpoint(unique, f"{unique}-n1", {}, dead_letter_quota=10)

    sent = sales.send(unread, "Hello", 1, delivery=DEAD, time_to_be_received=AT_ONCE)

    scene.until_failed()
    [copy] = scene.session.browse(scene.error, 10)  # type: ignore[attr-defined]  # as above
    assert copy.message.id == sent.message_id
    assert copy.message.headers[headers.FAILED_QUEUE] == unread
    assert copy.message.headers[headers.EXCEPTION_TYPE].endswith("ReceivedTooLate")
    assert scene.session.count(unread) == 0
    assert scene.nothing_is_dead(f"{unique}-n1")


def test_without_room_and_error_queue_an_expired_message_stays(
    scene: Scene, unread: str, unique: str
) -> None:
    sales = scene.endpoint(unique, f"{unique}-n1", {}, dead_letter_quota=10)
    scene.session.delete_queues([scene.error])
    sent = sales.send(unread, "Hello", 1, delivery=DEAD, time_to_be_received=AT_ONCE)
    behind = sales.send(unread, "Hello", 1, time_to_be_received=AT_ONCE)

    scene.session.create_queues([scene.error])

    scene.until_failed()
    [copy] = scene.session.browse(scene.error, 10)  # type: ignore[attr-defined]  # as above
    assert copy.message.id == sent.message_id != behind.message_id
    eventually(lambda: scene.session.count(unread) == 0, "both have left their queue", PATIENCE)


@pytest.mark.behaviour(103)
def test_where_late_messages_are_not_discarded_none_expires_in_a_queue(
    scene: Scene, unread: str, unique: str
) -> None:
    sales = scene.endpoint(unique, f"{unique}-n1", {}, discard_expired=False)
    sales.send(unread, "Hello", 1, delivery=DEAD, time_to_be_received=AT_ONCE)
    kept = DeliveryOptions(journal=JournalLevel.DEADLETTER, transactional=True)
    for swept in (1, 2):
        # The dead letter of the copy that its source kept tells of a sweep. The queues come after
        # the copies, so the second tells that a sweep is over.
        sales.send(unread, "Hello", swept, delivery=kept, time_to_be_received=AT_ONCE)
        scene.until_dead(f"{unique}-n1", NodeQueue.DEADXACT, swept)

    assert scene.session.count(unread) == 3


@pytest.mark.parametrize("mode", [TransactionMode.TRANSACTION_SCOPE, TransactionMode.RECEIVE_ONLY])
def test_a_message_that_a_handler_sends_expires_too(sqlite_url: str, mode: TransactionMode) -> None:
    def pass_on(body: object, context: HandlerContext) -> None:
        context.send("unread", "Hello", body, delivery=DEAD, time_to_be_received=AT_ONCE)

    with ExitStack() as stack:
        scene = Scene(sqlite_url, stack, mode)
        scene.transport.install()
        scene.session.create_queues(["unread"])
        sales = scene.endpoint("sales", "n1", {"Hello": pass_on})

        sales.send_local("Hello", 1)

        [copy] = scene.until_dead("n1")
        assert (copy.destination, copy.message_class) == (
            "unread",
            MessageClass.NACK_RECEIVE_TIMEOUT,
        )
        assert ids(scene.box("n1", NodeQueue.DEADXACT)) == []
