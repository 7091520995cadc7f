"""Messages of an NServiceBus endpoint are understood; an unknown message does no harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote, urlsplit

import amqp
import pytest

from tests.acceptance.gate import Gate
from tests.acceptance.matrix import EACH_ONCE, REFERENCE, REPRESENTATIVE, SERVED, Pair, matrix
from tests.acceptance.place import LATER, PROMPT, SOON, Party, Place
from tests.support.waiting import eventually
from timeoutmgr import TimeoutState
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_micros, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import id_of_timeout
from timeoutmgr.message.routes import timeout_id as id_at

NO_SAGA = "00000000-0000-0000-0000-000000000000"


def wire(delay: timedelta) -> str:
    """Return the instant *delay* from now as it travels."""
    return to_wire(to_micros(datetime.now(UTC) + delay))


def foreign(destination: str, expire: str, **more: str) -> dict[str, str]:
    """Return the headers of a delayed message as an NServiceBus 7 endpoint writes them."""
    return {
        "NServiceBus.MessageId": "b2d3a9c6-6f0d-4c7e-a0f0-b1c40094b1f5",
        "NServiceBus.MessageIntent": "Send",
        "NServiceBus.ConversationId": "2b1fdb1c-8f8a-4b4b-9d5d-b1c40094b1f5",
        "NServiceBus.CorrelationId": "b2d3a9c6-6f0d-4c7e-a0f0-b1c40094b1f5",
        "NServiceBus.ReplyToAddress": "nobody",
        "NServiceBus.OriginatingMachine": "HOST",
        "NServiceBus.OriginatingEndpoint": "Sales",
        "$.diagnostics.originating.hostid": "0a1b",
        "NServiceBus.ContentType": "text/json",
        "NServiceBus.EnclosedMessageTypes": (
            "Sales.Messages.Ping, Sales.Messages, Version=1.0.0.0, Culture=neutral, "
            "PublicKeyToken=null"
        ),
        "NServiceBus.Version": "7.8.6",
        "NServiceBus.TimeSent": "2026-01-02 03:04:05:678901 Z",
        "NServiceBus.Timeout.RouteExpiredTimeoutTo": destination,
        "NServiceBus.Timeout.Expire": expire,
        "NServiceBus.SagaId": NO_SAGA,
        **more,
    }


@matrix(pairs=SERVED)
@pytest.mark.behaviour(17, 18, 24)
def test_a_delayed_message_of_an_nservicebus_endpoint_is_delivered(party: Party) -> None:
    given = foreign(party.name, wire(SOON))
    body = '\ufeff{"OrderId": 7}'.encode()

    party.place.put(
        f"{party.name}.Timeouts",
        Message(
            id=given["NServiceBus.MessageId"], headers=given, body=body, content_type="text/json"
        ),
    )

    arrival = party.inbox.wait_for_id(given["NServiceBus.MessageId"])
    assert 0 <= arrival.lateness < PROMPT
    assert arrival.body == {"OrderId": 7}
    assert arrival.message.body == body
    assert arrival.headers["NServiceBus.TimeSent"] == "2026-01-02 03:04:05:678901 Z"
    assert not {headers.EXPIRE, headers.DESTINATION} & set(arrival.headers)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(28)
def test_without_a_destination_the_reply_address_serves(party: Party) -> None:
    given = foreign(party.name, wire(SOON))
    given["NServiceBus.ReplyToAddress"] = given.pop("NServiceBus.Timeout.RouteExpiredTimeoutTo")

    party.place.put(f"{party.name}.Timeouts", Message(id="reply", headers=given))

    assert party.inbox.wait_for_id("reply").lateness >= 0


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(57, 58)
def test_a_single_id_that_was_dispatched_or_never_stored_is_no_error(party: Party) -> None:
    sent = party.endpoint.send_local("Ping", 1, delay=2 * SOON)
    party.inbox.wait_for_id(sent.message_id)
    party.wait_until_dispatched(sent.id)
    assert sent.id is not None

    for timeout_id in (sent.id, "of-nobody", sent.id):
        party.place.put(f"{party.name}.TimeoutsDispatcher", single(timeout_id))

    barrier = party.endpoint.send_local("Ping", 2, delay=SOON)
    party.inbox.wait_for_id(barrier.message_id)
    party.telemetry.wait_for("timeouts_gone", 3)
    assert len(party.inbox.of(sent.message_id)) == 1
    assert party.place.session.count(party.config.error_queue) == 0


@matrix(pairs=EACH_ONCE, all_modes=True)
@pytest.mark.behaviour(57)
def test_a_control_message_with_a_single_id_dispatches_it(place: Place) -> None:
    gate = Gate(place.persistence())
    party = Party(place, persistence=gate)
    held = gate.pause_after_next_empty_peek()
    party.start()
    held.wait_until_reached()  # so that the poller does not claim the timeout first
    # The delay outlasts the storing transaction, in which the satellite dispatches due timeouts.
    sent = party.endpoint.send_local("Ping", 1, delay=10 * SOON)
    party.wait_until_stored(sent.id)
    assert sent.id is not None
    eventually(lambda: sent.due is not None and datetime.now(UTC) > sent.due, "it is due")

    place.put(f"{party.name}.TimeoutsDispatcher", single(sent.id))

    assert party.inbox.wait_for_id(sent.message_id).lateness >= 0
    held.go_on()
    party.wait_until_dispatched(sent.id)
    assert len(party.inbox.arrived) == 1


@matrix(pairs=REPRESENTATIVE, all_modes=True)
@pytest.mark.behaviour(26, 57)
def test_a_control_message_for_a_later_timeout_sends_nothing_early(party: Party) -> None:
    sent = party.endpoint.send_local("Ping", 1, delay=12 * SOON)
    party.wait_until_stored(sent.id)
    assert sent.id is not None

    with party.telemetry.expect("timeouts_gone", 1):
        party.place.put(f"{party.name}.TimeoutsDispatcher", single(sent.id))

    assert party.inbox.wait_for_id(sent.message_id).lateness >= 0


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(30)
def test_a_clear_message_clears_only_its_saga(party: Party) -> None:
    saga = "7c1fdb1c-8f8a-4b4b-9d5d-b1c40094b1f5"
    kept = party.endpoint.send_local("Ping", 1, delay=LATER)
    cleared = party.endpoint.send_local("Ping", 2, delay=LATER, saga_id=saga)
    party.wait_until_stored(kept.id, cleared.id)

    for number, saga_id in enumerate([NO_SAGA, saga]):
        clear = {"NServiceBus.ClearTimeouts": "True", "NServiceBus.SagaId": saga_id}
        party.place.put(f"{party.name}.Timeouts", Message(id=f"clear-{number}", headers=clear))

    copy = party.errors.wait_for_id("clear-0")
    assert "Invalid saga id" in copy.headers[headers.EXCEPTION_MESSAGE]
    eventually(lambda: party.endpoint.timeouts.count() == 1, "the saga's timeout is cleared")
    assert [view.id for view in party.endpoint.timeouts.list()] == [kept.id]


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(31)
@pytest.mark.parametrize("wrong", [-timedelta(seconds=60), timedelta(seconds=60)])
def test_a_clear_goes_by_the_queue_whatever_clocks_its_senders_have(
    party: Party, wrong: timedelta
) -> None:
    saga = "7c1fdb1c-8f8a-4b4b-9d5d-b1c40094b1f5"

    def sent(name: str, offset: timedelta, **more: str) -> None:
        given = {"NServiceBus.TimeSent": wire(offset), "NServiceBus.SagaId": saga}
        given |= {"NServiceBus.MessageId": name, **more}
        party.place.put(f"{party.name}.Timeouts", Message(id=name, headers=given))

    late = {
        "NServiceBus.Timeout.Expire": wire(LATER),
        "NServiceBus.Timeout.RouteExpiredTimeoutTo": party.name,
    }
    sent("ahead", wrong, **late)
    sent("clear", -wrong, **{"NServiceBus.ClearTimeouts": "True"})
    sent("behind", wrong, **late)

    party.wait_until_stored(id_at(party.name, "behind"))
    assert [view.message_id for view in party.endpoint.timeouts.list()] == ["behind"]
    found = party.endpoint.timeouts.show(id_at(party.name, "ahead"))
    assert found == (TimeoutState.CANCELLED, None)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(30)
def test_clearing_a_saga_leaves_a_delayed_retry_which_keeps_its_saga(party: Party) -> None:
    saga = "7c1fdb1c-8f8a-4b4b-9d5d-b1c40094b1f5"
    cleared = party.endpoint.send_local("Ping", 1, delay=LATER, saga_id=saga)
    again = {**foreign(party.name, wire(LATER)), "NServiceBus.SagaId": saga}
    again |= {
        "NServiceBus.MessageId": "retried",
        "NServiceBus.Retries.Timestamp": wire(timedelta()),
    }
    retry = Message(id="retried", headers=again, body=b"2")
    party.place.put(f"{party.name}.Timeouts", retry)
    retry_id = id_of_timeout(party.name, retry)
    party.wait_until_stored(cleared.id, retry_id)

    clear = {"NServiceBus.ClearTimeouts": "True", "NServiceBus.SagaId": saga}
    party.place.put(f"{party.name}.Timeouts", Message(id="clear", headers=clear))

    eventually(lambda: party.endpoint.timeouts.count() == 1, "the saga's timeout is cleared")
    party.endpoint.timeouts.send_now(retry_id)
    assert party.inbox.wait_for_id("retried").headers["NServiceBus.SagaId"] == saga


HOSTILE: dict[str, dict[str, str | None]] = {
    "no-expire": {"NServiceBus.Timeout.Expire": None},
    "empty-expire": {"NServiceBus.Timeout.Expire": ""},
    "iso-expire": {"NServiceBus.Timeout.Expire": "2026-01-02T03:04:05Z"},
    "impossible-date": {"NServiceBus.Timeout.Expire": "2026-02-30 03:04:05:678901 Z"},
    "digits-of-another-script": {"NServiceBus.Timeout.Expire": "\uff12026-01-02 03:04:05:678901 Z"},
    "saga-with-control-signs": {"NServiceBus.SagaId": "a\x07b"},
    "endless-saga": {"NServiceBus.SagaId": "s" * 300},
    "no-destination": {
        "NServiceBus.Timeout.RouteExpiredTimeoutTo": None,
        "NServiceBus.ReplyToAddress": None,
    },
    "endless-destination": {"NServiceBus.Timeout.RouteExpiredTimeoutTo": "d" * 300},
    "satellite-as-destination": {
        "NServiceBus.Timeout.RouteExpiredTimeoutTo": "x.TimeoutsDispatcher"
    },
    "brokers-own-destination": {"NServiceBus.Timeout.RouteExpiredTimeoutTo": "amq.direct"},
    "malformed-wake": {"TimeoutManager.Wake": "soon"},
}


@matrix(pairs=SERVED, all_modes=True)
@pytest.mark.behaviour(27, 28, 29, 35)
def test_a_message_that_is_not_a_timeout_goes_to_the_error_queue_and_the_rest_goes_on(
    party: Party,
) -> None:
    for name, changed in HOSTILE.items():
        given: dict[str, str | None] = {**foreign(party.name, wire(SOON)), **changed}
        given["NServiceBus.MessageId"] = name
        kept = {key: value for key, value in given.items() if value is not None}
        party.place.put(f"{party.name}.Timeouts", Message(id=name, headers=kept, body=b"\xff\x00"))
    fine = party.endpoint.send_local("Ping", 1, delay=SOON)

    copies = {copy.id: copy for copy in party.errors.wait_for(len(HOSTILE))}

    party.inbox.wait_for_id(fine.message_id)
    assert set(copies) == set(HOSTILE)
    for copy in copies.values():
        assert copy.body == b"\xff\x00"
        assert copy.headers[headers.FAILED_QUEUE] == f"{party.name}.Timeouts"
        assert copy.headers["NServiceBus.OriginatingEndpoint"] == "Sales"
        assert copy.headers[headers.EXCEPTION_MESSAGE]
    assert len(party.inbox.arrived) == 1


GARBAGE = {
    "no-order": Message(id="no-order", body=b"hello"),
    "empty-id": Message(id="empty-id", headers={"Timeout.Id": ""}),
    "of-a-later-version": Message(
        id="of-a-later-version", headers={"TimeoutManager.Chunk": "2"}, body=b"{}"
    ),
    "no-json": Message(id="no-json", headers={"TimeoutManager.Chunk": "1"}, body=b"\xff{"),
    "deep": Message(id="deep", headers={"TimeoutManager.Chunk": "1"}, body=b"[" * 200_000),
    "no-keys": Message(id="no-keys", headers={"TimeoutManager.Chunk": "1"}, body=b'{"token": ""}'),
    "wrong-keys": Message(
        id="wrong-keys",
        headers={"TimeoutManager.Chunk": "1"},
        body=b'{"token": "t", "keys": [[true, "x"]]}',
    ),
    "number-as-token": Message(
        id="number-as-token",
        headers={"TimeoutManager.Chunk": "1"},
        body=b'{"token": 1, "keys": []}',
    ),
}
BENIGN = {
    "unknown-token": {"token": "nobody's", "keys": [[1, "unknown"], [2, "ünknown"]]},
    "huge-number": {"token": "nobody's", "keys": [[10**30, "unknown"]]},
    "negative": {"token": "", "keys": [[-(10**17), "unknown"]]},
    "endless-id": {"token": "", "keys": [[1, "x" * 5000]]},
    "nul": {"token": "\x00", "keys": [[1, "\x00"]]},
    "no-keys-at-all": {"token": "nobody's", "keys": []},
}


@matrix(pairs=SERVED)
def test_garbage_among_control_messages_does_no_harm(party: Party) -> None:
    control = f"{party.name}.TimeoutsDispatcher"
    for message in GARBAGE.values():
        party.place.put(control, message)
    for name, body in BENIGN.items():
        chunk = {"TimeoutManager.Chunk": "1"}
        party.place.put(control, Message(id=name, headers=chunk, body=json.dumps(body).encode()))
    fine = party.endpoint.send_local("Ping", 1, delay=SOON)

    party.inbox.wait_for_id(fine.message_id)

    copies = {copy.id: copy for copy in party.errors.wait_for(len(GARBAGE))}
    assert set(GARBAGE) <= set(copies) <= set(GARBAGE) | set(BENIGN)
    assert all(c.headers[headers.FAILED_QUEUE] == control for c in copies.values())
    assert copies["deep"].body == GARBAGE["deep"].body
    party.wait_until_dispatched(fine.id)


@pytest.fixture
def stranger(rabbitmq_url: str) -> Iterator[amqp.Channel]:
    """A channel of py-amqp's own."""
    parts = urlsplit(rabbitmq_url)
    with amqp.Connection(
        f"{parts.hostname}:{parts.port or 5672}",
        userid=parts.username,
        password=parts.password,
        virtual_host=unquote(parts.path[1:]),
    ) as connection:
        yield connection.channel()


@matrix(pairs=[REFERENCE, Pair("rabbitmq", "sqlite")])
@pytest.mark.behaviour(21)
def test_foreign_messages_in_the_brokers_queues_do_no_harm(
    party: Party, stranger: amqp.Channel
) -> None:
    given = foreign(party.name, wire(SOON))
    queues = [f"{party.name}.Timeouts", f"{party.name}.TimeoutsDispatcher", party.name]
    strange: dict[str, dict[str, object]] = {
        "bytes": {**given, "raw": b"\xff\xfe"},
        "table": {**given, "nested": {"a": 1}},
        "nothing": {},
    }
    for queue in queues:
        for name, table in strange.items():
            table = {key: value for key, value in table.items() if key != "NServiceBus.MessageId"}
            message = amqp.Message(
                name.encode(), message_id=f"{name}-{queue}", application_headers=table
            )
            stranger.basic_publish(message, routing_key=queue)
    packed = {**given, "compression": "application/x-gzip", "NServiceBus.MessageId": "packed"}
    stranger.basic_publish(
        amqp.Message(b"no gzip", content_type="text/plain", application_headers=packed),
        routing_key=queues[0],
    )

    copies = party.errors.wait_for(3 + 3 + 2)  # the handler accepts the empty message

    assert {b"bytes", b"table", b"nothing"} == {copy.body for copy in copies}
    fine = party.endpoint.send_local("Ping", 1, delay=SOON)
    party.inbox.wait_for_id(fine.message_id)
    assert party.inbox.wait_for_id("packed").message.body == b"no gzip"


def single(timeout_id: str) -> Message:
    """Return the control message with a single id, as an NServiceBus endpoint sends it."""
    return Message(
        id=f"control-{timeout_id}",
        headers={
            "Timeout.Id": timeout_id,
            "NServiceBus.ControlMessage": "True",
            "NServiceBus.MessageIntent": "Send",
        },
    )


@matrix(pairs=[Pair("sqlite", "sqlite")])
def test_headers_have_the_names_that_nservicebus_gives_them(place: Place) -> None:
    assert headers.EXPIRE == "NServiceBus.Timeout.Expire"
    assert headers.DESTINATION == "NServiceBus.Timeout.RouteExpiredTimeoutTo"
    assert headers.CLEAR_TIMEOUTS == "NServiceBus.ClearTimeouts"
    assert headers.TIMEOUT_ID == "Timeout.Id"
    assert headers.RELATED_TO_TIMEOUT == "NServiceBus.RelatedToTimeoutId"
    assert headers.FAILED_QUEUE == "NServiceBus.FailedQ"
