"""The allow-list is checked when a message leaves, and not only when it is sent."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.acceptance.delayed import DelayedParty
from tests.acceptance.matrix import EACH_ONCE, MAIN, REPRESENTATIVE, SERVED, matrix
from tests.acceptance.place import LATER, SOON, Party, Place
from timeoutmgr.errors import DestinationNotAllowed
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_micros, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import SATELLITES, Limits


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


@matrix(pairs=EACH_ONCE)
def test_a_business_queue_with_a_satellites_ending_gets_its_messages(place: Place) -> None:
    party = Party(place).start()
    endings = (".timeouts", ".Timeouts", ".Acknowledgements")
    targets = [place.queue(f"{place.name}-kitchen{ending}") for ending in endings]

    delayed = [party.endpoint.send(name, "Ping", 1, delay=SOON) for name in targets]
    direct = [party.endpoint.send(name, "Ping", 2) for name in targets]

    for name, *sent in zip(targets, delayed, direct, strict=True):
        received = place.received(name)
        assert {received.wait_for_id(each.message_id).body for each in sent} == {b"1", b"2"}
    assert party.errors.poll() == []


@matrix(pairs=MAIN)
def test_a_satellite_of_an_installed_endpoint_is_no_destination(place: Place) -> None:
    party = Party(place).start()
    satellites = [f"{party.name}{ending}" for ending in SATELLITES]

    for name in satellites:
        with pytest.raises(DestinationNotAllowed, match="timeout manager"):
            party.endpoint.send(name, "Ping", 1, delay=LATER)


@matrix(pairs=REPRESENTATIVE)
def test_the_queue_of_a_send_only_endpoints_delayed_messages_is_no_destination(
    place: Place,
) -> None:
    party = DelayedParty(place, send_only=True).start()

    with pytest.raises(DestinationNotAllowed, match="timeout manager"):
        party.endpoint.send(f"{party.name}.timeouts", "Ping", 1)


@matrix(pairs=MAIN)
def test_a_queue_becomes_a_satellites_while_a_message_for_it_is_stored(place: Place) -> None:
    party = Party(place).start()
    target = place.queue(f"{place.name}-later.Timeouts")
    sent = party.endpoint.send(target, "Ping", 1, delay=LATER)
    party.wait_until_stored(sent.id)
    party.endpoint.stop()
    place.queue(f"{place.name}-later.TimeoutsDispatcher")
    again = Party(place).start()
    assert sent.id is not None

    again.endpoint.timeouts.send_now(sent.id)

    copy = again.errors.wait_for_id(sent.message_id)
    assert copy.headers[headers.EXCEPTION_TYPE].endswith("DestinationNotAllowed")
    assert place.received(target).poll() == []
