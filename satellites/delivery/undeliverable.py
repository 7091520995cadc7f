"""What cannot be delivered goes to the error queue whole, or as whole as that queue takes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypedDict

from timeoutmgr.contracts import Sending, SendResult, Timeout, Transaction
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.instants import Micros
from timeoutmgr.message import Message, Outgoing
from timeoutmgr.resilience.error_copy import bare_error_copy, error_copy, minimal_error_copy

Sent: TypeAlias = SendResult | InvalidMessage
"""What became of a message; an InvalidMessage where the transport cannot carry it at all."""


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

    def tell(self, outgoing: Sequence[Outgoing], *, isolated: bool) -> None:
        """Send what nobody here depends on."""
        ...


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """A timeout that no retry can deliver, as it was to be sent, and why."""

    timeout: Timeout
    message: Message
    error: TimeoutManagerError


def send_each(outgoing: Sequence[Outgoing], work: Sends) -> list[Sent]:
    """Send all in one go; where one cannot be sent at all, it must not keep the others back."""
    try:
        return list(work.send_isolated(outgoing))
    except InvalidMessage as error:
        # Raised before anything was sent, and it does not say of which.
        if len(outgoing) == 1:
            return [error]
        return [result for one in outgoing for result in send_each([one], work)]


def start_each(outgoing: Sequence[Outgoing], work: Starts) -> Callable[[], list[Sent]]:
    """Send as ``send_each`` does; return what waits for what became of each."""
    try:
        sending = work.start_isolated(outgoing)
    except InvalidMessage:
        results = send_each(outgoing, work)
        return lambda: results
    return lambda: list(sending.results())


@dataclass(frozen=True, slots=True)
class ErrorQueue:
    """The error queue of *endpoint*, at the instant *at*."""

    name: str
    endpoint: str
    at: Micros

    def take(self, failed: Sequence[Undeliverable], work: Sends) -> list[Sent]:
        """Copy each into the queue; return what became of the copies.

        A copy's FailedQ is the destination, so that retrying sends the message there.
        """
        results = send_each([Outgoing(self.name, self._whole(one)) for one in failed], work)
        for place, one in enumerate(failed):
            what: _Where = {"queue": one.timeout.destination, "reason": str(one.error)}
            if results[place] is SendResult.REFUSED or isinstance(results[place], InvalidMessage):
                smaller = minimal_error_copy(one.message, **what)
                [results[place]] = send_each([Outgoing(self.name, smaller)], work)
            if isinstance(results[place], InvalidMessage):
                # What came in cannot go out as it is.
                bare = bare_error_copy(one.message, **what)
                [results[place]] = send_each([Outgoing(self.name, bare)], work)
        return results

    def _whole(self, one: Undeliverable) -> Message:
        queue = one.timeout.destination
        return error_copy(one.message, one.error, queue=queue, endpoint=self.endpoint, at=self.at)


class _Where(TypedDict):
    queue: str
    reason: str
