"""Messages of the error queue: which are chosen, what is known of each, and their groups."""

import base64
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from timeoutmgr import headers
from timeoutmgr.cli import output
from timeoutmgr.contracts import BrowsesQueues, Transport
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.handlers import enclosed_types
from timeoutmgr.instants import Micros, from_wire, to_micros
from timeoutmgr.message import Received

MOST_SEEN: Final = 60_000
"""Messages that one look reads: what a receiver of AMQP can hold at once, with room to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A message of the error queue without its body; None for what its headers do not say."""

    message_id: str
    exception: str | None
    reason: str | None
    message_type: str | None
    queue: str | None
    endpoint: str | None
    at: Micros | None
    size: int

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "message_id": self.message_id,
            "exception": self.exception,
            "reason": self.reason,
            "type": self.message_type,
            "queue": self.queue,
            "endpoint": self.endpoint,
            "time": output.shown_time(self.at),
            "bytes": self.size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFilter:
    """Which messages of the error queue; None is any.

    *exception* is a class with its module or without; *since* and *until* bound the time of the
    failure, which a message without one does not meet.
    """

    ids: frozenset[str] = frozenset()
    exception: str | None = None
    message_type: str | None = None
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def says_something(self) -> bool:
        """Whether anything narrows the choice."""
        return self != ANY

    def matches(self, received: Received) -> bool:
        """Return whether *received* is chosen."""
        failed = failed_of(received)
        return (
            (not self.ids or failed.message_id in self.ids)
            and self.exception in (None, failed.exception, _last_part(failed.exception))
            and (self.message_type is None or self.message_type in enclosed_types(received.message))
            and self.queue in (None, failed.queue)
            and self._is_in_time(failed.at)
        )

    def _is_in_time(self, at: Micros | None) -> bool:
        if self.since is None and self.until is None:
            return True
        return (
            at is not None
            and (self.since is None or at >= to_micros(self.since))
            and (self.until is None or at < to_micros(self.until))
        )


ANY: Final = FailureFilter()
"""Every message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failed messages of one exception class and one message type."""

    exception: str | None
    message_type: str | None
    count: int
    oldest: Micros | None
    newest: Micros | None
    example: str | None

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "count": self.count,
            "exception": self.exception,
            "type": self.message_type,
            "oldest": output.shown_time(self.oldest),
            "newest": output.shown_time(self.newest),
            "example": self.example,
        }


def look(transport: Transport, error_queue: str, which: FailureFilter) -> Generator[Received]:
    """Yield the messages of *error_queue* that *which* chooses, the oldest first; all stay.

    Raises QueueMissing, TransportUnavailable, and ConfigurationError where a look would count
    towards a delivery limit.
    """
    with closing(transport.session()) as session:
        if not isinstance(session, BrowsesQueues):
            raise ConfigurationError(
                f"transport {transport.capabilities.name!r} cannot look into a queue; use the "
                "broker's own tools, or retry all"
            )
        with closing(session.browse(error_queue, MOST_SEEN)) as seen:
            yield from (received for received in seen if which.matches(received))


def failed_of(received: Received) -> Failed:
    """Return what the headers of *received* say of its failure."""
    given, types = received.message.headers, enclosed_types(received.message)
    return Failed(
        message_id=received.message.id,
        exception=given.get(headers.EXCEPTION_TYPE),
        reason=received.defect or given.get(headers.EXCEPTION_MESSAGE),
        message_type=types[0] if types else None,
        queue=given.get(headers.FAILED_QUEUE),
        endpoint=given.get(headers.PROCESSING_ENDPOINT),
        at=_instant(given.get(headers.TIME_OF_FAILURE)),
        size=len(received.message.body),
    )


def grouped(failed: Iterable[Failed]) -> list[FailureGroup]:
    """Return the groups of *failed* by exception class and message type, the largest first."""
    groups: dict[tuple[str | None, str | None], list[Failed]] = {}
    for each in failed:
        groups.setdefault((each.exception, each.message_type), []).append(each)
    found = [_group(members) for members in groups.values()]
    return sorted(found, key=lambda group: (-group.count, group.exception or ""))


def whole(received: Received) -> dict[str, Any]:
    """Return *received* for JSON, with headers, traceback and body."""
    message = received.message
    return {
        **failed_of(received).document(),
        "content_type": message.content_type,
        "traceback": message.headers.get(headers.EXCEPTION_STACK),
        "headers": {
            name: value
            for name, value in message.headers.items()
            if name != headers.EXCEPTION_STACK
        },
        "body_base64": base64.b64encode(message.body).decode(),
    }


def _group(members: list[Failed]) -> FailureGroup:
    times = [each.at for each in members if each.at is not None]
    return FailureGroup(
        exception=members[0].exception,
        message_type=members[0].message_type,
        count=len(members),
        oldest=min(times, default=None),
        newest=max(times, default=None),
        example=members[-1].reason,
    )


def _last_part(name: str | None) -> str | None:
    return None if name is None else name.rpartition(".")[2]


def _instant(text: str | None) -> Micros | None:
    try:
        return None if text is None else from_wire(text)
    except ValueError:
        return None
