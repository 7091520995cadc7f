"""An endpoint goes from a timeout manager to a delayed message store, and back, with messages."""

from __future__ import annotations

from datetime import timedelta

from tests.acceptance.delayed import DelayedParty
from tests.acceptance.matrix import REPRESENTATIVE, matrix
from tests.acceptance.place import Party, Place
from tests.support.waiting import eventually
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import DELAYED, TIMEOUTS, to_delayed_store, to_timeout_manager

PENDING = timedelta(seconds=4)
"""A delay that outlasts the switch."""


@matrix(pairs=REPRESENTATIVE)
def test_from_a_timeout_manager_to_a_store_nothing_is_lost_or_repeated(place: Place) -> None:
    target = place.queue(f"{place.name}-target")
    old = Party(place)
    old.endpoint.start()
    stored = [old.endpoint.send(target, "Ping", n, delay=PENDING) for n in range(5)]
    old.wait_until_stored(*(sent.id for sent in stored))
    old.endpoint.stop()
    queued = [_queued(place, f"queued-{n}", n) for n in range(5)]

    new = DelayedParty(place).start()
    # As the page says: a process of the old configuration runs until its store is empty.
    left = Party(place).start()
    fresh = new.endpoint.send(target, "Ping", "new", delay=0.1)

    expected = [*(sent.message_id for sent in (*stored, fresh)), *queued]
    arrived = place.received(target).wait_for(len(expected), 20)
    assert sorted(message.id for message in arrived) == sorted(expected)
    eventually(lambda: left.endpoint.timeouts.count() == 0, "the old store is empty")
    new.wait_until_stored(0)
    eventually(lambda: place.session.count(place.name + TIMEOUTS) == 0, "the old queue is empty")


@matrix(pairs=REPRESENTATIVE)
def test_from_a_store_to_a_timeout_manager_nothing_is_lost_or_repeated(place: Place) -> None:
    target = place.queue(f"{place.name}-target")
    old = DelayedParty(place)
    old.endpoint.start()
    stored = [old.endpoint.send(target, "Ping", n, delay=PENDING) for n in range(5)]
    old.wait_until_stored(5)
    old.endpoint.stop()
    queued = [_queued(place, f"queued-{n}", n, delayed=True) for n in range(5)]

    new = Party(place).start()
    left = DelayedParty(place).start()
    fresh = new.endpoint.send(target, "Ping", "new", delay=0.1)

    expected = [*(sent.message_id for sent in (*stored, fresh)), *queued]
    arrived = place.received(target).wait_for(len(expected), 20)
    assert sorted(message.id for message in arrived) == sorted(expected)
    left.wait_until_stored(0)
    eventually(lambda: place.session.count(place.name + DELAYED) == 0, "the old queue is empty")


@matrix(pairs=REPRESENTATIVE)
def test_the_new_pump_alone_drains_the_queue_of_the_other_manager(place: Place) -> None:
    target = place.queue(f"{place.name}-target")
    old = Party(place)
    old.endpoint.install()
    queued = [_queued(place, f"queued-{n}", n) for n in range(7)]

    DelayedParty(place).start()

    arrived = place.received(target).wait_for(len(queued))
    assert sorted(message.id for message in arrived) == sorted(queued)
    assert {message.headers["own"] for message in arrived} == {"ä"}
    ours = {headers.EXPIRE, headers.DESTINATION, headers.DELAYED_DESTINATION}
    assert not any(ours & set(message.headers) for message in arrived)


@matrix(pairs=REPRESENTATIVE)
def test_an_endpoint_without_a_switch_has_no_queue_of_the_other_feature(place: Place) -> None:
    DelayedParty(place, name=f"{place.name}a").start()
    party = Party(place).start()

    queues = [f"{place.name}a{TIMEOUTS}", party.name + DELAYED]
    assert place.session.missing_queues(queues) == queues


def _queued(place: Place, one: str, number: int, *, delayed: bool = False) -> str:
    """Put a message into the old queue that its pump never came to; return its id."""
    message_id = f"{place.name}-{one}"
    message = Message(
        id=message_id, headers={headers.MESSAGE_ID: message_id, "own": "ä"}, body=b"1"
    )
    due = place.configuration().clock.now() + 100_000 * number
    route, suffix = (to_delayed_store, DELAYED) if delayed else (to_timeout_manager, TIMEOUTS)
    outgoing = route(Outgoing(f"{place.name}-target", message), due, place.name + suffix)
    assert to_wire(due) in outgoing.message.headers.values()
    place.put(outgoing.destination, outgoing.message)
    return message_id
