"""The content of a delayed message as a digest: it tells a repeat from another message.

Two digests are of one content if destination, body and the sender's own headers are the same, and
the due times too if both senders gave ``deliver_at``. A due time made of a delay differs in each
repeat of the same send.
"""

import json
from functools import lru_cache
from hashlib import sha256
from typing import Final

from timeoutmgr.contracts import Timeout
from timeoutmgr.message import headers

SIZE: Final = 16
"""Bytes of a digest; the last bytes are of the due time, if the sender gave it."""
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
    own, names = _own_headers(tuple(given))
    about = (timeout.destination, message.content_type, message.content_encoding)
    parts = (names, *about, *map(given.__getitem__, own))
    digest = sha256(_joined(parts).encode("utf-8", "surrogatepass"))
    digest.update(message.body)
    content = digest.digest()[:_CONTENT]
    return content + _due_digest(timeout.due) if timeout.due_given else content


def in_full(digest: bytes) -> bytes:
    """Return *digest* in SIZE bytes."""
    return digest.ljust(SIZE, b"\0")


def is_same(one: bytes, other: bytes) -> bool:
    """Return whether two digests are of the same content."""
    if one[:_CONTENT] != other[:_CONTENT]:
        return False
    due, other_due = in_full(one)[_CONTENT:], in_full(other)[_CONTENT:]
    return due == other_due or _NOT_GIVEN in (due, other_due)


def _joined(parts: tuple[str, ...]) -> str:
    """Return *parts* as a text that no other parts make, with any body behind it."""
    joined = "\0".join(parts) + "\0"
    if joined.count("\0") == len(parts):
        return joined
    # A part holds the sign itself. JSON holds none, and says where it ends.
    return json.dumps(parts)


@lru_cache(maxsize=1024)
def _own_headers(names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return which of *names* are the sender's own, sorted, and these as one text."""
    # Programs have a few sets of headers, and send them again and again.
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
