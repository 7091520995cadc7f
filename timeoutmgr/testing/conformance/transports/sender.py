"""A send returns the result of each message, in order; a confirmed message has arrived."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from struct import pack

import pytest

from timeoutmgr.contracts import Receiver, SendResult, TransportSession
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers as names
from timeoutmgr.message.foreign import AMQP, KOMBU, Foreign, QueueDeclaration, Route, outgoing_to
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import undone
from timeoutmgr.testing.conformance.transports.suite import (
    TransportSuite,
    ids,
    messages,
    numbers,
    put,
    receive,
    receive_all,
    with_properties,
)

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
    """Bodies, headers, ids and types arrive unchanged, whatever they contain."""

    def _send_and_receive(
        self, session: TransportSession, receiver: Receiver, queue: str, message: Message
    ) -> Message:
        assert session.send([Outgoing(queue, message)]) == [SendResult.CONFIRMED]
        (received,) = receive(receiver, 1)
        assert received.defect is None
        assert received.queue == queue
        assert received.delivery_count == 0
        receiver.ack([received])
        return with_properties(received.message)

    @pytest.mark.parametrize("kind", BODIES)
    def test_a_body_arrives_unchanged(
        self, session: TransportSession, receiver: Receiver, queue: str, kind: str
    ) -> None:
        message = Message(id="a", body=BODIES[kind])

        assert self._send_and_receive(session, receiver, queue, message) == with_properties(message)

    @pytest.mark.parametrize("kind", HEADERS)
    def test_headers_are_kept_whole(
        self, session: TransportSession, receiver: Receiver, queue: str, kind: str
    ) -> None:
        message = Message(id="a", headers=HEADERS[kind])

        assert self._send_and_receive(session, receiver, queue, message) == with_properties(message)

    @pytest.mark.parametrize(
        "text", ["a", " a ", "ünï \U0001f600", "x" * 200, "o'clock", "a/b?c=d&e", "0"]
    )
    def test_an_id_is_kept(
        self, session: TransportSession, receiver: Receiver, queue: str, text: str
    ) -> None:
        message = Message(id=text)

        assert self._send_and_receive(session, receiver, queue, message) == with_properties(message)

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

        assert self._send_and_receive(session, receiver, queue, message) == with_properties(message)

    @pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
    def test_headers_that_steer_a_broker_are_not_passed_on(
        self, session: TransportSession, receiver: Receiver, queue: str, spell: Callable[[str], str]
    ) -> None:
        steering = {spell(name): queue for name in names.BROKER_HEADERS}
        message = Message(id="a", headers={**steering, "kept": "yes"}, body=b"body")

        received = self._send_and_receive(session, receiver, queue, message)

        kept = Message(id="a", headers={"kept": "yes"}, body=b"body")
        assert received == with_properties(kept)
        assert receiver.receive(1, 0) == []

    def test_the_senders_id_outranks_an_id_in_the_headers(
        self, session: TransportSession, receiver: Receiver, queue: str
    ) -> None:
        message = Message(id="mine", headers={names.MESSAGE_ID: "of the original"})

        assert self._send_and_receive(session, receiver, queue, message).id == "mine"


class TransportSender(TransportSuite):
    """``send``."""

    def test_send_accepts_an_empty_list(self, session: TransportSession) -> None:
        assert session.send([]) == []

    @pytest.mark.parametrize("count", [1, 2, 499, 1_001])
    def test_a_batch_is_confirmed_and_arrives_in_order(
        self, session: TransportSession, queue: str, receiver: Receiver, count: int
    ) -> None:
        names = numbers(count)

        put(session, queue, *names)

        assert ids(receive_all(receiver)) == names

    def test_sends_arrive_in_the_order_of_the_calls(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        for name in numbers(30):
            put(session, queue, name)

        assert ids(receive(receiver, 30)) == numbers(30)

    def test_each_message_goes_to_its_own_queue(
        self, session: TransportSession, new_queue: Callable[[], str]
    ) -> None:
        queues = [new_queue() for _ in range(3)]
        outgoing = [
            Outgoing(queues[number % 3], Message(id=name))
            for number, name in enumerate(numbers(30))
        ]

        assert session.send(outgoing) == [SendResult.CONFIRMED] * 30

        for number, queue in enumerate(queues):
            with closing(session.receiver(queue, prefetch=50)) as receiver:
                assert ids(receive_all(receiver)) == numbers(30)[number::3]

    @pytest.mark.parametrize("lost", [[0], [9], [4, 5], [0, 3, 9], list(range(10))])
    def test_a_message_without_queue_is_unroutable_and_its_neighbours_arrive(
        self, session: TransportSession, queue: str, name: str, lost: list[int]
    ) -> None:
        outgoing = messages(queue, *numbers(10))
        for number in lost:
            outgoing[number] = Outgoing(name, outgoing[number].message)

        results = session.send(outgoing)

        wanted = [
            SendResult.UNROUTABLE if number in lost else SendResult.CONFIRMED
            for number in range(10)
        ]
        assert results == wanted
        assert session.count(queue) == 10 - len(lost)

    def test_a_send_finds_a_queue_created_after_a_miss(
        self, session: TransportSession, other_session: TransportSession, name: str
    ) -> None:
        assert session.send(messages(name, "a")) == [SendResult.UNROUTABLE]

        other_session.create_queues([name])

        assert session.send(messages(name, "a")) == [SendResult.CONFIRMED]

    def test_a_send_misses_a_deleted_queue(self, session: TransportSession, name: str) -> None:
        session.create_queues([name])
        put(session, name, "a")

        session.delete_queues([name])

        assert session.send(messages(name, "b")) == [SendResult.UNROUTABLE]

    def test_two_messages_of_one_id_both_arrive(
        self, session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(session, queue, "same", "same")

        received = receive(receiver, 2)
        receiver.ack(received[:1])
        receiver.close()

        assert session.count(queue) == 1

    @pytest.mark.parametrize(
        "bad",
        [
            Message(id=""),
            Message(id="i" * 256),
            Message(id="half \ud800"),
            Message(id="a", content_type="t" * 256),
            Message(id="a", headers={"number": 1}),  # type: ignore[dict-item]  # hence bad
        ],
        ids=["no id", "long id", "half a character", "long type", "header is no text"],
    )
    def test_an_unsendable_message_is_refused_before_any_send(
        self, session: TransportSession, queue: str, bad: Message
    ) -> None:
        with pytest.raises(InvalidMessage):
            session.send([*messages(queue, "good"), Outgoing(queue, bad)])

        assert session.count(queue) == 0
        put(session, queue, "after")

    def test_messages_of_another_process_arrive(
        self, other_session: TransportSession, queue: str, receiver: Receiver
    ) -> None:
        put(other_session, queue, "a")

        assert ids(receive(receiver, 1)) == ["a"]


_FOREIGN_BODY = b"\x80\x04\x00no text\xff"


@needs(sends_foreign=True)
class ForeignMessages(TransportSuite):
    """``send`` of messages with a route."""

    @pytest.fixture
    def foreign_session(self, session: TransportSession) -> TransportSession:
        """Override this if foreign messages go to another broker: return a session there."""
        return session

    @pytest.fixture
    def foreign_queue(self, foreign_session: TransportSession, name: str) -> Iterator[str]:
        """Return the name of a queue for foreign messages; it does not exist yet."""
        yield f"{name}-foreign"
        foreign_session.delete_queues([f"{name}-foreign"])

    def test_a_foreign_message_goes_to_the_queue_that_its_route_declares(
        self, session: TransportSession, foreign_session: TransportSession, foreign_queue: str
    ) -> None:
        route = Route("", foreign_queue, (QueueDeclaration(foreign_queue),))

        assert session.send([self._foreign("f", route)]) == [SendResult.CONFIRMED]

        # On kombu's virtual transports only the process that declared a queue knows it.
        foreign_session.create_queues([foreign_queue])
        with closing(foreign_session.receiver(foreign_queue, prefetch=1)) as receiver:
            [arrived] = receive(receiver, 1)
        assert (arrived.message.id, arrived.message.body) == ("f", _FOREIGN_BODY)
        assert arrived.message.content_type == "application/x-task"
        assert arrived.message.headers["lang"] == "py"
        assert not {names.ROUTE, names.FOREIGN} & set(arrived.message.headers)

    def test_the_results_of_a_mixed_batch_are_in_the_order_of_the_messages(
        self,
        session: TransportSession,
        foreign_session: TransportSession,
        queue: str,
        foreign_queue: str,
        name: str,
    ) -> None:
        route = Route("", foreign_queue, (QueueDeclaration(foreign_queue),))
        own, missing = messages(queue, "a", "b"), messages(name, "c")
        batch = [own[0], self._foreign("f", route), *missing, self._foreign("g", route), own[1]]

        results = session.send(batch)

        foreign_session.create_queues([foreign_queue])
        confirmed = SendResult.CONFIRMED
        assert results == [confirmed, confirmed, SendResult.UNROUTABLE, confirmed, confirmed]
        for session_, where, expected in (
            (session, queue, ["a", "b"]),
            (foreign_session, foreign_queue, ["f", "g"]),
        ):
            with closing(session_.receiver(where, prefetch=9)) as receiver:
                assert ids(receive_all(receiver)) == expected

    def test_a_message_for_another_kind_of_broker_is_refused_before_any_send(
        self, session: TransportSession, queue: str, foreign_queue: str
    ) -> None:
        route = Route("", foreign_queue, (QueueDeclaration(foreign_queue),))
        other = AMQP if self.foreign_codec == KOMBU else KOMBU

        with pytest.raises(InvalidMessage):
            session.send([*messages(queue, "good"), self._foreign("f", route, other)])

        assert session.count(queue) == 0

    @needs(transactions=True)
    def test_a_rollback_undoes_a_foreign_message_and_its_queue(
        self, session: TransportSession, foreign_queue: str
    ) -> None:
        route = Route("", foreign_queue, (QueueDeclaration(foreign_queue),))

        with undone(session.transaction()) as transaction:
            session.send([self._foreign("f", route)], transaction=transaction)

        assert session.send(messages(foreign_queue, "a")) == [SendResult.UNROUTABLE]

    def _foreign(self, message_id: str, route: Route, codec: str = "") -> Outgoing:
        codec = codec or self.foreign_codec
        foreign = Foreign(route, codec, _PROPERTIES[codec](message_id), _FOREIGN_BODY)
        return outgoing_to(
            route.destination,
            Message(id=message_id, headers=foreign.as_headers(), body=_FOREIGN_BODY),
        )


def _of_amqp(message_id: str) -> bytes:
    """Return an AMQP property list with a type, headers and *message_id*."""
    table = _short("lang") + b"S" + pack(">I", 2) + b"py"
    given = _short("application/x-task") + pack(">I", len(table)) + table + _short(message_id)
    return pack(">H", 0x8000 | 0x2000 | 0x0080) + given


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _of_kombu(message_id: str) -> bytes:
    return json.dumps(
        {
            "content-type": "application/x-task",
            "content-encoding": "binary",
            "headers": {"lang": "py"},
            "properties": {"message_id": message_id, "priority": 3},
        }
    ).encode()


_PROPERTIES: dict[str, Callable[[str], bytes]] = {AMQP: _of_amqp, KOMBU: _of_kombu}
