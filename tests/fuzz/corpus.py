"""Nasty messages, written by hand: each has broken somebody's queue reader once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from tests.fuzz.letters import BROKEN_CHUNKS, PAST, Fate, RawMessage
from tests.fuzz.ways import RAW_HEADERS
from timeoutmgr.message import headers as names
from timeoutmgr.message.instants import EARLIEST, LATEST
from timeoutmgr.message.routes import DISPATCHER, TIMEOUTS

AMQP: Final = "rabbitmq"
ROWS: Final = "sqlite"


@dataclass(frozen=True)
class Case:
    """A letter for the queue whose name ends with *queue*, on each of *transports*."""

    name: str
    raw: RawMessage
    queue: str = TIMEOUTS
    transports: tuple[str, ...] = (AMQP, ROWS)


def _timeout(name: str, *transports: str, body: bytes = b"", **changed: Any) -> Case:
    """Return a due timeout to a missing queue, with headers changed."""
    headers = {names.EXPIRE: PAST, names.DESTINATION: "nobody's", "kept": "yes"}
    given = {getattr(names, key): value for key, value in changed.items() if key.isupper()}
    raw = RawMessage(
        body + name.encode(), tuple({**headers, **given}.items()), {"message_id": name}
    )
    return Case(name, raw, transports=transports or (AMQP, ROWS))


def _headers(name: str, *pairs: tuple[str | bytes, Any], only: str) -> Case:
    """Return a sound timeout with more headers."""
    sound = ((names.EXPIRE, PAST), (names.DESTINATION, "nobody's"))
    return Case(name, RawMessage(name.encode(), (*sound, *pairs)), transports=(only,))


def _row(name: str, **properties: str) -> Case:
    return Case(name, RawMessage(name.encode(), (), properties), transports=(ROWS,))


def _chunk(name: str, body: bytes, fate: Fate = Fate.KEPT) -> Case:
    pairs = ((names.CHUNK_VERSION, "1"),)
    return Case(name, RawMessage(body, pairs, {"message_id": name}, fate), queue=DISPATCHER)


def _keys(name: str, *keys: tuple[Any, Any], token: str = "", fate: Fate = Fate.EITHER) -> Case:
    return _chunk(name, json.dumps({"token": token, "keys": keys}).encode(), fate)


_DEEP: Final = "[" * 500 + "]" * 500
_LAST: Final = "9999-12-31 23:59:59:999999 Z"

CASES: Final[tuple[Case, ...]] = (
    # due times
    _timeout("due in the last microsecond", EXPIRE=_LAST),
    _timeout("due in the first microsecond", EXPIRE="0001-01-01 00:00:00:000000 Z"),
    _timeout("due in the year 10000", EXPIRE="10000-01-01 00:00:00:000000 Z"),
    _timeout("due at NaN", EXPIRE="NaN"),
    _timeout("due at 1e400", EXPIRE="1e400"),
    _timeout("due with a line end", EXPIRE=_LAST + "\n"),
    _timeout("due as a number", EXPIRE=2**62),
    _timeout("due as an infinite number", ROWS, EXPIRE=float("inf")),
    _timeout("due as a list", EXPIRE=[PAST]),
    _timeout("no due", EXPIRE=None),
    # ids, names and other texts
    _timeout("NUL in the destination", DESTINATION="a\0b"),
    _timeout("half a surrogate pair in the destination", DESTINATION="a\ud800"),
    _timeout("a destination of 200 bytes", DESTINATION="ü" * 100),
    _timeout("NUL in the saga", SAGA_ID="a\0b"),
    _timeout("half a surrogate pair in the saga", SAGA_ID="\udfff"),
    _timeout("NUL in the id", MESSAGE_ID="a\0b"),
    _timeout("an id of 201 characters", MESSAGE_ID="i" * 201),
    _timeout("half a surrogate pair in the id", MESSAGE_ID="a\ud800b"),
    _timeout("half a surrogate pair in the retries", RETRIES_TIMESTAMP="\ud800"),
    _timeout("a retry of a retry of 64 KiB", RETRIES_TIMESTAMP="9" * 60_000),
    _timeout("a type of 64 KiB", ENCLOSED_MESSAGE_TYPES="t" * 66_000),
    # envelopes
    _headers("a name of 255 bytes", ("n" * 255, "x"), only=AMQP),
    _headers("a name that is not UTF-8", (b"\xff\xfe", "x"), only=AMQP),
    _headers("a value that is not UTF-8", ("raw", b"\xff\xfe"), only=AMQP),
    _headers("tables in tables", ("deep", {"a": {"b": [{"c": None}] * 9}}), only=AMQP),
    _headers("headers that fill the frame", ("h", "\u20ac" * 43_000), only=AMQP),
    _headers("a due that is doubled", (names.EXPIRE, "never"), only=AMQP),
    _headers("a name of 256 bytes", ("n" * 256, "x"), only=ROWS),
    _headers("half a surrogate pair as a name", ("\ud800", "x"), only=ROWS),
    _headers("a deep value", ("deep", json.loads(_DEEP)), only=ROWS),
    _headers("a due that is doubled in JSON", (names.EXPIRE, "never"), only=ROWS),
    _row("no JSON", **{RAW_HEADERS: "{"}),
    _row("a number of 5000 digits", **{RAW_HEADERS: f'{{"n": {"9" * 5_000}}}'}),
    _row("no id", message_id=""),
    _row("NUL in a row's id", message_id="a\0b"),
    _row("an id of 255 characters", message_id="ü" * 255),
    _row("a content type of 300 characters", content_type="c" * 300),
    # control messages
    *(_chunk(f"broken {place}", body) for place, body in enumerate(BROKEN_CHUNKS)),
    _keys("nobody's keys", (1, "x"), (2, "ü"), token="nobody's", fate=Fate.DROPPED),
    _keys("no keys", token="nobody's", fate=Fate.DROPPED),
    _keys("keys twice", (1, "x"), (1, "x"), fate=Fate.DROPPED),
    _keys("dues at the ends of the calendar", (EARLIEST, "x"), (LATEST, "x"), fate=Fate.DROPPED),
    _keys("a due of 64 bits", (2**63 - 1, "x"), (-(2**63), "x")),
    _keys("a due of 65 bits", (2**64, "x")),
    _keys("NUL in a key", (1, "\0")),
    _keys("NUL in the token", (1, "x"), token="\0"),
    _keys("half a surrogate pair in a key", (1, "\ud800")),
    _keys("half a surrogate pair in the token", (1, "x"), token="\ud800"),
    _keys("an id of 64 KiB", (1, "x" * 65_536)),
    _keys("thousands of keys", *((n, f"{n}") for n in range(5_000))),
    Case(
        "keys that are doubled",
        RawMessage(
            b'{"token": "t", "keys": [], "keys": [[1, "x"]], "token": "u"}',
            ((names.CHUNK_VERSION, "1"),),
            fate=Fate.DROPPED,
        ),
        queue=DISPATCHER,
    ),
    Case(
        "NUL as a single id",
        RawMessage(b"nul", ((names.TIMEOUT_ID, "\0"),), fate=Fate.EITHER),
        DISPATCHER,
    ),
    Case(
        "half a surrogate pair as a single id",
        RawMessage(b"half", ((names.TIMEOUT_ID, "\ud800"),), fate=Fate.EITHER),
        DISPATCHER,
    ),
    Case(
        "a single id of 64 KiB",
        RawMessage(b"long", ((names.TIMEOUT_ID, "x" * 65_536),), fate=Fate.DROPPED),
        DISPATCHER,
    ),
    Case("a version that is a number", RawMessage(b"{}", ((names.CHUNK_VERSION, 1),)), DISPATCHER),
)

UNSENDABLE: Final = (
    _timeout("an id of 800 bytes", MESSAGE_ID="\U0001f600" * 200),
    Case(
        "a content type of 400 bytes",
        RawMessage(
            b"a content type of 400 bytes",
            (
                (names.EXPIRE, PAST),
                (names.DESTINATION, "nobody's"),
                (names.CONTENT_TYPE, "ü" * 200),
            ),
        ),
    ),
)
"""Timeouts that the columns hold and that no AMQP frame can carry: short enough in characters."""
