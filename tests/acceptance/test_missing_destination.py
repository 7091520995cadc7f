"""A destination that is gone when its message is due costs that message its place, and no other."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.acceptance.matrix import REPRESENTATIVE, SERVED, matrix
from tests.acceptance.place import PROMPT, Party, Place
from tests.support.waiting import eventually
from timeoutmgr import TimeoutState
from timeoutmgr.message import headers
from timeoutmgr.resilience.error_copy import without_failure

DELAY = timedelta(milliseconds=300)


def deleted_queue(place: Place) -> str:
    """Return the name of a queue that existed and is deleted.

    The queue is deleted before the send and not between send and due time: a send does not check
    the queue, and so a slow test cannot miss the due time.
    """
    queue = place.queue(f"{place.name}-gone")
    place.session.delete_queues([queue])
    return queue


@matrix(pairs=SERVED, all_modes=True)
@pytest.mark.behaviour(64, 65)
def test_a_missing_destination_costs_its_neighbours_nothing(place: Place) -> None:
    party = Party(place, check_destinations=False).start()
    missing = deleted_queue(place)
    before = [party.endpoint.send_local("Ping", n, delay=DELAY) for n in range(3)]
    lost = party.endpoint.send(missing, "Ping", {"who": "naïve"}, delay=DELAY, headers={"own": "ä"})
    after = [party.endpoint.send_local("Ping", n, delay=DELAY) for n in range(3)]

    arrived = party.inbox.wait_for(6)
    copy = party.errors.wait_for_id(lost.message_id)
    assert {a.id for a in arrived} == {s.message_id for s in before + after}
    assert min(a.lateness for a in arrived) >= 0
    assert max(a.lateness for a in arrived) < PROMPT
    assert copy.body == b'{"who": "na\xc3\xafve"}'
    assert copy.headers["own"] == "ä"
    assert copy.headers[headers.FAILED_QUEUE] == missing
    assert missing in copy.headers[headers.EXCEPTION_MESSAGE]
    assert copy.headers[headers.EXCEPTION_TYPE].endswith("Unroutable")
    assert copy.headers[headers.RELATED_TO_TIMEOUT] == lost.id
    must = headers.FAILURE_HEADERS - {headers.INNER_EXCEPTION_TYPE}
    assert must <= set(copy.headers)
    assert lost.id is not None
    eventually(
        lambda: party.endpoint.timeouts.show(lost.id or "") == (TimeoutState.FAILED, None),
        "it is closed as failed",
    )
    assert len(party.errors.poll()) == 1


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(64)
def test_a_message_of_a_missing_destination_can_be_sent_again_from_the_error_queue(
    place: Place,
) -> None:
    party = Party(place, check_destinations=False).start()
    missing = deleted_queue(place)
    lost = party.endpoint.send(missing, "Ping", {"number": 1}, delay=DELAY)
    copy = party.errors.wait_for_id(lost.message_id)
    place.queue(missing)

    place.put(copy.headers[headers.FAILED_QUEUE], without_failure(copy))

    message = place.received(missing).wait_for_id(lost.message_id)
    assert message.body == b'{"number": 1}'
    assert not headers.FAILURE_HEADERS & set(message.headers)
    assert not {headers.EXPIRE, headers.DESTINATION} & set(message.headers)


@matrix(pairs=REPRESENTATIVE, all_modes=True)
@pytest.mark.behaviour(59, 64, 91)
def test_without_destination_and_error_queue_the_message_stays_stored(place: Place) -> None:
    party = Party(place, check_destinations=False).start()
    missing = deleted_queue(place)
    place.session.delete_queues([party.config.error_queue])
    lost = party.endpoint.send(missing, "Ping", {}, delay=DELAY)
    fine = party.endpoint.send_local("Ping", {}, delay=DELAY)

    party.inbox.wait_for_id(fine.message_id)
    party.telemetry.wait_for("timeouts_retry", 1)
    assert lost.id is not None
    assert party.endpoint.timeouts.count(destination=missing) == 1

    place.queue(missing)

    message = place.received(missing).wait_for_id(lost.message_id)
    assert message.id == lost.message_id
