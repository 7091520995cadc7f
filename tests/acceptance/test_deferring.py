"""A delayed message arrives whole, never early, and soon after it is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.acceptance.matrix import EACH_ONCE, EMBEDDED, REPRESENTATIVE, SERVED, matrix
from tests.acceptance.place import LATER, PROMPT, SOON, Party, Place
from timeoutmgr import HandlerContext, SendOptions
from timeoutmgr.errors import InvalidMessage, Unroutable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire, to_micros, to_wire
from timeoutmgr.testing import Inbox

BODY = bytes(range(256)) * 4
UNICODE = {"Größe": "naïve ☂ 🚀", "emoji-🚀": "値", "empty": ""}


@matrix(all_modes=True)
@pytest.mark.behaviour(25)
def test_a_message_deferred_to_the_past_is_delivered_promptly(party: Party) -> None:
    sent_at = datetime.now(UTC)

    sent = party.endpoint.send_local("Ping", {}, deliver_at=sent_at - timedelta(days=4000))

    arrival = party.inbox.wait_for_id(sent.message_id)
    assert arrival.at - to_micros(sent_at) < PROMPT * 1_000_000


@matrix(all_modes=True)
@pytest.mark.behaviour(19, 26, 37, 57)
def test_no_message_of_many_is_early_lost_or_repeated(party: Party) -> None:
    start = datetime.now(UTC) + timedelta(milliseconds=200)

    sent = [
        party.endpoint.send_local(
            "Ping", number, deliver_at=start + timedelta(microseconds=9_999 * number)
        )
        for number in range(30)
    ]

    arrived = party.inbox.wait_for(30)
    assert sorted(a.id for a in arrived) == sorted(s.message_id for s in sent)
    assert min(a.lateness for a in arrived) >= 0
    assert max(a.lateness for a in arrived) < PROMPT
    due = {s.message_id: to_micros(s.due) for s in sent if s.due is not None}
    assert all(from_wire(a.headers[headers.DELIVER_AT]) == due[a.id] for a in arrived)


@matrix(all_modes=True)
@pytest.mark.behaviour(17, 20, 21, 22, 23, 24)
def test_a_delayed_message_arrives_as_it_was_sent(party: Party) -> None:
    before = datetime.now(UTC)

    sent = party.endpoint.send_local(
        "Bytes",
        BODY,
        delay=SOON,
        headers=UNICODE,
        content_type="application/x-thing",
        message_id="my-own-id",
        saga_id="saga-7",
    )

    arrival = party.inbox.wait_for_id("my-own-id")
    assert arrival.message.body == BODY
    assert arrival.message.content_type == "application/x-thing"
    assert arrival.message_type == "Bytes"
    given = arrival.headers
    assert {name: given[name] for name in UNICODE} == UNICODE
    assert given[headers.MESSAGE_ID] == "my-own-id"
    assert given[headers.SAGA_ID] == "saga-7"
    assert given[headers.RELATED_TO_TIMEOUT] == sent.id
    assert sent.due is not None
    assert given[headers.DELIVER_AT] == to_wire(to_micros(sent.due))
    assert to_micros(before) <= from_wire(given[headers.TIME_SENT]) < to_micros(sent.due)
    assert to_micros(sent.due) <= from_wire(given[headers.DISPATCHED_AT]) <= arrival.at
    assert not {headers.EXPIRE, headers.DESTINATION} & set(given)


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(11)
def test_options_serve_for_many_sends(party: Party) -> None:
    options = SendOptions(delay=SOON, saga_id="saga-1")

    first = party.endpoint.send_local("Ping", 1, options)
    second = party.endpoint.send_local("Ping", 2, options)

    arrived = party.inbox.wait_for(2)
    assert {a.id for a in arrived} == {first.message_id, second.message_id}
    assert first.message_id != second.message_id
    assert options == SendOptions(delay=SOON, saga_id="saga-1")
    assert min(a.lateness for a in arrived) >= 0


@matrix(pairs=SERVED)
@pytest.mark.behaviour(12, 24)
def test_sends_and_replies_of_a_handler_may_be_delayed(place: Place) -> None:
    answers, party = Inbox(), Party(place)

    @party.config.handler("Ask")
    def ask(_body: Any, context: HandlerContext) -> None:
        context.reply("Answer", "delayed", delay=SOON)
        context.send(context.headers["other"], "Immediate", "at once")
        context.send_local("Note", "delayed", delay=SOON)

    party.start()
    other = place.run(place.configuration(f"{place.name}-b", handler=answers))
    asked = other.send(party.name, "Ask", {}, headers={"other": other.name}, delay=SOON)

    immediate, answer = answers.wait_for(2)
    [note] = party.inbox.wait_for(1)
    assert [immediate.message_type, answer.message_type, note.message_type] == [
        "Immediate",
        "Answer",
        "Note",
    ]
    assert headers.DELIVER_AT not in immediate.headers
    assert answer.lateness >= 0
    assert note.lateness >= 0
    assert answer.headers[headers.RELATED_TO] == asked.message_id
    assert answer.headers[headers.CONVERSATION_ID] == asked.message_id


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(34)
def test_a_message_sent_twice_under_one_id_is_delivered_once(party: Party) -> None:
    first = party.endpoint.send_local("Ping", 1, delay=SOON, message_id="same")
    again = party.endpoint.send_local("Ping", 1, delay=SOON, message_id="same")
    party.wait_until_dispatched(first.id)

    late = party.endpoint.send_local("Ping", 1, delay=SOON, message_id="same")
    last = party.endpoint.send_local("Ping", 2, delay=2 * SOON)

    party.inbox.wait_for_id(last.message_id)
    party.inbox.wait_for_id("same")
    assert first.id == again.id == late.id
    assert len(party.inbox.of("same")) == 1


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(64)
def test_a_destination_that_does_not_exist_is_refused_when_it_is_sent(party: Party) -> None:
    missing = f"{party.name}-nobody"

    with pytest.raises(Unroutable, match=missing):
        party.endpoint.send(missing, "Ping", {}, delay=LATER)

    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=[EMBEDDED])
@pytest.mark.behaviour(8, 9, 13, 15)
@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": timedelta(microseconds=-1)},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 10**12},
        {"delay": 1, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"deliver_at": datetime(2030, 1, 1)},
        {"delay": 1, "time_to_be_received": timedelta(seconds=1)},
        {"delay": 1, "headers": {"number": 1}},
        {"delay": 1, "headers": {headers.EXPIRE: "x"}},
        {"delay": 1, "headers": {"big": "x" * 70_000}},
        {"delay": 1, "saga_id": ""},
        {"delay": 1, "message_id": ""},
    ],
    ids=str,
)
def test_an_unsendable_message_is_refused_at_the_door(
    party: Party, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidMessage):
        party.endpoint.send_local("Ping", {}, **options)

    assert party.place.session.count(f"{party.name}.Timeouts") == 0
    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=REPRESENTATIVE)
def test_a_misspelt_option_is_refused_at_the_door(party: Party) -> None:
    given: dict[str, Any] = {"dealy": 1}  # a type checker refuses the keyword itself

    with pytest.raises(TypeError, match="dealy"):
        party.endpoint.send_local("Ping", {}, **given)

    assert party.place.session.count(f"{party.name}.Timeouts") == 0
    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(121)
def test_due_times_keep_their_microseconds(party: Party) -> None:
    due = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

    last = party.endpoint.send_local("Ping", {}, deliver_at=due)
    before = party.endpoint.send_local("Ping", {}, deliver_at=due - timedelta(microseconds=1))
    party.wait_until_stored(last.id, before.id)

    assert [view.due for view in party.endpoint.timeouts.list()] == [
        due - timedelta(microseconds=1),
        due,
    ]
    assert party.telemetry.counted("timeouts_claimed") == 0
