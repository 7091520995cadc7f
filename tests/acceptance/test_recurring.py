"""Recurring timeouts on real pairs: each occurrence arrives once, from any number of processes."""

from __future__ import annotations

from itertools import pairwise

from tests.acceptance.matrix import EACH_ONCE, MAIN, matrix
from tests.acceptance.place import Party, Place
from tests.support.makers import SECOND
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire


def _party(place: Place) -> Party:
    """Return a party with a message each second, all of which are caught up."""
    party = Party(place)
    party.config.recurring("tick", "Tick", {"n": 1}, every="1 second", catch_up="all")
    return party


@matrix(pairs=EACH_ONCE, all_modes=True)
def test_a_recurring_message_arrives_at_each_occurrence(place: Place) -> None:
    party = _party(place).start()

    arrived = party.inbox.wait_for(3)

    dues = [from_wire(each.headers[headers.DELIVER_AT]) for each in arrived]
    assert [later - due for due, later in pairwise(dues)] == [SECOND] * (len(dues) - 1)
    assert all(each.lateness >= 0 for each in arrived)
    assert {(each.message_type, each.headers[headers.RECURRING]) for each in arrived} == {
        ("Tick", "tick")
    }


@matrix(needs={"processes"}, pairs=MAIN)
def test_two_processes_send_each_occurrence_once(place: Place) -> None:
    one, other = _party(place), _party(place)
    one.start()
    other.start()

    one.inbox.wait_for(2)
    other.inbox.wait_for(2)
    one.endpoint.stop()
    other.endpoint.stop()

    arrived = [*one.inbox.arrived, *other.inbox.arrived]
    dues = sorted(from_wire(each.headers[headers.DELIVER_AT]) for each in arrived)
    assert [later - due for due, later in pairwise(dues)] == [SECOND] * (len(dues) - 1)
    assert len({each.id for each in arrived}) == len(arrived)


@matrix(pairs=MAIN)
def test_a_pause_ends_the_runs_of_a_running_endpoint_and_a_resume_begins_anew(
    place: Place,
) -> None:
    party = _party(place).start()
    party.inbox.wait_for(1)

    party.endpoint.recurring.pause("tick")
    [paused] = party.endpoint.recurring.list()
    count = len(party.inbox.arrived)
    party.endpoint.recurring.run_now("tick")
    party.inbox.wait_for(count + 1)
    party.endpoint.recurring.resume("tick")

    party.inbox.wait_for(count + 3)
    assert paused.is_paused
    assert paused.next is None
