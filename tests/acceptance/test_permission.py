"""The allow-list is checked when a message leaves, and not only when it is sent."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.acceptance.matrix import MAIN, SERVED, matrix
from tests.acceptance.place import LATER, Party, Place
from timeoutmgr.errors import DestinationNotAllowed
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_micros, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import Limits


@matrix(pairs=SERVED, all_modes=True)
def test_a_narrower_allow_list_applies_to_timeouts_stored_already(place: Place) -> None:
    party = Party(place).start()
    other = place.queue(f"{place.name}-other")
    sent = party.endpoint.send(other, "Ping", 1, delay=LATER)
    party.wait_until_stored(sent.id)
    party.endpoint.stop()
    narrow = Party(place, limits=Limits(allowed_destinations=("nowhere",))).start()
    assert sent.id is not None

    narrow.endpoint.timeouts.send_now(sent.id)

    copy = narrow.errors.wait_for_id(sent.message_id)
    assert (copy.body, copy.headers[headers.FAILED_QUEUE]) == (b"1", other)
    assert copy.headers[headers.EXCEPTION_TYPE].endswith("DestinationNotAllowed")
    assert place.received(other).poll() == []


@matrix(pairs=MAIN)
def test_the_error_queue_is_refused_as_destination(place: Place) -> None:
    party = Party(place).start()
    with pytest.raises(DestinationNotAllowed, match="error queue"):
        party.endpoint.send(party.config.error_queue, "Ping", 1, delay=LATER)
    planted = {
        headers.EXPIRE: to_wire(to_micros(datetime.now(UTC))),
        headers.DESTINATION: party.config.error_queue,
        headers.FAILED_QUEUE: "victim",
    }

    place.put(f"{party.name}.Timeouts", Message(id="planted", headers=planted))

    copy = party.errors.wait_for_id("planted")
    assert copy.headers[headers.FAILED_QUEUE] == f"{party.name}.Timeouts"
    assert "DestinationNotAllowed" in copy.headers[headers.INNER_EXCEPTION_TYPE]
