"""A pause of one process holds timeouts back in all processes, until it ends or is resumed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.acceptance.matrix import MAIN, Pair, matrix
from tests.acceptance.place import SOON, Party, Place
from tests.support.waiting import eventually
from timeoutmgr import TimeoutState
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros, from_wire

FOUR = (*MAIN, Pair("mysql", "mysql"))
BY = ChangedBy(channel="cli", actor="ann", reason="billing is down")


@pytest.fixture
def workers(place: Place) -> list[Party]:
    """Two running processes of the endpoint, in the test's own."""
    return [Party(place).start() for _ in range(2)]


def parked(*parties: Party) -> list[int]:
    """How many timeouts each of *parties* says the pause holds; -1: it sees no pause."""
    seen = [party.endpoint.timeouts.pauses() for party in parties]
    return [pauses[0].parked.number if pauses else -1 for pauses in seen]


@matrix(pairs=FOUR)
def test_from_the_pause_of_an_operator_on_no_process_sends_until_the_resume(
    place: Place, workers: list[Party]
) -> None:
    operator = Party(place)
    free = place.queue(f"{place.name}-free")

    operator.endpoint.timeouts.pause(place.name, by=BY)
    held = [workers[n % 2].endpoint.send_local("Ping", n, delay=SOON) for n in range(6)]
    later = operator.endpoint.send(free, "Ping", 7, delay=2 * SOON)
    assert place.received(free).wait_for(1)[0].id == later.message_id
    eventually(lambda: parked(*workers, operator) == [6] * 3, "each sees all of them parked")

    assert [party.inbox.arrived for party in workers] == [[], []]
    for one in held:
        assert one.id is not None
        found = operator.endpoint.timeouts.show(one.id)
        assert found is not None
        assert found[0] is TimeoutState.PENDING
        assert found[1] is not None
        assert found[1].attempts == 0

    operator.endpoint.timeouts.resume(place.name, by=BY)

    eventually(lambda: len(arrived(workers)) >= len(held), "all arrive")
    operator.wait_until_dispatched(*(one.id for one in held))
    assert sorted(arrived(workers)) == sorted(one.message_id for one in held)
    assert parked(*workers, operator) == [-1] * 3


@matrix(pairs=FOUR)
def test_a_pause_ends_at_its_instant_by_itself_and_holds_until_then(
    place: Place, workers: list[Party]
) -> None:
    operator = Party(place)
    until = from_micros(operator.endpoint.timeouts.now()) + timedelta(seconds=1)

    operator.endpoint.timeouts.pause(until=until, by=BY)
    sent = workers[0].endpoint.send_local("Ping", 1, delay=SOON)

    operator.wait_until_dispatched(sent.id)
    eventually(lambda: arrived(workers) == [sent.message_id], "it arrives")
    (message,) = [each for party in workers for each in party.inbox.arrived]
    assert from_micros(from_wire(message.headers[headers.DISPATCHED_AT])) >= until
    assert parked(*workers, operator) == [-1] * 3


def arrived(parties: list[Party]) -> list[str]:
    """The ids of the messages that *parties* have handled."""
    return [each.id for party in parties for each in party.inbox.arrived]
