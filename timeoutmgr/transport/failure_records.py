"""The messages of an error queue: their failures, filters and groups."""

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from timeoutmgr.contracts import BrowsesQueues, Transport
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, from_wire, to_micros
from timeoutmgr.message.message import Received, enclosed_types

MOST_BROWSED: Final = 60_000
"""Messages that one browse reads: a receiver of AMQP can hold at most 65,535 at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """The failure of a message, read from its headers; None for a missing header."""

    message_id: str
    exception: str | None
    reason: str | None
    message_type: str | None
    queue: str | None
    endpoint: str | None
    at: Micros | None
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFilter:
    """Selects messages of the error queue; None accepts any.

    *exception* is a class with its module or without; *since* and *until* bound the time of the
    failure, which a message without a time does not meet.
    """

    ids: frozenset[str] = frozenset()
    exception: str | None = None
    message_type: str | None = None
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def matches(self, received: Received) -> bool:
        """Return whether the filter selects *received*."""
        failure = failure_record(received)
        return (
            (not self.ids or failure.message_id in self.ids)
            and self.exception in (None, failure.exception, _last_part(failure.exception))
            and (self.message_type is None or self.message_type in enclosed_types(received.message))
            and self.queue in (None, failure.queue)
            and self._is_in_time(failure.at)
        )

    def _is_in_time(self, at: Micros | None) -> bool:
        if self.since is None and self.until is None:
            return True
        return (
            at is not None
            and (self.since is None or at >= to_micros(self.since))
            and (self.until is None or at < to_micros(self.until))
        )


ANY_FAILURE: Final = FailureFilter()
"""Selects every message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failed messages of one exception class and one message type."""

    exception: str | None
    message_type: str | None
    count: int
    oldest: Micros | None
    newest: Micros | None
    example: str | None


def browse(transport: Transport, error_queue: str, which: FailureFilter) -> Generator[Received]:
    """Yield the messages of *error_queue* that *which* selects, the oldest first; all stay.

    Raises QueueMissing, TransportUnavailable, and ConfigurationError if browsing would count
    towards a delivery limit.
    """
    with closing(transport.session()) as session:
        if not isinstance(session, BrowsesQueues):
            raise ConfigurationError(
                f"transport {transport.capabilities.name!r} cannot browse a queue; use the "
                "broker's own tools, or retry all"
            )
        with closing(session.browse(error_queue, MOST_BROWSED)) as messages:
            yield from (received for received in messages if which.matches(received))


def failure_record(received: Received) -> FailureRecord:
    """Return the failure of *received*, read from its headers."""
    given, types = received.message.headers, enclosed_types(received.message)
    return FailureRecord(
        message_id=received.message.id,
        exception=given.get(headers.EXCEPTION_TYPE),
        reason=received.defect or given.get(headers.EXCEPTION_MESSAGE),
        message_type=types[0] if types else None,
        queue=given.get(headers.FAILED_QUEUE),
        endpoint=given.get(headers.PROCESSING_ENDPOINT),
        at=_instant(given.get(headers.TIME_OF_FAILURE)),
        size=len(received.message.body),
    )


def failure_groups(failures: Iterable[FailureRecord]) -> list[FailureGroup]:
    """Return the groups of *failures* by exception class and message type, the largest first."""
    groups: dict[tuple[str | None, str | None], list[FailureRecord]] = {}
    for failure in failures:
        groups.setdefault((failure.exception, failure.message_type), []).append(failure)
    found = [_group(members) for members in groups.values()]
    return sorted(found, key=lambda group: (-group.count, group.exception or ""))


def _group(members: list[FailureRecord]) -> FailureGroup:
    times = [failure.at for failure in members if failure.at is not None]
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
