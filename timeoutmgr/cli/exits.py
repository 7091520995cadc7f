"""Exit codes, and which error ends with which."""

from enum import IntEnum
from typing import Final

from timeoutmgr.errors import (
    ConfigurationError,
    DeliveryUnknown,
    InvalidMessage,
    StorageUnavailable,
    TransportUnavailable,
    Unroutable,
)


class Exit(IntEnum):
    """How a command ended, for scripts."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFIGURATION = 4
    UNAVAILABLE = 5
    FINDINGS = 6
    UNDECIDABLE = 7
    CRITICAL = 70
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "failed, or not all of it was done; the output says what",
    Exit.USAGE: "bad input or usage; nothing was done",
    Exit.NOT_FOUND: "not found, or too late: it was sent already, or may have been",
    Exit.CONFIGURATION: "the configuration is refused; nothing was started",
    Exit.UNAVAILABLE: "storage or broker cannot be reached, or did not confirm",
    Exit.FINDINGS: "looked, and found what should not be: lost messages, a broken promise",
    Exit.UNDECIDABLE: "looked, and found nothing; but what was lost could not have been seen",
    Exit.CRITICAL: "a critical error ended the endpoint",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}


def exit_of(error: Exception) -> Exit:
    """Return the exit code that *error* ends a command with."""
    match error:
        case InvalidMessage():
            return Exit.USAGE
        case Unroutable():
            return Exit.NOT_FOUND
        case ConfigurationError():
            return Exit.CONFIGURATION
        case TransportUnavailable() if _is_refused(error):
            return Exit.CONFIGURATION
        case StorageUnavailable() | TransportUnavailable() | DeliveryUnknown():
            return Exit.UNAVAILABLE
        case _:
            return Exit.FAILED


_REFUSED: Final = (403, 530)
"""Reply codes of AMQP for a wrong password and for a virtual host that does not exist."""


def _is_refused(error: Exception) -> bool:
    """Return whether a broker answered and refused who asks: to wait would mend nothing."""
    return getattr(error.__cause__, "reply_code", None) in _REFUSED
