"""An endpoint with a delayed message store and dead-letter queues: what dies, and where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.deadletter.scene import PATIENCE, Scene
from tests.support.makers import a_message
from tests.support.waiting import eventually
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.deadletter import DeliveryOptions, JournalLevel, MessageClass, NodeQueue


@pytest.fixture(
    params=[TransactionMode.TRANSACTION_SCOPE, TransactionMode.RECEIVE_ONLY],
    ids=lambda mode: mode.value,
)
def scene(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(sqlite_url, stack, request.param)


@pytest.mark.behaviour(64, 104)
@pytest.mark.parametrize("delay", [0, 0.4], ids=["at once", "from the store"])
def test_a_missing_destination_leaves_a_dead_letter_and_no_error_copy(
    scene: Scene, delay: float
) -> None:
    sales = scene.endpoint("sales", "n1", {}, delayed=True)

    sent = sales.send("nowhere", "Hello", {"n": 1}, delay=delay)

    [copy] = scene.until_dead("n1")
    assert (copy.message.id, copy.message.body) == (sent.message_id, b'{"n": 1}')
    assert (copy.destination, copy.source) == ("nowhere", "sales")
    assert copy.message_class == MessageClass.NACK_BAD_DST_Q
    assert scene.session.count("error") == 0


@pytest.mark.behaviour(100)
def test_a_message_of_level_none_goes_to_the_error_queue_as_ever(scene: Scene) -> None:
    sales = scene.endpoint("sales", "n1", {}, delayed=True)

    sales.send(
        "nowhere", "Hello", 1, delay=0.2, delivery=DeliveryOptions(journal=JournalLevel.NONE)
    )

    scene.until_failed()
    assert scene.nothing_is_dead("n1")


@pytest.mark.behaviour(101)
def test_a_delayed_message_in_a_store_always_uses_the_dead_letter_queue(scene: Scene) -> None:
    scene.endpoint("sales", "n1", {}, delayed=True)

    scene.put("sales.timeouts", a_message("m1", expire="soon", destination="billing"))

    [copy] = scene.until_dead("n1")
    assert (copy.destination, copy.message.id) == ("sales.timeouts", "m1")
    assert scene.session.count("error") == 0


def test_a_transactional_message_is_kept_until_it_is_received(scene: Scene) -> None:
    sales = scene.endpoint("sales", "n1", {"Hello": lambda _body, _: None}, delayed=True)

    fine = sales.send_local("Hello", 1, delay=0.3, delivery=DeliveryOptions(transactional=True))
    assert scene.awaiting("n1") == [fine.message_id]
    lost = sales.send(
        "nowhere", "Hello", 1, delay=0.3, delivery=DeliveryOptions(transactional=True)
    )

    [copy] = scene.until_dead("n1", NodeQueue.DEADXACT)
    eventually(lambda: scene.awaiting("n1") == [], "the other is received", PATIENCE)
    assert copy.message.id == lost.message_id
    assert copy.message_class == MessageClass.NACK_BAD_DST_Q
