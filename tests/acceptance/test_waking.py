"""The poller sleeps as long as it may, and wakes for an earlier due time; no wake is lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine

from tests.acceptance.gate import Gate
from tests.acceptance.matrix import EACH_ONCE, REFERENCE, REPRESENTATIVE, SERVED, Pair, matrix
from tests.acceptance.place import LATER, PROMPT, SOON, Party, Place
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.message.instants import to_micros
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.satellites import TimeoutManager


@matrix(all_modes=True)
@pytest.mark.behaviour(38, 42)
def test_an_earlier_message_wakes_a_poller_that_sleeps(party: Party) -> None:
    later = party.endpoint.send_local("Ping", 1, delay=timedelta(seconds=50))
    party.wait_until_stored(later.id)
    party.telemetry.wait_for("polls", 1)

    sent = party.endpoint.send_local("Ping", 2, delay=2 * SOON)

    assert 0 <= party.inbox.wait_for_id(sent.message_id).lateness < PROMPT
    assert [arrival.id for arrival in party.inbox.arrived] == [sent.message_id]


@matrix(pairs=SERVED, all_modes=True)
@pytest.mark.behaviour(40)
def test_an_earlier_message_stored_during_a_poll_shortens_the_next_sleep(place: Place) -> None:
    gate = Gate(place.persistence())
    party = Party(place, persistence=gate)
    held = gate.pause_after_next_empty_peek()
    party.start()
    held.wait_until_reached()

    # The delay leaves time to store the message before its due time, also on a busy machine.
    sent = party.endpoint.send_local("Ping", 1, delay=10 * SOON)
    party.wait_until_stored(sent.id)
    held.go_on()

    assert 0 <= party.inbox.wait_for_id(sent.message_id).lateness < PROMPT


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(39)
def test_a_later_message_causes_no_poll(party: Party) -> None:
    party.telemetry.wait_for("polls", 1)
    first = party.endpoint.send_local("Ping", 1, delay=LATER)
    party.wait_until_stored(first.id)
    before = party.telemetry.counted("polls")

    for number in range(30):  # each stored by itself, so that thirty wakes would be thirty polls
        with party.telemetry.expect("timeouts_stored", 1):
            party.endpoint.send_local("Ping", number, delay=LATER + timedelta(seconds=number))

    assert party.telemetry.counted("timeouts_claimed") == 0
    last = party.endpoint.send_local("Ping", "last", delay=SOON)
    party.inbox.wait_for_id(last.message_id)
    # The last message causes polls of its own; a slower dispatch causes more of them.
    assert party.telemetry.counted("polls") - before < 20


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(44, 53)
def test_the_next_poll_finds_a_row_inserted_without_notice(place: Place) -> None:
    party = Party(place, manager=TimeoutManager(poll_interval=timedelta(milliseconds=400)))
    party.start()
    store = place.persistence().timeouts(party.name, SystemClock())
    overdue = datetime.now(UTC) - timedelta(days=30 * 365)

    store.store_many([a_timeout(party, "untold", overdue)])

    assert party.inbox.wait_for_id("untold").body == {"number": 1}


@matrix(pairs=[REFERENCE, Pair("mysql", "mysql"), Pair("postgres", "postgres")])
@pytest.mark.behaviour(41, 44)
def test_a_row_committed_late_with_an_old_due_time_is_delivered(place: Place) -> None:
    party = Party(place, manager=TimeoutManager(poll_interval=timedelta(milliseconds=500)))
    party.start()
    engine = create_engine(place.store_url)
    store = place.persistence().timeouts(party.name, SystemClock())
    try:
        with engine.connect() as connection, connection.begin():
            store.store_many([a_timeout(party, "late", datetime.now(UTC))], transaction=connection)
            meanwhile = party.endpoint.send_local("Ping", 2, delay=SOON)
            party.inbox.wait_for_id(meanwhile.message_id)
            with party.telemetry.expect("polls", 2):
                assert party.inbox.of("late") == []

        assert party.inbox.wait_for_id("late").body == {"number": 1}
    finally:
        engine.dispose()


def a_timeout(party: Party, message_id: str, due: datetime) -> Timeout:
    """Return a timeout as the store satellite would have made it."""
    return Timeout(
        id=timeout_id(party.name, message_id),
        due=to_micros(due),
        destination=party.name,
        message=Message(
            id=message_id,
            headers={"NServiceBus.EnclosedMessageTypes": "Ping"},
            body=b'{"number": 1}',
        ),
    )
