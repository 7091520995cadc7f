"""Validation: an invalid message or destination is refused before anything is sent."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import translate
from functools import lru_cache
from glob import escape
from typing import Any, Final

from timeoutmgr.errors import (
    ConfigurationError,
    DestinationNotAllowed,
    InvalidMessage,
    MessageTooLarge,
)
from timeoutmgr.message import headers
from timeoutmgr.message.classes import PLAIN, class_of, is_message
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.message.foreign import Foreign, route_of
from timeoutmgr.message.instants import EARLIEST, LATEST, MICROSECOND, Micros, to_micros
from timeoutmgr.message.message import Message
from timeoutmgr.message.redaction import shown

DESTINATION_BYTES: Final = 199
"""Bytes of a destination: the rest of RabbitMQ's 255-byte routing key after 28 delay levels."""
SATELLITES: Final = (".Timeouts", ".TimeoutsDispatcher", ".timeouts", ".Acknowledgements")
"""Endings of queues to which only parts of a timeout manager send.

Other queues may have these endings too: a transport knows which endpoints are installed.
"""
UNFIT: Final = (
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    r"\ud800-\udfff]"
)
"""Characters that no destination may have, in the syntax of Python and Java: control characters,
invisible characters, characters that reverse a line, line separators, and lone surrogates."""


def is_satellite_queue(name: str) -> bool:
    """Return whether *name* ends like a queue to which only a timeout manager's parts send."""
    return name.endswith(SATELLITES)


def is_satellite_of(name: str, endpoint: str) -> bool:
    """Return whether *name* is a satellite's queue of *endpoint*."""
    return name.startswith(endpoint) and name[len(endpoint) :] in SATELLITES


@dataclass(frozen=True, slots=True, eq=False)
class DestinationPatterns:
    """Compiled shell patterns of queues that are allowed or refused.

    Compared by identity, so that a cache by destination does not hash a long list each time.
    """

    allowed: tuple[str, ...]
    refused: tuple[str, ...]
    _allowed: tuple[re.Pattern[str], ...] = field(init=False, repr=False)
    _refused: tuple[re.Pattern[str], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compile the patterns once."""
        object.__setattr__(self, "_allowed", _compiled(self.allowed))
        object.__setattr__(self, "_refused", _compiled(self.refused))

    def allows(self, name: str) -> bool:
        """Return whether *name* matches an allowed pattern; without a pattern every name does."""
        return not self._allowed or any(each.match(name) for each in self._allowed)

    def refuses(self, name: str) -> bool:
        """Return whether *name* matches a refused pattern."""
        return any(each.match(name) for each in self._refused)


def names_of(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return *patterns* as a tuple; refuse a single string that was meant as a list."""
    if isinstance(patterns, str):
        raise ConfigurationError(f"expected a list of names, got the text {patterns!r}")
    return tuple(patterns)


def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(translate(each)) for each in patterns)


ID_CHARACTERS: Final = 200
CLOCK_ALLOWANCE: Final = 30 * 1_000_000
"""Tolerance in microseconds for a sender's clock that is ahead, when ``max_delay`` is checked."""

_UNFIT: Final = re.compile(UNFIT)
_SHOWN_UP_TO: Final = 10**30
"""From this number on, an error does not show the digits of a due instant or delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of valid messages.

    *allowed_destinations* are shell patterns; without any, all queues are allowed except a broker's
    own and those of satellites. *refused_destinations* are patterns that take precedence; an
    endpoint adds its error queue. *max_delay* limits how far ahead a due time may be.
    *is_satellite* decides whether a name that ends like a satellite's queue is such a queue: by
    default it is.
    """

    max_body: int = 16 * 1024 * 1024
    max_headers: int = 64 * 1024
    max_delay: timedelta | None = None
    allowed_destinations: tuple[str, ...] = ()
    refused_destinations: tuple[str, ...] = ()
    is_satellite: Callable[[str], bool] = field(
        default=is_satellite_queue, repr=False, compare=False
    )
    destinations: DestinationPatterns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        if self.max_body <= 0 or self.max_headers <= 0:
            raise ConfigurationError(
                f"max_body and max_headers must be positive, got {self.max_body} and "
                f"{self.max_headers}"
            )
        allowed, refused = names_of(self.allowed_destinations), names_of(self.refused_destinations)
        object.__setattr__(self, "destinations", DestinationPatterns(allowed, refused))
        if self.max_delay is not None and self.max_delay <= timedelta(0):
            raise ConfigurationError(f"max_delay must be positive, got {self.max_delay}")

    def of_endpoint(
        self, queue: str, error_queue: str, is_satellite: Callable[[str], bool] = is_satellite_queue
    ) -> "Limits":
        """Return these limits for an endpoint; its transport provides *is_satellite*.

        Its own *queue* is allowed, for its retries. Its *error_queue* is refused: messages go there
        because they failed, not because a sender chooses it.
        """
        allowed = self.allowed_destinations and (*self.allowed_destinations, escape(queue))
        refused = (*self.refused_destinations, escape(error_queue))
        return replace(
            self,
            allowed_destinations=allowed,
            refused_destinations=refused,
            is_satellite=is_satellite,
        )


def check_destination(
    destination: str, limits: Limits, *, back_to: str | None = None, message: Message | None = None
) -> None:
    """Raise InvalidMessage if no message may go to *destination*.

    Every send calls this, not only the first: rows, error copies and dead letters may have been
    written by a stranger, and the limits may have become narrower. With *back_to*, an endpoint, a
    message may return to a satellite of that endpoint, where it failed. The route of *message* must
    not declare a queue to which no message may go. Raises TransportUnavailable if the limits need a
    transport that is out of reach.
    """
    if not isinstance(destination, str) or not destination:
        raise InvalidMessage(f"a destination is the name of a queue, got {destination!r:.80}")
    if back_to is None or not is_satellite_of(destination, back_to):
        _check_name(destination, limits.destinations)
        # Not cached with the name: an endpoint may be installed while this process runs.
        if is_satellite_queue(destination) and limits.is_satellite(destination):
            raise _belongs_to_the_system(destination)
    if message is not None and headers.ROUTE in message.headers:
        _check_route(message, limits)


def _check_route(message: Message, limits: Limits) -> None:
    route = route_of(message)
    for declared in () if route is None else route.declare:
        check_destination(declared.queue, limits)


def is_allowed(destination: str, limits: Limits) -> bool:
    """Return whether ``check_destination`` lets a message go to *destination*."""
    try:
        check_destination(destination, limits)
    except InvalidMessage:
        return False
    return True


@lru_cache(maxsize=1024)
def _check_name(destination: str, patterns: DestinationPatterns) -> None:
    # Cached, because a program sends to few destinations; refused names are not cached.
    size = len(destination.encode("utf-8", "surrogatepass"))
    if size > DESTINATION_BYTES:
        raise InvalidMessage(
            f"destination {destination[:40]!r}… has {size} bytes of UTF-8, at most "
            f"{DESTINATION_BYTES} fit a routing key; choose a shorter queue name"
        )
    if _UNFIT.search(destination):
        raise InvalidMessage(
            f"destination {destination!r:.80} has control characters, invisible signs or lone "
            "surrogates; choose a printable queue name"
        )
    if destination.startswith("amq."):
        raise _belongs_to_the_system(destination)
    if patterns.refuses(destination):
        raise DestinationNotAllowed(
            f"destination {destination!r:.80} is in refused_destinations "
            f"({', '.join(patterns.refused):.200}), to which an endpoint adds its error queue; "
            "name the queue of an endpoint"
        )
    if not patterns.allows(destination):
        raise DestinationNotAllowed(
            f"destination {destination!r:.80} is outside allowed_destinations "
            f"({', '.join(patterns.allowed):.200}); add it there if it is meant"
        )


def _belongs_to_the_system(destination: str) -> DestinationNotAllowed:
    return DestinationNotAllowed(
        f"destination {destination!r:.80} belongs to the broker or to a timeout manager; name the "
        "queue of an endpoint"
    )


def check_headers(given: Mapping[str, str], limits: Limits) -> None:
    """Raise InvalidMessage for a header that is not a string, MessageTooLarge over the limit."""
    try:
        # All at once, as each message passes here twice; find the wrong header after a failure.
        together = "".join([*given, *given.values()])
        size = len(together) if together.isascii() else len(together.encode())
    except (TypeError, UnicodeEncodeError):
        _refuse_header(given)
        raise
    if size > limits.max_headers:
        raise MessageTooLarge(
            "whole of the headers", size, limits.max_headers, "limits.max_headers"
        )


def _refuse_header(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(
                f"header {shown(name)} is {type(value).__name__} {shown(value)}; names and values "
                "are strings"
            )
        try:
            (name + value).encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(
                f"header {name!r:.80} cannot be encoded as UTF-8: {error}"
            ) from error


def check_body(body: bytes, limits: Limits) -> None:
    """Raise MessageTooLarge over the limit."""
    if len(body) > limits.max_body:
        raise MessageTooLarge("body", len(body), limits.max_body, "limits.max_body")


def check_id(message_id: str) -> None:
    """Raise InvalidMessage if a transport or store could not keep *message_id*."""
    if not isinstance(message_id, str) or not message_id or len(message_id) > ID_CHARACTERS:
        raise InvalidMessage(
            f"a message id is text of 1 to {ID_CHARACTERS} characters, got {message_id!r:.80}"
        )
    if not message_id.isprintable() or not message_id.isascii():
        raise InvalidMessage(f"message id {message_id!r:.80} is not printable ASCII")


def due_of(
    delay: timedelta | float | None, deliver_at: datetime | None, now: Micros
) -> Micros | None:
    """Return the absolute due instant, or None for a message without delay.

    A delay is added on the sender's clock, and rounded up, so that it is never early. Past instants
    are valid, and are due at once.
    """
    if delay is not None and deliver_at is not None:
        raise InvalidMessage(
            "delay and deliver_at are both given, and exclude each other; pass either"
        )
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise InvalidMessage(f"deliver_at is an aware datetime, got {deliver_at!r}")
        return check_due(to_micros(deliver_at))
    return None if delay is None else check_due(now + _delay_micros(delay))


def check_due(due: Micros) -> Micros:
    """Return *due*; raise InvalidMessage outside the years 1 to 9999."""
    if not EARLIEST <= due <= LATEST:
        raise InvalidMessage(
            f"due {_number(due)} microseconds after 1970, outside the years 1 to 9999; choose a "
            "nearer time"
        )
    return due


def check_ahead(due: Micros, now: Micros, limits: Limits) -> None:
    """Raise InvalidMessage if *due* is further ahead than ``max_delay``."""
    if limits.max_delay is not None and due - now > limits.max_delay // MICROSECOND:
        raise InvalidMessage(
            f"due in {timedelta(microseconds=due - now)}, which is more than max_delay "
            f"({limits.max_delay})"
        )


def check_no_expiry(given: Mapping[str, str]) -> None:
    """Raise InvalidMessage for a delayed message that also has a time to be received."""
    if headers.TIME_TO_BE_RECEIVED in given:
        kind = given.get(headers.ENCLOSED_MESSAGE_TYPES, "unknown")
        raise InvalidMessage(
            "Postponed delivery of messages with TimeToBeReceived set is not supported. Remove "
            f"the TimeToBeReceived attribute to postpone messages of type '{kind}'."
        )


_JSON: Final = frozenset({"application/json", "text/json"})
_to_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def encode_body(body: object) -> tuple[bytes, str]:
    """Return *body* as bytes, and its content type: bytes unchanged, all other values as JSON."""
    if isinstance(body, Foreign):
        return body.body, "application/octet-stream"
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), "application/octet-stream"
    if type(body) not in PLAIN and is_message(body):
        return class_of(body).write(body), "application/json"
    try:
        return _to_json(body).encode(), "application/json"
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(
            f"the body cannot be written as JSON: {error}; pass plain values without NaN, or bytes "
            "with a content_type"
        ) from error


def decode_body(body: bytes, content_type: str) -> Any:
    """Return the decoded JSON of a body; any other body as bytes.

    Raises ValueError (or RecursionError, for hostile nesting) if a JSON body is invalid.
    """
    if content_type.partition(";")[0].strip().lower() in _JSON:
        return json.loads(body) if body else None
    return body


def is_json(content_type: str) -> bool:
    """Return whether a body of *content_type* is JSON."""
    return content_type.partition(";")[0].strip().lower() in _JSON


def _delay_micros(delay: timedelta | float) -> int:
    if isinstance(delay, timedelta):
        micros = delay // MICROSECOND
    elif isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidMessage(f"a delay is a timedelta or seconds, got {delay!r:.80}")
    elif isinstance(delay, int):
        micros = delay * 1_000_000
    elif not math.isfinite(delay * 1_000_000):
        raise InvalidMessage(f"a delay is finite, got {delay!r}")
    else:
        micros = math.ceil(delay * 1_000_000)
    if micros < 0:
        given = f"{delay.total_seconds():g} s" if isinstance(delay, timedelta) else _number(delay)
        raise InvalidMessage(f"a delay is never negative, got {given}; use 0 for at once")
    return micros


def _number(value: float) -> str:
    """Return *value* as text for an error: Python refuses to convert an int that is too long."""
    if abs(value) < _SHOWN_UP_TO:
        return repr(value)
    return f"beyond {_SHOWN_UP_TO if value > 0 else -_SHOWN_UP_TO:.0e}"
