"""The expectation that a timeout is scheduled, and texts of failed assertions. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from timeoutmgr.endpoint.handled_classes import class_of_handler
from timeoutmgr.message.instants import to_micros
from timeoutmgr.sender.composer import checked_saga
from timeoutmgr.testing.kit.messages import ObservedMessage


@dataclass(frozen=True, slots=True)
class Expectation:
    """Properties of a timeout; None stands for any value."""

    type: str | None
    saga: str | None
    due: datetime | None
    tolerance: timedelta

    @classmethod
    def of(cls, kind: object, saga: str | None, *rest: Any) -> Self:
        """Return the expectation of a type or class; raise if no message can have such a value."""
        kind = kind if kind is None or isinstance(kind, str) else class_of_handler(kind).name
        return cls(kind, saga if saga is None else checked_saga(saga), *rest)

    def matches(self, one: ObservedMessage) -> bool:
        """Return whether *one* has the properties."""
        return (
            self.type in (None, one.type)
            and self.saga in (None, one.saga_id)
            and (self.due is None or self._is_near(one.due))
        )

    def missing(self, scheduled: Sequence[ObservedMessage]) -> str:
        """Return the text for an expected timeout that is not in *scheduled*."""
        return f"expected a timeout{self}, and none is scheduled; {listing(scheduled)}"

    def unexpected(self, found: ObservedMessage, scheduled: Sequence[ObservedMessage]) -> str:
        """Return the text for *found*, which should not be in *scheduled*."""
        return f"expected no timeout{self}, and {found} is scheduled; {listing(scheduled)}"

    def _is_near(self, due: datetime | None) -> bool:
        return due is not None and self.due is not None and abs(due - self.due) <= self.tolerance

    def __str__(self) -> str:
        """Return the properties as a text that follows the word "timeout"."""
        kind = "" if self.type is None else f" of type {self.type!r}"
        saga = "" if self.saga is None else f" of saga {self.saga!r}"
        due = "" if self.due is None else f" due {self.due} (± {self.tolerance})"
        return f"{kind}{saga}{due}"


def listing(scheduled: Sequence[ObservedMessage]) -> str:
    """Return all of *scheduled*, a line for each."""
    if not scheduled:
        return "nothing is scheduled"
    return "\n".join(["scheduled are:", *(f"  {one}" for one in scheduled)])


def instant_of(due: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return *due* in UTC, counted from *now* if it is a time span.

    Raises InvalidMessage for a datetime without a zone. Texts of assertions are in UTC.
    """
    if isinstance(due, timedelta):
        return now + due
    if due is not None:
        to_micros(due)  # raises for a naive datetime
    return due
