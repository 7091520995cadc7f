"""Sending to queues and receiving from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Outgoing, Received


class SendResult(Enum):
    """Answer of the broker to a message."""

    CONFIRMED = "confirmed"
    """The broker has taken responsibility."""
    UNROUTABLE = "unroutable"
    """The queue does not exist; the broker did not take the message."""
    REFUSED = "refused"
    """The broker refused the message (full queue, alarm, missing exchange)."""
    UNKNOWN = "unknown"
    """No answer in time: the broker may or may not have taken the message."""


class Sending(Protocol):
    """Written messages whose answers from the broker are still to come."""

    def results(self) -> list[SendResult]:
        """Wait, and return the result of each message in order, UNKNOWN without an answer.

        Does not raise for the broker, also if the connection is lost.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """A finished sending, with its answers."""

    answers: Sequence[SendResult]

    def results(self) -> list[SendResult]:
        """Return the result of each message, in order."""
        return list(self.answers)


@runtime_checkable
class StartsSending(Protocol):
    """A session whose user can go on while the broker answers."""

    def start_sending(self, outgoing: Sequence[Outgoing]) -> Sending:
        """Write *outgoing*, as ``send`` does, and do not wait for the broker's answers.

        Several sends may be under way, and the session may be used otherwise meanwhile. Messages
        are written in the order of the calls; results may be asked for in any order, or not at
        all, in the thread that uses the session. A session that bounds its unanswered messages
        waits here if this would exceed the bound. Raises as ``send`` does, before anything is
        written; that does not change messages under way already.
        """
        ...


@runtime_checkable
class BrowsesQueues(Protocol):
    """A session that can browse a queue; no session needs to."""

    def browse(self, queue: str, limit: int) -> Generator[Received]:
        """Yield up to *limit* messages of *queue*, the oldest first; none is moved or settled.

        Browsing counts towards no delivery limit: a session that cannot browse like this raises
        ConfigurationError. Raises QueueMissing and TransportUnavailable. A session may hold the
        messages until the iterator is closed; other consumers do not see them meanwhile.
        """
        ...


@runtime_checkable
class FindsDestinations(Protocol):
    """A session whose destinations may be elsewhere than the queues of its endpoint."""

    def missing_destinations(self, names: Collection[str]) -> list[str]:
        """Return the *names* that are missing for sure."""
        ...


@runtime_checkable
class TellsTime(Protocol):
    """A session whose queues rest beside a clock, as in a database; no session needs a clock."""

    def now(self, *, transaction: Transaction | None = None) -> Micros | None:
        """Return the time of that clock, read in *transaction* unless that is None.

        None where the host's clock is the only clock. Raises TransportUnavailable.
        """
        ...


class Receiver(Protocol):
    """One consumer of one queue, used by one thread (but for ``interrupt``)."""

    def receive(self, limit: int, wait: float) -> list[Received]:
        """Return up to *limit* messages, in order; wait at most *wait* seconds for the first.

        Returns early and empty when interrupted. Never raises for the content of a message: an
        unreadable envelope is a ``Received`` with its *defect*. Raises TransportUnavailable.
        Missing headers are filled from the broker's properties, see ``headers.OF_PROPERTIES``.
        """
        ...

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        """Settle messages for good; in *transaction*, with its commit.

        Raises LeaseLost if another owner has any of them by now (roll back then).
        """
        ...

    def release(self, received: Sequence[Received]) -> None:
        """Give messages back, to be delivered again at once, in their order where possible."""
        ...

    def interrupt(self) -> None:
        """Make a waiting ``receive`` return; may be called from any thread."""
        ...

    def close(self) -> None:
        """Stop consuming; unacknowledged messages go back. Closing twice is fine."""
        ...


@runtime_checkable
class ResizesPrefetch(Protocol):
    """A receiver to which a broker sends ahead; the pump knows better how much is fit."""

    def resize(self, prefetch: int) -> None:
        """Have at most *prefetch* unacknowledged messages from now on."""
        ...


@runtime_checkable
class StandsBack(Protocol):
    """A receiver that lets other consumers have its messages while a handler takes long."""

    def stand_back(
        self, received: Sequence[Received], may_return: Callable[[Received], bool]
    ) -> int:
        """Release *received* and messages that were sent ahead; return how many.

        Until the next ``receive`` no more come. A message of those ahead is kept if *may_return*
        is false for it. Called while a handler takes long, from another thread, for which the end
        of the batch waits: it must not wait for the handler's transaction. Raises StorageConflict
        if it would; then *received* is kept.
        """
        ...


class TransportSession(Protocol):
    """A connection used by one thread at a time. Every method raises TransportUnavailable."""

    def create_queues(self, names: Sequence[str], *, error_queue: str | None = None) -> None:
        """Create the queues that do not exist, durable; twice and concurrently is fine.

        An existing queue is left as it is. The broker moves messages beyond a delivery limit to
        *error_queue*, so that a limit moves and never drops.
        """
        ...

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return the *names* that do not exist."""
        ...

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues and their messages; missing queues are fine."""
        ...

    def count(self, queue: str) -> int:
        """Return how many messages wait in *queue* (about)."""
        ...

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues; return the result of each, in order.

        A message is durable when it is CONFIRMED (in *transaction*: when that commits). The
        message's own id is kept. Headers that steer a broker are not passed on.
        """
        ...

    def receiver(self, queue: str, *, prefetch: int) -> Receiver:
        """Return a consumer of *queue*, which must exist (QueueMissing)."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction for ``send``, ``ack`` and a store: commits, or rolls back on error.

        Only where the capabilities name SENDS_ATOMIC_WITH_RECEIVE.
        """
        ...

    def ping(self) -> None:
        """Return if the broker answers."""
        ...

    def close(self) -> None:
        """Let go of the connection; closing twice is fine."""
        ...
