"""A purge before the start, and a canary while the endpoint runs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.acceptance.matrix import REPRESENTATIVE, matrix
from tests.acceptance.place import SOON, Party, Place
from tests.support.waiting import eventually
from timeoutmgr.contracts.audit import KeepsAudit
from timeoutmgr.endpoint.canary import Canary, CanarySettings
from timeoutmgr.errors import CombinationRefused


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(141)
@pytest.mark.parametrize("satellites", [False, True])
def test_a_purge_leaves_the_queues_of_satellites_unless_asked(
    place: Place, satellites: bool
) -> None:
    party = Party(place)
    party.endpoint.install()
    party.endpoint.send_local("Ping", 1)
    waiting = party.endpoint.send_local("Ping", 2, delay=SOON)

    removed = party.endpoint.purge(satellites=satellites)
    store = party.endpoint.parts.features.store
    rows = store.audit() if isinstance(store, KeepsAudit) else []
    party.start()

    if isinstance(store, KeepsAudit):
        numbers = [(row.action, row.outcome, row.changed) for row in rows]
        assert numbers == [("purge", "started", None), ("purge", "done", sum(removed.values()))]

    assert removed[party.name] == 1
    assert removed.get(f"{party.name}.Timeouts", 0) == int(satellites)
    last = party.endpoint.send_local("Ping", 3, delay=2 * SOON)
    party.inbox.wait_for_id(last.message_id)
    if not satellites:
        party.inbox.wait_for_id(waiting.message_id)
    assert sorted(each.body for each in party.inbox.arrived) == ([3] if satellites else [2, 3])


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(141)
def test_a_purge_in_a_started_fleet_is_refused(place: Place) -> None:
    party = Party(place).start()
    store = party.endpoint._parts.features.store
    assert store is not None
    eventually(lambda: bool(store.processes()), "the endpoint has a heartbeat")

    with pytest.raises(CombinationRefused, match="a purge in a started fleet is refused"):
        party.endpoint.purge()
    with pytest.raises(CombinationRefused, match="processes of endpoint"):
        place.made(party.config).purge(satellites=True)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(140)
def test_a_canary_is_delivered_while_the_endpoint_runs(place: Place) -> None:
    party = Party(place)
    party.config.canary = CanarySettings(every=timedelta(days=2), delay=SOON)
    party.start()
    [canary] = [t for t in party.endpoint._parts.features.tasks if isinstance(t, Canary)]
    send, sent = canary._send, list[str]()

    def note(delay: timedelta) -> str:
        sent.append(send(delay))
        return sent[-1]

    canary._send = note

    def wait(_seconds: float) -> bool:
        party.wait_until_dispatched(sent[-1])
        return False

    assert canary.step(wait) is False
    assert party.telemetry.counted("canaries_delivered") >= 1
    assert party.telemetry.counted("canaries_late") == 0
    assert party.errors.poll() == []
