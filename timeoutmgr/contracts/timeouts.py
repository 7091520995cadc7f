"""Stored timeouts: their content, their order, their state, and filters of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final, Literal, NamedTuple, TypeAlias

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.foreign import require_storable
from timeoutmgr.message.instants import Micros, require_window
from timeoutmgr.message.message import Message

# --- the content of a delayed message as a digest: it tells a repeat from another message -----
# Two digests mean the same content if destination, body and the sender's own headers are equal, and
# also the due times if both senders gave ``deliver_at``. A due time computed from a delay differs
# in each repeat of a send. A foreign message may have a digest of its own program instead.

SIZE: Final = 16
"""Bytes of a digest; the last bytes are for the due time, if the sender gave it."""
_CONTENT: Final = 12
_NOT_GIVEN: Final = bytes(SIZE - _CONTENT)

ADDED_ON_THE_WAY: Final = frozenset(
    {
        # When, where and by which program it was sent: a repeat may come from another host.
        headers.TIME_SENT,
        headers.ORIGINATING_MACHINE,
        headers.VERSION,
        # Of routing, and of the delivery.
        *headers.ROUTING,
        headers.DELIVER_AT,
        headers.ON_CONFLICT,
        headers.DELIVER_AT_GIVEN,
        headers.RELATED_TO_TIMEOUT,
        headers.DISPATCHED_AT,
        # Of dead-letter queues: the node that sent it, and how often it was passed on.
        *("TimeoutManager.SourceNode", "TimeoutManager.SourceGuid", "TimeoutManager.Hops"),
        # Of failures and retries.
        *headers.FAILURE_HEADERS,
        headers.RETRIES,
        headers.RETRIES_TIMESTAMP,
    }
)
"""Headers that are not the sender's own, beside headers with PREFIXES_ON_THE_WAY."""
PREFIXES_ON_THE_WAY: Final = (headers.PROPERTY_PREFIX, "$.diagnostics.")
TRACING: Final = frozenset(
    {"traceparent", "tracestate", "baggage", "b3", "diagnostic-id", "request-id", "uber-trace-id"}
)
"""Headers of tracing, in lower case, beside headers with TRACING_PREFIXES."""
TRACING_PREFIXES: Final = ("x-b3-", "x-datadog-", "x-amzn-trace-id", "nservicebus.opentelemetry.")


def content_of(timeout: Timeout) -> bytes:
    """Return the digest of *timeout*, of SIZE bytes or fewer."""
    message = timeout.message
    given = message.headers
    if headers.FOREIGN_CONTENT in given:
        parts: tuple[str, ...] = timeout.destination, given[headers.FOREIGN_CONTENT]
        body = b""
    else:
        own, names = _own_headers(tuple(given))
        about = (timeout.destination, message.content_type, message.content_encoding)
        parts, body = (names, *about, *map(given.__getitem__, own)), message.body
    digest = sha256(_joined(parts).encode("utf-8", "surrogatepass"))
    digest.update(body)
    content = digest.digest()[:_CONTENT]
    return content + _due_digest(timeout.due) if timeout.due_given else content


def in_full(digest: bytes) -> bytes:
    """Return *digest*, extended to SIZE bytes."""
    return digest.ljust(SIZE, b"\0")


def is_same(one: bytes, other: bytes) -> bool:
    """Return whether two digests mean the same content."""
    if one[:_CONTENT] != other[:_CONTENT]:
        return False
    due, other_due = in_full(one)[_CONTENT:], in_full(other)[_CONTENT:]
    return due == other_due or _NOT_GIVEN in (due, other_due)


def _joined(parts: tuple[str, ...]) -> str:
    """Return *parts* as a text that no other parts yield, whatever body follows it."""
    joined = "\0".join((*parts, ""))
    if joined.count("\0") == len(parts):
        return joined
    # A part holds the sign itself. JSON holds none, and says where it ends.
    return json.dumps(parts)


@headers.remembers_short(1024)
def _own_headers(names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return those *names* that are the sender's own, sorted, and the same as one text."""
    # Programs use a few sets of headers again and again.
    own = tuple(sorted(filter(_is_own, names)))
    return own, json.dumps(own)


def _is_own(name: str) -> bool:
    if name in ADDED_ON_THE_WAY or name.startswith(PREFIXES_ON_THE_WAY):
        return False
    lower = name.lower()
    return not (
        lower in TRACING or lower.startswith(TRACING_PREFIXES) or lower in headers.BROKER_HEADERS
    )


def _due_digest(due: int) -> bytes:
    found = sha256(str(due).encode()).digest()[: SIZE - _CONTENT]
    return found if found != _NOT_GIVEN else b"\xff" * len(found)


class OnConflict(StrEnum):
    """Policy of a delayed message if its id was used with different content.

    Content is destination, body and the sender's own headers. The due time counts only if both
    messages gave ``deliver_at``.
    """

    KEEP = "keep"
    """The first message stays. The new message goes to the error queue, with the reason."""
    REPLACE = "replace"
    """The new message replaces the pending timeout, if it was sent later."""
    ERROR = "error"
    """As ``keep``, but ``send`` raises if the store takes part in the sender's transaction."""


ConflictName: TypeAlias = Literal["keep", "replace", "error"]
"""The value of an OnConflict, as text."""


class Key(NamedTuple):
    """Position of a timeout in its endpoint's order; *due* is the instant of its next try."""

    due: Micros
    id: str


class Place(NamedTuple):
    """Position of a message in the manager's queue, as far as its consumer knows.

    *receiver* is the number of the consumer, which gets its messages in the order of the queue. At
    *since* no consumer had the message yet; None for a message that was delivered before. *at* is
    when the consumer handled it. Both instants are of the store's clock.
    """

    receiver: int
    since: Micros | None
    at: Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """A stored delayed message.

    *id* is derived from endpoint and message id, so that a repeated store has no effect. *created*
    is when the sender sent it; *attempts* counts failed dispatches. After a failed dispatch
    *next_try* is the instant of the next try; 0 otherwise. *due_given* means that the sender gave
    ``deliver_at``; *on_conflict* is the policy for a used id; an insert reads both, and does not
    store them. *place* is the position of a saga's timeout in the manager's queue, if it came by
    that queue.
    """

    id: str
    due: Micros
    destination: str
    message: Message
    saga_id: str | None = None
    created: Micros = 0
    attempts: int = 0
    next_try: Micros = 0
    due_given: bool = field(default=False, compare=False)
    on_conflict: OnConflict = field(default=OnConflict.KEEP, compare=False)
    place: Place | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        """The position in the order in which timeouts are tried.

        A timeout that waits for another try stands among timeouts due at that time, and delays no
        other meanwhile.
        """
        return Key(max(self.due, self.next_try) if self.next_try else self.due, self.id)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Keys of a claim, oldest first, and the time of the next poll.

    *token* names the claim (empty when *keys* is). *next_due* is the instant of the earliest
    timeout that was not claimed: in the past if the limit cut the chunk, None if nothing else is
    stored. If all due timeouts are locked or claimed, it is the instant of the next poll. *others*
    are the next chunks that were claimed with it, each by its own claim; *next_due* excludes their
    timeouts too.
    """

    token: str
    keys: tuple[Key, ...]
    next_due: Micros | None
    others: tuple[Chunk, ...] = ()

    @property
    def all(self) -> list[Chunk]:
        """This chunk and its further chunks, in order, without empty chunks."""
        return [chunk for chunk in (self, *self.others) if chunk.keys]


class TimeoutState(StrEnum):
    """State of a timeout id; all but ``pending`` are tombstones."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    CANCELLED = "cancelled"
    FAILED = "failed"
    MIGRATED = "migrated"
    """It was moved to another place."""
    ERASED = "erased"
    """All its data except the id was erased, on a person's request."""


@dataclass(frozen=True, slots=True)
class Page:
    """Timeouts of a list, in order; *searched_to* is a key if the search ended there.

    Timeouts behind that key were not examined, and may match too.
    """

    timeouts: Sequence[Timeout]
    searched_to: Key | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutFilter:
    """Filter of timeouts to list or count; due is a half-open range, None means any.

    *labels* are texts ``name=value`` (``message.labels``), all of which a timeout must have. Only a
    store that FindsByLabels gets them. *message_type* is the full name of the most specific type of
    the message, *id_prefix* the beginning of the id, *message_id* the id of the message.
    *tried_from* and *tried_before* limit the instant of the next try: the due time, the instant of
    a retry, or the place at which a pause holds the timeout.
    """

    id: str | None = None
    saga_id: str | None = None
    destination: str | None = None
    due_from: Micros | None = None
    due_before: Micros | None = None
    labels: tuple[str, ...] = ()
    message_type: str | None = None
    id_prefix: str | None = None
    message_id: str | None = None
    tried_from: Micros | None = None
    tried_before: Micros | None = None

    def __post_init__(self) -> None:
        """Refuse texts that databases refuse, and empty windows."""
        require_window(InvalidMessage, due_from=self.due_from, due_before=self.due_before)
        require_window(InvalidMessage, tried_from=self.tried_from, tried_before=self.tried_before)
        for name, given in asdict(self).items():
            for text in given if isinstance(given, tuple) else (given,):
                if isinstance(text, str):
                    require_storable(f"the {name} to find", text)
