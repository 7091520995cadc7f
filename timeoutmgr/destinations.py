"""Which queues a message may go to: patterns of names, and names that belong to the product."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Final

from timeoutmgr.errors import ConfigurationError

DESTINATION_BYTES: Final = 199
"""What RabbitMQ's 255 bytes of routing key leave beside 28 delay levels."""
SATELLITES: Final = (".Timeouts", ".TimeoutsDispatcher", ".timeouts", ".Acknowledgements")
"""How queues end that only a timeout manager's own parts send to."""
UNFIT: Final = (
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    r"\ud800-\udfff]"
)
"""Characters that no destination has, as Python and Java write them: control characters, signs that
are not seen or turn a line round, line separators, and lone surrogates."""


def is_satellite_queue(name: str) -> bool:
    """Return whether *name* is a queue that only a timeout manager's own parts send to."""
    return name.endswith(SATELLITES)


def is_satellite_of(name: str, endpoint: str) -> bool:
    """Return whether *name* is a satellite's queue of *endpoint*."""
    return name.startswith(endpoint) and name[len(endpoint) :] in SATELLITES


@dataclass(frozen=True, slots=True, eq=False)
class DestinationPatterns:
    """Shell patterns of the queues that are allowed and refused, ready to be matched.

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
    """Return *patterns* as a tuple, refusing a lone string that was meant as a list."""
    if isinstance(patterns, str):
        raise ConfigurationError(f"expected a list of names, got the text {patterns!r}")
    return tuple(patterns)


def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(translate(each)) for each in patterns)
