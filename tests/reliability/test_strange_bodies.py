"""Bodies and headers that are meant to hurt: passed on as they are, or kept whole with why."""

from __future__ import annotations

import bz2
import gzip
import os
import tracemalloc
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

import amqp
import pytest

from tests.acceptance.matrix import EMBEDDED, REFERENCE
from tests.acceptance.place import SOON, Party, Place
from tests.reliability.pairs import on
from timeoutmgr.errors import MessageTooLarge
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_micros, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import Limits

MIB = 1024 * 1024
DEPTH = 200_000


@pytest.fixture
def stranger(rabbitmq_url: str) -> Iterator[amqp.Channel]:
    """A channel of py-amqp's own: our code does not check its messages."""
    parts = urlsplit(rabbitmq_url)
    with amqp.Connection(
        f"{parts.hostname}:{parts.port or 5672}",
        userid=parts.username,
        password=parts.password,
        virtual_host=unquote(parts.path[1:]),
    ) as connection:
        yield connection.channel()


def delayed(party: Party, name: str, **more: object) -> dict[str, object]:
    """Return the headers of a message that is due now."""
    return {
        headers.MESSAGE_ID: name,
        headers.EXPIRE: to_wire(to_micros(datetime.now(UTC))),
        headers.DESTINATION: party.name,
        **more,
    }


@on(REFERENCE)
def test_a_compressed_body_is_never_inflated_and_arrives_byte_by_byte(
    place: Place, stranger: amqp.Channel
) -> None:
    party = Party(place).start()
    bomb = gzip.compress(bytes(256 * MIB), compresslevel=1)
    noise = os.urandom(10_000)
    bodies = {
        "bomb": (bomb, "application/x-gzip"),
        "gzip": (gzip.compress(noise), "application/x-gzip"),
        "zlib": (zlib.compress(noise), "application/zlib"),
        "bzip2": (bz2.compress(noise), "application/bzip2"),
        "not what it says": (noise, "application/x-gzip"),
        "unknown": (noise, "no/such"),
    }
    tracemalloc.start()

    for name, (body, compression) in bodies.items():
        table = delayed(party, name, compression=compression)
        message = amqp.Message(body, content_type="application/data", application_headers=table)
        stranger.basic_publish(message, routing_key=f"{party.name}.Timeouts")
    arrived = party.inbox.wait_for(len(bodies))

    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {a.id: a.message.body for a in arrived} == {n: body for n, (body, _) in bodies.items()}
    assert most < 64 * MIB


@on(REFERENCE)
def test_a_message_that_was_dead_lettered_before_is_delayed_and_delivered(
    place: Place, stranger: amqp.Channel
) -> None:
    party = Party(place).start()
    # A header by which RabbitMQ assumes a cycle, and silently drops a message, if it travels on.
    deaths = [
        {"queue": queue, "reason": "expired", "count": 3, "exchange": "", "routing-keys": [queue]}
        for queue in (party.name, f"{party.name}.Timeouts")
    ]
    first = {f"x-first-death-{what}": party.name for what in ("queue", "reason", "exchange")}
    table = delayed(party, "again", **{"x-death": deaths}, **first)

    stranger.basic_publish(
        amqp.Message(b"body", application_headers=table), routing_key=f"{party.name}.Timeouts"
    )

    arrival = party.inbox.wait_for_id("again")
    assert arrival.message.body == b"body"
    assert not [name for name in arrival.headers if name.lower().startswith("x-")]
    assert len(party.inbox.arrived) == 1


@on(EMBEDDED, REFERENCE)
def test_a_body_over_the_limit_is_refused_by_its_sender_and_kept_by_the_manager(
    place: Place,
) -> None:
    party = Party(place).start()
    body = os.urandom(MIB) * 17

    with pytest.raises(MessageTooLarge, match="the limit is 16777216"):
        party.endpoint.send_local("Large", body, delay=SOON)
    given = {name: str(value) for name, value in delayed(party, "large").items()}
    place.put(f"{party.name}.Timeouts", Message(id="large", headers=given, body=body))
    fine = party.endpoint.send_local("Ping", 1, delay=SOON)

    party.inbox.wait_for_id(fine.message_id)
    copy = party.errors.wait_for_id("large")
    assert copy.body == body
    assert "16777216" in copy.headers[headers.EXCEPTION_MESSAGE]
    assert len(party.inbox.arrived) == 1


@on(EMBEDDED, REFERENCE)
def test_a_body_within_a_raised_limit_is_delivered(place: Place) -> None:
    body = os.urandom(MIB) * 17
    party = Party(place, limits=Limits(max_body=20 * MIB)).start()

    sent = party.endpoint.send_local("Large", body, delay=SOON)

    assert party.inbox.wait_for_id(sent.message_id).message.body == body


HOSTILE = {
    "deep": b"[" * DEPTH,
    "deep-closed": b"[" * DEPTH + b"]" * DEPTH,
    "deep-objects": b'{"a":' * DEPTH,
    "endless-number": b"1" * 100_000,
    "bare-constant": b"Infinit",
    "truncated": b'{"order": "\\ud8',
    "bytes": b"\xff\xfe\x00",
}
LEGAL = {
    "same-key-twice": (b'{"a": 1, "a": 2}', {"a": 2}),
    "large-number": (b"1" * 4000, int("1" * 4000)),
    "lone-surrogate": (b'"\\ud800"', "\ud800"),
}


@on(EMBEDDED, REFERENCE)
def test_json_that_is_meant_to_hurt_ends_no_handler(place: Place) -> None:
    party = Party(place).start()
    for name, body in [*HOSTILE.items(), *((name, body) for name, (body, _) in LEGAL.items())]:
        given = {headers.ENCLOSED_MESSAGE_TYPES: "Ping", headers.CONTENT_TYPE: "application/json"}
        message = Message(id=name, headers=given, body=body, content_type="application/json")
        place.put(party.name, message)

    arrived = party.inbox.wait_for(len(LEGAL))
    copies = party.errors.wait_for(len(HOSTILE))

    assert {a.id: a.body for a in arrived} == {name: value for name, (_, value) in LEGAL.items()}
    assert {copy.id: copy.body for copy in copies} == HOSTILE
    fine = party.endpoint.send_local("Ping", 1, delay=SOON)
    party.inbox.wait_for_id(fine.message_id)
    assert party.telemetry.counted("pump_failures") == 0


@on(EMBEDDED, REFERENCE)
def test_control_messages_that_are_meant_to_hurt_end_no_satellite(place: Place) -> None:
    party = Party(place).start()
    control = f"{party.name}.TimeoutsDispatcher"
    hostile = {
        **HOSTILE,
        "deep-keys": b'{"token": "", "keys": ' + b"[" * DEPTH,
        "endless-due": b'{"token": "", "keys": [[' + b"9" * 100_000 + b', "a"]]}',
        "keys-twice": b'{"token": "", "keys": [], "keys": 5}',
    }
    for name, body in hostile.items():
        place.put(control, Message(id=name, headers={headers.CHUNK_VERSION: "1"}, body=body))

    copies = party.errors.wait_for(len(hostile))

    assert {copy.id: copy.body for copy in copies} == hostile
    assert all(copy.headers[headers.FAILED_QUEUE] == control for copy in copies)
    fine = party.endpoint.send_local("Ping", 1, delay=SOON)
    party.inbox.wait_for_id(fine.message_id)
