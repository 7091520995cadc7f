"""AMQP 0-9-1 frames: writing many at a time, and reading without ever failing on their content.

py-amqp writes each message separately, and its read loop raises if a property is not UTF-8: such a
message would come back for ever and block its queue. See the AMQP 0-9-1 specification, sections
2.3.5 and 4.2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from struct import Struct, pack, unpack_from
from struct import error as StructError
from typing import Any

from amqp import spec
from amqp.basic_message import Message as Content
from amqp.exceptions import UnexpectedFrame
from amqp.serialization import loads

from timeoutmgr.transport.envelope import Envelope

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_OVERHEAD = 8

_HEAD = Struct(">BHI")
_SETTLE = Struct(">BHIHHQBB")
_LONG = Struct(">I")
_NUMBER = Struct(">ci")
_DELIVERY = Struct(">QB")
_STRING = ord("S")
_PERSISTENT = 2
_IS_MANDATORY = b"\x01"
_WITH_CONTENT = frozenset({spec.Basic.Return, spec.Basic.Deliver, spec.Basic.GetOk})
_CLOSES = frozenset({spec.Connection.Close, spec.Channel.Close})

# The properties of a basic message in the order of their flags, and how each is written:
# short string, table, octet, 64-bit number.
PROPERTIES = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("application_headers", "F"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "L"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)


def settle_frame(channel: int, method: tuple[int, int], tag: int, bit: bool) -> bytes:
    """Return a ``basic.ack`` (bit: multiple) or ``basic.reject`` (bit: requeue)."""
    return _SETTLE.pack(METHOD, channel, 13, *method, tag, bit, FRAME_END)


def publish_method(routing_key: str, exchange: str = "") -> bytes:
    """Return the payload of a mandatory publish; the default exchange routes to queue names."""
    return _publish_to(exchange) + _short(routing_key.encode()) + _IS_MANDATORY


@lru_cache(maxsize=256)
def _publish_to(exchange: str) -> bytes:
    return pack(">HHH", *spec.Basic.Publish, 0) + _short(exchange.encode())


def delivered_tag(deliver: bytes) -> tuple[int, bool]:
    """Return the tag in the payload of a ``basic.deliver``, and whether it is a redelivery."""
    tag, bits = _DELIVERY.unpack_from(deliver, 5 + deliver[4])
    return tag, bool(bits & 1)


def delivered_key(deliver: bytes) -> str:
    """Return the routing key, which need not be UTF-8, in the payload of a ``basic.deliver``."""
    at = 4 + 1 + deliver[4]  # after the method's two numbers and the consumer's tag
    at += 8 + 1  # the delivery's tag, and whether it is a redelivery
    at += 1 + deliver[at]  # the exchange
    return deliver[at + 1 : at + 1 + deliver[at]].decode("utf-8", "replace")


def content_header(envelope: Envelope, size: int, expiration: str | None = None) -> bytes:
    """Return the payload of the content header of a persistent message with *size* bytes.

    *expiration* is milliseconds; None leaves the message in its queue until it is received.
    """
    flags = 0x8000 | 0x4000 | 0x2000 | 0x1000 | 0x0080
    fields: list[bytes] = []
    for name, value in envelope.headers.items():
        text = value.encode()
        fields += (_string_field(name, len(text)), text)
    for name, number in envelope.numbers.items():
        fields += (_short(name.encode()), _NUMBER.pack(b"I", number))
    table = b"".join(fields)
    parts = [
        _short(envelope.content_type.encode()),
        _short(envelope.content_encoding.encode()),
        _LONG.pack(len(table)),
        table,
        bytes((_PERSISTENT,)),
    ]
    if envelope.correlation_id is not None:
        flags |= 0x0400
        parts.append(_short(envelope.correlation_id.encode()))
    if envelope.reply_to is not None:
        flags |= 0x0200
        parts.append(_short(envelope.reply_to.encode()))
    if expiration is not None:
        flags |= 0x0100
        parts.append(_short(expiration.encode()))
    parts.append(_short(envelope.message_id.encode()))
    if envelope.type is not None:
        flags |= 0x0020
        parts.append(_short(envelope.type.encode()))
    return pack(">HHQH", spec.Basic.CLASS_ID, 0, size, flags) + b"".join(parts)


@lru_cache(maxsize=4096)
def _string_field(name: str, size: int) -> bytes:
    # Cached: a program writes a few header names again and again, most with values of one length.
    return _short(name.encode()) + b"S" + _LONG.pack(size)


def message_frames(channel: int, method: bytes, header: bytes, body: bytes, limit: int) -> bytes:
    """Return a publish as bytes for the wire; the body is cut into frames of at most *limit*."""
    parts = [
        _HEAD.pack(METHOD, channel, len(method)),
        method,
        b"\xce",
        _HEAD.pack(HEADER, channel, len(header)),
        header,
        b"\xce",
    ]
    room = limit - FRAME_OVERHEAD
    for start in range(0, len(body), room):
        piece = body[start : start + room]
        parts += (_HEAD.pack(BODY, channel, len(piece)), piece, b"\xce")
    return b"".join(parts)


def split_frames(buffer: bytes) -> tuple[list[tuple[int, int, bytes]], bytes]:
    """Return the complete frames at the start of *buffer*, and the rest of it."""
    frames = []
    position = 0
    while len(buffer) - position >= FRAME_OVERHEAD:
        kind, channel, size = _HEAD.unpack_from(buffer, position)
        end = position + 7 + size
        if end >= len(buffer):
            break
        if buffer[end] != FRAME_END:
            raise UnexpectedFrame(f"a frame ended with {buffer[end]:#04x}, not 0xce")
        frames.append((kind, channel, buffer[position + 7 : end]))
        position = end + 1
    return frames, buffer[position:] if position else buffer


class RawContent(Content):  # type: ignore[misc]  # py-amqp is untyped
    """A message as it came; *defect* names the unreadable properties."""

    defect: str | None = None
    _growing: BytesIO | None = None

    def inbound_body(self, buf: bytes) -> None:
        """Append a frame's payload to the body.

        py-amqp keeps the payloads of a body in a list and joins them. With large bodies, this
        fragments the allocator's arena of each reading thread: 50 MiB and more for bodies of 16
        MiB. A BytesIO grows in place, and gives its buffer away without a copy.
        """
        self.body_received += len(buf)
        self.ready = self.body_received >= self.body_size
        if self.ready and self._growing is None:
            self.body = buf
            return
        if self._growing is None:
            self._growing = BytesIO()
        self._growing.write(buf)
        if self.ready:
            self.body, self._growing = self._growing.getvalue(), None

    def _load_properties(self, class_id: int, buf: bytes, offset: int) -> int:
        self.properties, self.defect = read_properties(buf, offset)
        return len(buf)


def read_properties(buf: bytes, offset: int) -> tuple[dict[str, Any], str | None]:
    """Return the readable properties, and the reason why others are unreadable (or None)."""
    properties: dict[str, Any] = {}
    defects = []
    try:
        (flags,) = unpack_from(">H", buf, offset)
        offset += 2
        for name, kind in _given(flags):
            if kind == "s":
                size = buf[offset]
                text = buf[offset + 1 : offset + 1 + size]
                offset += 1 + size
                try:
                    properties[name] = text.decode()
                except UnicodeDecodeError:
                    defects.append(f"the property {name} is not UTF-8")
            elif kind == "F":
                (size,) = unpack_from(">I", buf, offset)
                try:
                    properties[name] = _strings(buf, offset + 4, offset + 4 + size)
                    if properties[name] is None:
                        (properties[name],), _ = loads("F", buf, offset)
                except Exception as error:  # another program's table can provoke any error
                    properties.pop(name, None)
                    defects.append(f"the headers cannot be read ({type(error).__name__}: {error})")
                offset += 4 + size
            elif kind == "o":
                properties[name] = buf[offset]
                offset += 1
            else:
                (properties[name],) = unpack_from(">Q", buf, offset)
                offset += 8
    except (IndexError, StructError) as error:
        defects.append(f"the property list is cut off ({error})")
    return properties, "; ".join(defects) or None


@lru_cache(maxsize=256)
def _given(flags: int) -> tuple[tuple[str, str], ...]:
    """Return the properties that *flags* announce, in order."""
    return tuple(one for n, one in enumerate(PROPERTIES) if flags & (0x8000 >> n))


def _strings(buf: bytes, offset: int, end: int) -> dict[str, str] | None:
    """Return a table whose values are all strings, like ours; None for any other table.

    py-amqp reads every kind of table, and takes three times as long.
    """
    table = {}
    try:
        while offset < end:
            start = offset + 1
            offset = start + buf[offset]
            name = buf[start:offset].decode()
            if buf[offset] != _STRING:
                return None
            (size,) = _LONG.unpack_from(buf, offset + 1)
            start = offset + 5
            offset = start + size
            table[name] = buf[start:offset].decode()
    except (IndexError, StructError, UnicodeDecodeError):
        return None
    return table if offset == end else None


def raw_frame_handler(
    connection: Any, callback: Callable[[int, tuple[int, int], bytes, Any], Any]
) -> Callable[[tuple[int, int, bytes]], bool]:
    """Return py-amqp's handler of inbound frames, but with :class:`RawContent`."""
    partial: dict[int, RawContent] = {}
    expected: defaultdict[int, int] = defaultdict(lambda: METHOD)

    def on_frame(frame: tuple[int, int, bytes]) -> bool:
        kind, channel, payload = frame
        connection.bytes_recv += 1
        if kind == HEARTBEAT:
            return False
        if kind != expected[channel]:
            raise UnexpectedFrame(f"received frame {kind}, expected {expected[channel]}")
        if kind == METHOD:
            method = unpack_from(">HH", payload, 0)
            if method not in _WITH_CONTENT:
                if method in _CLOSES:
                    payload = _with_whole_characters(payload)
                callback(channel, method, payload, None)
                return True
            partial[channel] = RawContent(frame_method=method, frame_args=payload)
            expected[channel] = HEADER
            return False
        content = partial[channel]
        if kind == HEADER:
            content.inbound_header(payload)
        else:
            content.inbound_body(payload)
        if not content.ready:
            expected[channel] = BODY
            return False
        expected[channel] = METHOD
        del partial[channel]
        callback(channel, content.frame_method, content.frame_args, content)
        return True

    return on_frame


def _with_whole_characters(close: bytes) -> bytes:
    """Return the payload of a close, without a character that the broker cut in two.

    RabbitMQ cuts the text, which may name a queue, to AMQP's 255 bytes.
    """
    end = 7 + close[6]  # the text follows the method's two numbers, the code and its own size
    text = close[7:end].decode(errors="ignore").encode()
    return close[:6] + _short(text) + close[end:]


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text
