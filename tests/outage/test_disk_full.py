"""The disk of the embedded file is full: a send says so, accepted messages are delivered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.acceptance.place import Party
from tests.outage.alarm import Alarm
from tests.outage.conftest import MakePlace
from tests.outage.disk import SmallDisk
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.satellites import TimeoutManager

BODY = "x" * 20_000
MINUTES = timedelta(minutes=2)


def started(
    make_place: MakePlace, disk: SmallDisk, *, transport: str | None = None, wait: timedelta
) -> tuple[Party, Alarm]:
    """Return a running endpoint with its file on *disk*, and the alarm at its critical errors."""
    url = f"sqlite:///{disk.folder / 'timeoutmgr.db'}"
    manager = TimeoutManager(
        time_to_wait_before_critical_error=wait, poll_interval=timedelta(seconds=1)
    )
    party = Party(make_place(transport=transport or url, store=url), manager=manager)
    alarm = Alarm()
    party.config.define_critical_error_action(alarm)
    party.start()
    return party, alarm


def send_until_full(party: Party) -> tuple[list[str], str]:
    """Send until it is refused ten times; return the accepted ids and the last refusal."""
    accepted: list[str] = []
    refusals: list[str] = []
    while len(refusals) < 10:
        assert len(accepted) < 5_000, "the disk does not get full"
        try:
            sent = party.endpoint.send_local("Ping", BODY, delay=len(accepted) % 10 / 10)
        except TransportUnavailable as error:
            refusals.append(str(error))
        else:
            accepted.append(sent.message_id)
    return accepted, refusals[-1]


@pytest.mark.behaviour(32, 56, 61)
def test_a_full_disk_refuses_sends_and_delivers_accepted_messages_once_it_has_room(
    make_place: MakePlace, small_disk: Callable[[int], SmallDisk]
) -> None:
    disk = small_disk(8)
    party, alarm = started(make_place, disk, wait=MINUTES)
    first = party.endpoint.send_local("Ping", BODY, delay=2.0)
    party.wait_until_stored(first.id)

    disk.fill()
    accepted, refusal = send_until_full(party)
    party.telemetry.wait_for("polls_failed", 1)  # there is something due that cannot be claimed
    disk.free()

    for message_id in (first.message_id, *accepted):
        party.inbox.wait_for_id(message_id, timeout=30)
    last = party.endpoint.send_local("Ping", BODY, delay=0.1)
    party.inbox.wait_for_id(last.message_id)
    wanted = [first.message_id, *accepted, last.message_id]
    assert "database or disk is full" in refusal
    assert sorted(arrival.id for arrival in party.inbox.arrived) == sorted(wanted)
    assert min(arrival.lateness for arrival in party.inbox.arrived) >= 0
    assert party.telemetry.counted("moved_to_error") == 0
    assert party.telemetry.counted("immediate_retries") == 0
    assert alarm.reported == []


@pytest.mark.behaviour(32, 70)
@pytest.mark.slow
def test_a_disk_that_stays_full_is_reported_once_while_the_broker_goes_on(
    make_place: MakePlace, small_disk: Callable[[int], SmallDisk], rabbitmq_url: str
) -> None:
    disk = small_disk(16)
    party, alarm = started(make_place, disk, transport=rabbitmq_url, wait=timedelta(seconds=2))
    first = party.endpoint.send_local("Ping", BODY, delay=1.0)
    party.wait_until_stored(first.id)

    disk.fill()
    sent = [party.endpoint.send_local("Ping", BODY, delay=n / 100) for n in range(100)]
    alarm.wait_for(1)
    party.endpoint.wait(4)  # twice the limit: every other watcher of the disk had its time
    reported = len(alarm.reported)
    tries = party.telemetry.counted("storage_failures")
    disk.free()

    for each in (first, *sent):
        party.inbox.wait_for_id(each.message_id, timeout=30)
    assert reported == 1
    assert "disk is full" in str(alarm.reported[0][1].exception)
    assert 1 <= tries <= 10  # it stopped consuming and looked now and then
    assert party.telemetry.counted("moved_to_error") == 0
    assert {a.id for a in party.inbox.arrived} == {s.message_id for s in (first, *sent)}
