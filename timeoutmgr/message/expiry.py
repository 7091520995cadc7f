"""Messages with a time to be received, after which an endpoint does not handle them."""

from dataclasses import dataclass
from datetime import timedelta

from timeoutmgr.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Whether messages that are received too late are not handled; *allowance* is for clocks."""

    discard: bool = True
    allowance: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        """Check the allowance."""
        if self.allowance < timedelta(0):
            raise ConfigurationError(
                f"the allowance for clocks must not be negative, got {self.allowance}"
            )
