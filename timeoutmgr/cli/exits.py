"""Exit codes, and the exit code of each error."""

from enum import IntEnum
from typing import Final, Protocol, runtime_checkable

from timeoutmgr.errors import (
    ConfigurationError,
    DeliveryUnknown,
    InvalidMessage,
    StorageUnavailable,
    TransportUnavailable,
    UnknownSchedule,
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
    Exit.FINDINGS: "the check found a problem: lost messages, a broken promise",
    Exit.UNDECIDABLE: "the check found no problem, but could not have detected a loss",
    Exit.CRITICAL: "a critical error ended the endpoint",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}


def exit_of(error: Exception) -> Exit:
    """Return the exit code of a command that ends with *error*."""
    match error:
        case InvalidMessage():
            return Exit.USAGE
        case Unroutable() | UnknownSchedule():
            return Exit.NOT_FOUND
        case ConfigurationError():
            return Exit.CONFIGURATION
        case StorageUnavailable() | TransportUnavailable() if _is_refused(error):
            return Exit.CONFIGURATION
        case StorageUnavailable() | TransportUnavailable() | DeliveryUnknown():
            return Exit.UNAVAILABLE
        case _:
            return Exit.FAILED


_REFUSED: Final = (403, 530)
"""Reply codes of AMQP for a wrong password and for a virtual host that does not exist."""


@runtime_checkable
class _AmqpError(Protocol):
    """An error of py-amqp, which has the reply code of the broker."""

    reply_code: int | None


def _is_refused(error: Exception) -> bool:
    """Return whether broker or database refused the user: then waiting does not help."""
    from timeoutmgr.database.failures import is_login_refused, is_right_missing

    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, _AmqpError) and cause.reply_code in _REFUSED:
            return True
        if is_login_refused(cause) or is_right_missing(cause):
            return True
        cause = cause.__cause__
    return False
