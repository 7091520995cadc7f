"""A due message that no retry can deliver."""

from dataclasses import dataclass

from timeoutmgr.contracts import Timeout
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.message.message import Message
from timeoutmgr.transport.error_queue import FailedMessage


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """A timeout that no retry can deliver, its *message* as it was to be sent, and the error."""

    timeout: Timeout
    message: Message
    error: TimeoutManagerError

    @property
    def failed(self) -> FailedMessage:
        """The message for the error queue; a retry sends it to its destination."""
        return FailedMessage(self.message, self.error, self.timeout.destination)
