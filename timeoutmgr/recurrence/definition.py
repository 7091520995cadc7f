"""A recurring timeout as the configuration defines it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.recurrence.occurrences import Occurrences, parse

MOST_CAUGHT_UP: Final = 1000
"""Maximum missed runs of a schedule that the policy ``all`` sends at once; it skips older runs."""
_NAME_LENGTH: Final = 200


class CatchUp(StrEnum):
    """Policy for occurrences that were missed in a pause or an outage."""

    ONE = "one"
    """One run for all missed occurrences, at once. A run that was stored before and is sent late
    is this run."""
    ALL = "all"
    """A run for each missed occurrence, at once; the newest MOST_CAUGHT_UP at most."""
    NONE = "none"
    """No run. A run that was stored before an outage is still sent, late."""


CatchUpName: TypeAlias = Literal["one", "all", "none"]
"""The value of a CatchUp, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringTimeout:
    """A message that is sent at each occurrence of a schedule.

    *every* is a text or a timedelta, see docs/how-to/recurring.md. Without *destination* the
    message goes to the endpoint's own queue. Raises ConfigurationError for a wrong value.
    """

    name: str
    message_type: str
    body: object
    every: str | timedelta
    destination: str | None = None
    catch_up: CatchUp | CatchUpName = CatchUp.ONE
    headers: Mapping[str, str] = field(default_factory=dict)
    occurrences: Occurrences = field(init=False, repr=False, compare=False)
    policy: CatchUp = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every value."""
        name = check_schedule_name(self.name)
        if not isinstance(self.message_type, str) or not self.message_type:
            raise ConfigurationError(
                f"recurring {name!r}: a message type is a name, got {self.message_type!r:.80}"
            )
        if self.destination is not None and not (
            isinstance(self.destination, str) and self.destination
        ):
            raise ConfigurationError(
                f"recurring {name!r}: a destination is a queue name, got {self.destination!r:.80}"
            )
        if not isinstance(self.headers, Mapping):
            raise ConfigurationError(
                f"recurring {name!r}: headers are texts by their names, got {self.headers!r:.80}"
            )
        object.__setattr__(self, "headers", dict(self.headers))
        try:
            object.__setattr__(self, "policy", CatchUp(self.catch_up))
        except ValueError:
            known = ", ".join(repr(policy.value) for policy in CatchUp)
            raise ConfigurationError(
                f"recurring {name!r}: catch_up takes {known}, got {self.catch_up!r:.80}"
            ) from None
        try:
            object.__setattr__(self, "occurrences", parse(self.every))
        except ConfigurationError as error:
            raise ConfigurationError(f"recurring {name!r}: {error}") from error


def check_schedule_name(name: str) -> str:
    """Return *name* if a schedule can have it; otherwise raise ConfigurationError."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _NAME_LENGTH:
        raise ConfigurationError(
            f"the name of a recurring timeout is printable text of 1 to {_NAME_LENGTH} "
            f"characters, got {name!r:.80}"
        )
    return name
