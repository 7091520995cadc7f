"""A message arrives as it was sent, with any content."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from timeoutmgr.contracts import Receiver, SendResult, TransportSession
from timeoutmgr.message import headers as names
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.testing.conformance.transports.suite import TransportSuite, receive

BODIES = {
    "empty": b"",
    "all bytes": bytes(range(256)),
    "no text": b"\xff\xfe\x00\xd8",
    "NUL": b"\x00" * 100,
    "line ends": b"\r\n\r\n\n\r",
    "quotes": b"'\"\\%s%%_{}--;",
    "JSON": b'{"body": "eA==", "properties": {"body_encoding": "base64"}}',
    "no JSON": b'{"a": [1, 2',
    "compressed": gzip.compress(bytes(2_000)),
    "pickled": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.",
    "one more than a frame": b"x" * 131_073,
    "big": bytes(range(256)) * 8_000,
}
HEADERS = {
    "none": {},
    "empty value": {"empty": ""},
    "unicode": {"Grüße": "Ω \U0001f600", "é": "e\u0301", "日本": "語"},
    "white space": {" lead": " \t", "trail ": "\r\n"},
    "quotes": {"a'\"\\": "'; DROP TABLE x; --"},
    "control characters": {"bell": "\x07\x1b[31m"},
    "case": {"Name": "1", "name": "2", "NAME": "3"},
    "of other protocols": {"redelivered": "True", "delivery_tag": "1", "expiration": "1"},
    "steering lookalikes": {"x-mine": "kept", "x-deathly": "kept", "ccc": "kept"},
    "numbers as text": {"n": "1", "float": "1e5", "bool": "True", "null": "null"},
    "many": {f"header {number}": f"value {number}" for number in range(200)},
    "long": {"long": "x" * 20_000},
    "ours": {
        names.CORRELATION_ID: "c" * 300,
        names.REPLY_TO: "elsewhere",
        names.ENCLOSED_MESSAGE_TYPES: "Sales.OrderPlaced, Sales; Sales.Event",
    },
}


class TransportContents(TransportSuite):
    """Bodies, headers, ids and types."""

    def _send_and_receive(
        self, session: TransportSession, receiver: Receiver, queue: str, message: Message
    ) -> Message:
        assert session.send([Outgoing(queue, message)]) == [SendResult.CONFIRMED]
        (received,) = receive(receiver, 1)
        assert received.defect is None
        assert received.queue == queue
        assert received.delivery_count == 0
        receiver.ack([received])
        return received.message

    @pytest.mark.parametrize("kind", BODIES)
    def test_a_body_arrives_unchanged(
        self, session: TransportSession, receiver: Receiver, queue: str, kind: str
    ) -> None:
        message = Message(id="a", body=BODIES[kind])

        assert self._send_and_receive(session, receiver, queue, message) == message

    @pytest.mark.parametrize("kind", HEADERS)
    def test_headers_are_kept_whole(
        self, session: TransportSession, receiver: Receiver, queue: str, kind: str
    ) -> None:
        message = Message(id="a", headers=HEADERS[kind])

        assert self._send_and_receive(session, receiver, queue, message) == message

    @pytest.mark.parametrize(
        "text", ["a", " a ", "ünï \U0001f600", "x" * 200, "o'clock", "a/b?c=d&e", "0"]
    )
    def test_an_id_is_kept(
        self, session: TransportSession, receiver: Receiver, queue: str, text: str
    ) -> None:
        message = Message(id=text)

        assert self._send_and_receive(session, receiver, queue, message) == message

    @pytest.mark.parametrize(
        ("content_type", "encoding"),
        [
            ("application/json", "utf-8"),
            ("application/x; q=1 ", "binary"),
            ("application/x-python-serialize", "latin-1"),
            ("text/plain", "gzip"),
            ("no type at all", "ü"),
        ],
    )
    def test_content_types_arrive_unread(
        self,
        session: TransportSession,
        receiver: Receiver,
        queue: str,
        content_type: str,
        encoding: str,
    ) -> None:
        message = Message(
            id="a", body=b"\xff\x00", content_type=content_type, content_encoding=encoding
        )

        assert self._send_and_receive(session, receiver, queue, message) == message

    @pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
    def test_headers_that_steer_a_broker_are_not_passed_on(
        self,
        session: TransportSession,
        receiver: Receiver,
        queue: str,
        spell: Callable[[str], str],
    ) -> None:
        steering = {spell(name): queue for name in names.BROKER_HEADERS}
        message = Message(id="a", headers={**steering, "kept": "yes"}, body=b"body")

        received = self._send_and_receive(session, receiver, queue, message)

        assert received == Message(id="a", headers={"kept": "yes"}, body=b"body")
        assert receiver.receive(1, 0) == []

    def test_the_senders_id_outranks_an_id_in_the_headers(
        self, session: TransportSession, receiver: Receiver, queue: str
    ) -> None:
        message = Message(id="mine", headers={names.MESSAGE_ID: "of the original"})

        assert self._send_and_receive(session, receiver, queue, message).id == "mine"
