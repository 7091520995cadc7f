"""Hostile messages to the satellites' queues, and the required fate of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from timeoutmgr.message import headers as names
from timeoutmgr.message.headers import BROKER_HEADERS
from timeoutmgr.message.instants import EARLIEST, LATEST, to_micros, to_wire

Pairs = tuple[tuple[str | bytes, Any], ...]
T = TypeVar("T")


class Fate(Enum):
    """Required fate of a message."""

    KEPT = "kept"
    """It is stored, dispatched or in the error queue: its body is somewhere, once."""
    DROPPED = "dropped"
    """An order that was carried out, or that there was nothing to do for."""
    EITHER = "either"
    """An order on an id that no database can store: carried out or kept, and never twice."""


@dataclass(frozen=True)
class RawMessage:
    """A message as it is put into a queue; *headers* are pairs, for names may be doubled."""

    body: bytes
    headers: Pairs = ()
    properties: dict[str, Any] = field(default_factory=dict)
    fate: Fate = Fate.KEPT

    def __repr__(self) -> str:
        return (
            f"RawMessage(body={self.body[:200]!r}, headers={str(self.headers)[:600]}, "
            f"properties={str(self.properties)[:300]}, fate={self.fate})"
        )


def generated(strategy: st.SearchStrategy[T], count: int, number: int) -> list[T]:
    """Return *count* examples of *strategy*; the same for the same *number*."""
    found: list[T] = []

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one: T) -> None:
        found.append(one)

    collect()
    return found


def numbered(letters: list[RawMessage]) -> list[RawMessage]:
    """Return *letters* with no two bodies or ids alike, so that each is stored and counted."""
    return [_numbered(raw, number) for number, raw in enumerate(letters)]


def _numbered(raw: RawMessage, number: int) -> RawMessage:
    # A JSON body keeps its meaning with spaces behind it.
    is_json = raw.body[:1] in (b"{", b"[")
    tail = b" " * (number + 1) if is_json else f"#{number}".encode()
    properties = dict(raw.properties)
    if "message_id" in properties:
        properties["message_id"] += f"-{number}"
    headers = tuple(
        (name, f"{value}-{number}" if name == names.MESSAGE_ID else value)
        for name, value in raw.headers
    )
    return replace(raw, body=raw.body + tail, headers=headers, properties=properties)


# --- headers and properties ---

_STRANGE: Final = [
    "",
    "\0",
    "\x07",
    " ",
    "\ud800",
    "ü" * 120,
    "x" * 300,
    "9" * 400,
    "True",
    "\u202e",
]
TEXT: Final = st.text(max_size=40) | st.sampled_from(_STRANGE)
_WIRE: Final = to_wire(to_micros(datetime.now(UTC) + timedelta(days=30)))
PAST: Final = "2001-02-03 04:05:06:000007 Z"
SOUND_DUES: Final = st.sampled_from(
    [_WIRE, PAST, "9999-12-31 23:59:59:999999 Z", "0001-01-01 00:00:00:000000 Z"]
)
BROKEN_DUES: Final = st.sampled_from(
    [
        "",
        "soon",
        "NaN",
        "1e400",
        "-1",
        "2026-02-30 00:00:00:000000 Z",
        "10000-01-01 00:00:00:000000 Z",
        "0000-00-00 00:00:00:000000 Z",
        "2026-01-02T03:04:05Z",
        "2026-01-02 03:04:05:678901 Z\n",
        "2026-01-02 24:00:00:000000 Z",
        "2026-01-02 03:04:60:000000 Z",
    ]
)

_CONTROL: Final = frozenset(
    name
    for name, value in vars(names).items()
    if isinstance(value, str) and name.isupper() and not name.startswith("_")
)
CONTROL_NAMES: Final = frozenset(getattr(names, name) for name in _CONTROL)


def _is_free(name: str) -> bool:
    return name not in CONTROL_NAMES and name.lower() not in BROKER_HEADERS


def header_names(longest: int) -> st.SearchStrategy[str]:
    """Return names of headers that have no meaning."""
    long = [name for name in ("n" * 255, "ü" * 127, "n" * 300, "") if len(name.encode()) <= longest]
    return st.sampled_from([*long, "\0", "Grüße", "a.b", "constructor"]) | st.text(
        st.characters(exclude_categories=["Cs"]), max_size=30
    ).filter(_is_free)


SOUND_VALUES: Final = st.sampled_from(
    ["", "x", "Ω", "\0", True, 0, -(2**31), 2**63 - 1, 0.5]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
"""Values that are text, or can be read as text."""

AMQP_VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)  # the broker itself takes no other types
    | st.text(max_size=30)
    | st.binary(max_size=30)
    | st.just(Decimal("1.5"))
    | st.just(datetime(2030, 1, 1, tzinfo=UTC)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
JSON_VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


# --- messages to <endpoint>.Timeouts ---


@dataclass(frozen=True)
class Manner:
    """How a transport's envelopes can be hostile."""

    value: st.SearchStrategy[Any]
    """Any value of a header."""
    longest_name: int
    properties: st.SearchStrategy[dict[str, Any]]
    brokers: st.SearchStrategy[tuple[str, Any]]
    """Headers that steer a broker, in a form that it takes."""

    def extras(self, *, sound: bool) -> st.SearchStrategy[Pairs]:
        """Return headers that we do not read; *sound*: none of them spoils the envelope."""
        value = SOUND_VALUES if sound else SOUND_VALUES | self.value
        pair = st.tuples(header_names(self.longest_name), value)
        return st.lists(pair | self.brokers, max_size=4, unique_by=lambda one: one[0]).map(tuple)


def timeouts(manner: Manner, sink: str) -> st.SearchStrategy[RawMessage]:
    """Return messages that ask, well or badly, for a timeout: none of them may be lost."""
    due = SOUND_DUES | BROKEN_DUES | manner.value
    destination = st.sampled_from(
        [
            sink,
            sink,
            sink,
            "nobody's",
            "",
            "\0",
            "x.Timeouts",
            "amq.direct",
            "d" * 300,
            "ü" * 100,
            "\x07",
        ]
    )
    saga = (
        st.sampled_from(["of a timeout", "", "\0", "s" * 201, "s" * 200, "ü\u200d"]) | manner.value
    )
    wanted = st.fixed_dictionaries(
        {},
        optional={
            names.EXPIRE: SOUND_DUES | due,
            names.DESTINATION: destination | manner.value,
            names.REPLY_TO: destination,
            names.SAGA_ID: saga,
            names.TIME_SENT: SOUND_DUES | due,
            names.DELIVER_AT: due,
            names.CORRELATION_ID: TEXT,
            names.ENCLOSED_MESSAGE_TYPES: TEXT,
            names.CONTENT_TYPE: TEXT,
            names.RETRIES: TEXT,
            names.RETRIES_TIMESTAMP: TEXT,
            names.FAILED_QUEUE: TEXT,
            names.MESSAGE_ID: TEXT,
            names.TIME_TO_BE_RECEIVED: TEXT,
            names.CHUNK_VERSION: TEXT,
            names.TIMEOUT_ID: TEXT,
        },
    )
    return st.builds(
        lambda body, known, extras, properties, double: RawMessage(
            body=body,
            headers=(*known.items(), *extras, *(tuple(known.items())[:1] if double else ())),
            properties=properties,
        ),
        BODIES,
        wanted,
        manner.extras(sound=False),
        manner.properties,
        st.booleans(),
    )


def orders_to_timeouts(manner: Manner) -> st.SearchStrategy[RawMessage]:
    """Return orders to clear a saga without timeouts, or to wake, well formed or not."""
    sound_saga = st.sampled_from(["nobody's", "s" * 200, "Ω"])
    broken_saga = st.sampled_from(["", "\0", "s" * 201, "00000000-0000-0000-0000-000000000000"])
    clear = st.tuples(st.just(names.CLEAR_TIMEOUTS), SOUND_VALUES)

    def order(
        fate: Fate, head: tuple[Any, ...], more: Pairs, properties: dict[str, Any]
    ) -> RawMessage:
        return RawMessage(b"order", (*head, *more), properties, fate)

    def with_(saga: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.tuples(clear, st.tuples(st.just(names.SAGA_ID), saga))

    def wake(due: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.tuples(st.tuples(st.just(names.WAKE), due))

    sound, plain = manner.extras(sound=True), st.just({"message_id": "order"})
    return st.one_of(
        st.builds(order, st.just(Fate.DROPPED), with_(sound_saga), sound, plain),
        st.builds(order, st.just(Fate.KEPT), with_(broken_saga), sound, manner.properties),
        st.builds(order, st.just(Fate.DROPPED), wake(SOUND_DUES), sound, plain),
        st.builds(order, st.just(Fate.KEPT), wake(BROKEN_DUES), sound, manner.properties),
        st.builds(order, st.just(Fate.KEPT), st.tuples(clear), sound, manner.properties),
    )


BODIES: Final = st.binary(max_size=200) | st.sampled_from(
    [
        b"",
        b"\xff\xfe",
        b"\0",
        b"{",
        b"[" * 2_000,
        b"x" * 65_536,
        '{"a": "\ud800"}'.encode("utf-8", "surrogatepass"),
    ]
)


# --- messages to <endpoint>.TimeoutsDispatcher ---


def controls(manner: Manner) -> st.SearchStrategy[RawMessage]:
    """Return control messages: on timeouts that are unknown, or broken."""
    sound = manner.extras(sound=True)
    number = st.integers(EARLIEST, LATEST)
    ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
    key = st.tuples(number, ids).map(list)
    nowhere = st.fixed_dictionaries({"token": ids, "keys": st.lists(key, max_size=4)})
    unheard = st.fixed_dictionaries(
        {
            "token": TEXT,
            "keys": st.lists(
                st.tuples(st.integers(-(10**40), 10**40), TEXT | st.just("x" * 5_000)).map(list),
                max_size=4,
            ),
        }
    )
    broken = JSON_VALUES.map(_spelt) | st.sampled_from(BROKEN_CHUNKS) | BODIES
    version: Pairs = ((names.CHUNK_VERSION, "1"),)

    def chunk(fate: Fate, spell: Callable[[Any], bytes]) -> Callable[..., RawMessage]:
        return lambda body, more, properties: RawMessage(
            spell(body), (*version, *more), properties, fate
        )

    plain = st.just({"message_id": "control"})
    single = st.tuples(st.just(names.TIMEOUT_ID), ids.filter(bool))
    return st.one_of(
        st.builds(chunk(Fate.DROPPED, _spelt), nowhere, sound, plain),
        st.builds(chunk(Fate.EITHER, _spelt), unheard, manner.extras(sound=False), plain),
        st.builds(chunk(Fate.KEPT, bytes), broken, sound, manner.properties),
        st.builds(
            lambda body, head, more: RawMessage(body, (head, *more), {}, Fate.DROPPED),
            BODIES,
            single,
            sound,
        ),
        st.builds(
            lambda body, more, properties: RawMessage(body, more, properties),
            BODIES,
            manner.extras(sound=False),
            manner.properties,
        ),
        st.builds(
            lambda body, other, more, properties: RawMessage(
                body, ((names.CHUNK_VERSION, other), *more), properties
            ),
            BODIES,
            TEXT.filter(lambda text: text != "1"),
            sound,
            manner.properties,
        ),
    )


BROKEN_CHUNKS: Final = [
    b"{",
    b"[" * 100_000,
    b'{"keys": ' * 5_000,
    b'{"token": "t", "keys": [[NaN, "x"]]}',
    b'{"token": "t", "keys": [[1e400, "x"]]}',
    b'{"token": "t", "keys": [[1.0, "x"]]}',
    b'{"token": "t", "keys": [["1", "x"]]}',
    b'{"token": "t", "keys": [[1, "x", 2]]}',
    b'{"token": "t", "keys": [1]}',
    b'{"token": "t", "keys": {"1": "x"}}',
    b'{"token": null, "keys": []}',
    b'{"token": "t", "keys": null}',
    b'{"token": "t", "keys": [[' + b"9" * 5_000 + b', "x"]]}',
    b'{"token": "\xed\xa0\x80", "keys": []}',
]


def _spelt(value: object) -> bytes:
    return json.dumps(value).encode()
