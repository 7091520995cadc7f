"""What cannot be delivered goes to the error queue whole, or as whole as that queue takes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from timeoutmgr.contracts import Sending, SendResult, Timeout, Transaction
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.error_queue import ErrorQueue, FailedMessage, SendAnswer


class Sends(Protocol):
    """Sends now; joins only the one transaction of queue and store, where there is one."""

    def send_isolated(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        """Send all and return what became of each, in order."""
        ...


class Starts(Sends, Protocol):
    """Sends, and leaves the wait for later."""

    def start_isolated(self, outgoing: Sequence[Outgoing]) -> Sending:
        """Send all; wait for what became of them when the results are asked for."""
        ...


class Joins(Sends, Protocol):
    """Knows the one transaction of queue and store, too."""

    @property
    def scope(self) -> Transaction | None:
        """That transaction, in ``transaction_scope``; else None."""
        ...

    def notify(self, outgoing: Sequence[Outgoing], *, isolated: bool) -> None:
        """Send what nobody here depends on."""
        ...


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """A timeout that no retry can deliver, as it was to be sent, and why."""

    timeout: Timeout
    message: Message
    error: TimeoutManagerError

    @property
    def failed(self) -> FailedMessage:
        """The message as it goes into the error queue; a retry sends it to its destination."""
        return FailedMessage(self.message, self.error, self.timeout.destination)


def move_to_error_queue(
    error_queue: ErrorQueue, failed: Sequence[Undeliverable], work: Sends
) -> list[SendAnswer]:
    """Copy each of *failed* into *error_queue*; return the answers to the copies."""
    return error_queue.move([one.failed for one in failed], lambda copies: send_each(copies, work))


def send_each(outgoing: Sequence[Outgoing], work: Sends) -> list[SendAnswer]:
    """Send all in one go; where one cannot be sent at all, it must not keep the others back."""
    try:
        return list(work.send_isolated(outgoing))
    except InvalidMessage as error:
        # Raised before anything was sent, and it does not say of which.
        if len(outgoing) == 1:
            return [error]
        return [result for one in outgoing for result in send_each([one], work)]


def start_each(outgoing: Sequence[Outgoing], work: Starts) -> Callable[[], list[SendAnswer]]:
    """Send as ``send_each`` does; return what waits for what became of each."""
    try:
        sending = work.start_isolated(outgoing)
    except InvalidMessage:
        results = send_each(outgoing, work)
        return lambda: results
    return lambda: list(sending.results())
