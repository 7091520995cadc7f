"""Destination and due time of a message in a delay level, from its headers and key. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final

from timeoutmgr.contracts import Timeout
from timeoutmgr.message import headers as names
from timeoutmgr.message.instants import (
    EARLIEST,
    LATEST,
    Micros,
    from_wire,
    instant_of,
    to_micros,
    to_wire,
)
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import id_of_timeout, is_delayed_retry
from timeoutmgr.native.levels import read_routing_key
from timeoutmgr.transport.envelope import SHORT_STRING

ETA: Final = "eta"
"""Header with the due time of a Celery task, in ISO 8601; without a zone it is UTC."""

_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits in a level."""

    destination: str
    due: Micros


class Unreadable(Exception):
    """A message whose due time or destination cannot be read."""


def waiting(headers: Mapping[str, Any], routing_key: str | None) -> Waiting:
    """Return destination and due time of a message; raise Unreadable.

    An absolute instant has priority. Without it, the due time is TimeSent plus the delay; if a
    message was delayed twice, TimeSent is that of the first delay, and the sum is too early.
    """
    found = None if routing_key is None else read_routing_key(routing_key)
    if found is None:
        raise Unreadable(f"its routing key {routing_key!r:.80} is not a key of delay levels")
    seconds, destination = found
    due = _due(headers, seconds)
    if not EARLIEST <= due <= LATEST:
        raise Unreadable("its due time lies outside the years 1 to 9999")
    return Waiting(destination, due)


def _due(headers: Mapping[str, Any], seconds: int) -> Micros:
    at = headers.get(names.DELIVER_AT)
    if at is not None:
        return _instant(names.DELIVER_AT, at)
    eta = headers.get(ETA)
    if eta is not None:
        return _iso(eta)
    sent, delay = headers.get(names.TIME_SENT), headers.get(names.DELAY_IN_SECONDS)
    if sent is None or delay is None:
        raise Unreadable(
            f"it has neither {names.DELIVER_AT} nor {ETA}, nor {names.TIME_SENT} and "
            f"{names.DELAY_IN_SECONDS}: its key says {seconds} s, and not since when"
        )
    try:
        return _instant(names.TIME_SENT, sent) + ceil(float(delay)) * _SECOND
    except (TypeError, ValueError, OverflowError) as error:
        raise Unreadable(f"{names.DELAY_IN_SECONDS} is {delay!r:.40}") from error


def _instant(name: str, value: Any) -> Micros:
    try:
        return from_wire(value)
    except (TypeError, ValueError) as error:
        raise Unreadable(f"{name} is {value!r:.60}") from error


def _iso(value: Any) -> Micros:
    try:
        return micros_of(datetime.fromisoformat(value))
    except (TypeError, ValueError) as error:
        raise Unreadable(f"{ETA} is {value!r:.60}") from error


def micros_of(time: datetime) -> Micros:
    """Return the instant *time*; without a zone it is in UTC."""
    return to_micros(time if time.tzinfo is not None else time.replace(tzinfo=UTC))


def as_timeout(message: Message, found: Waiting, endpoint: str, now: Micros) -> Timeout:
    """Return *message* as a timeout of *endpoint*, under the id that a store would use."""
    kept = {**message.headers, names.DELIVER_AT: to_wire(found.due)}
    kept.pop(names.DELAY_IN_SECONDS, None)
    return Timeout(
        id=id_of_timeout(endpoint, message),
        due=found.due,
        destination=found.destination,
        message=replace(message, headers=kept),
        saga_id=None if is_delayed_retry(kept) else saga_of(kept),
        created=instant_of(kept, names.TIME_SENT, now),
    )


def saga_of(headers: Mapping[str, str]) -> str | None:
    """Return the saga in *headers*, if a store can store its id."""
    saga = headers.get(names.SAGA_ID)
    usable = saga not in (None, names.NO_SAGA) and 0 < len(saga) <= 200 and saga.isprintable()
    return saga if usable else None


def plain(what: str, value: str, longest: int) -> str:
    """Return *value* if every store and broker can store it; otherwise raise ValueError."""
    if len(value) > longest or len(value.encode()) > SHORT_STRING:
        raise ValueError(
            f"the {what} has more than {longest} characters, or {SHORT_STRING} bytes of UTF-8"
        )
    if "\0" in value:
        raise ValueError(f"the {what} {value[:40]!r} has a NUL")
    return value
