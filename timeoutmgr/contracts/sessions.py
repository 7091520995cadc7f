"""Contracts of sessions with a broker: sending to queues, and receiving from them."""

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
    """Messages that were written, and whose answers from the broker are pending."""

    def results(self) -> list[SendResult]:
        """Wait for the answers; return the result of each message in order, UNKNOWN without answer.

        Raises no error of the broker, even if the connection is lost.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """A Sending whose answers have all come."""

    answers: Sequence[SendResult]

    def results(self) -> list[SendResult]:
        """Return the result of each message, in order."""
        return list(self.answers)


@runtime_checkable
class StartsSending(Protocol):
    """A session whose user need not wait for the broker's answers."""

    def start_sending(self, outgoing: Sequence[Outgoing]) -> Sending:
        """Write *outgoing*, as ``send`` does, without waiting for the broker's answers.

        Several sends may be pending, and the session may be used for other calls. Messages are
        written in the order of the calls. Results may be read in any order, or not at all, in the
        thread that uses the session. If the session bounds its unanswered messages, the call waits
        until the bound allows more. Raises as ``send`` does, before anything is written; pending
        messages are not affected.
        """
        ...


@runtime_checkable
class BrowsesQueues(Protocol):
    """A session that can browse a queue; no session needs to."""

    def browse(self, queue: str, limit: int) -> Generator[Received]:
        """Yield up to *limit* messages of *queue*, the oldest first; none is moved or settled.

        Browsing must not count towards a delivery limit: a session that cannot avoid this raises
        ConfigurationError. Raises QueueMissing and TransportUnavailable. A session may hide the
        messages from other consumers until the iterator is closed.
        """
        ...


@runtime_checkable
class FindsDestinations(Protocol):
    """A session whose destinations may be in another place than its endpoint's queues."""

    def missing_destinations(self, names: Collection[str]) -> list[str]:
        """Return the *names* that certainly do not exist."""
        ...


@runtime_checkable
class TellsTime(Protocol):
    """A session whose queues are in a system with a clock, such as a database; none needs to be."""

    def now(self, *, transaction: Transaction | None = None) -> Micros | None:
        """Return the time of that clock, read in *transaction* unless that is None.

        None if the host's clock is the only clock. Raises TransportUnavailable.
        """
        ...


class Receiver(Protocol):
    """A consumer of a queue, used by a single thread (except ``interrupt``)."""

    def receive(self, limit: int, wait: float) -> list[Received]:
        """Return up to *limit* messages, in order; wait at most *wait* seconds for the first.

        Returns early and empty when interrupted. Never raises for the content of a message: an
        unreadable envelope is a ``Received`` with its *defect*. Raises TransportUnavailable.
        Missing headers are filled from the broker's properties, see ``headers.OF_PROPERTIES``.
        """
        ...

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        """Acknowledge messages; in *transaction*, with its commit.

        Raises LeaseLost if another owner has received any of them; then roll back.
        """
        ...

    def release(self, received: Sequence[Received]) -> None:
        """Return messages to the queue for immediate redelivery, in their order if possible."""
        ...

    def interrupt(self) -> None:
        """Make a waiting ``receive`` return; may be called from any thread."""
        ...

    def close(self) -> None:
        """Stop consuming; unacknowledged messages go back. Closing twice is fine."""
        ...


@runtime_checkable
class ResizesPrefetch(Protocol):
    """A receiver to which a broker sends messages ahead; the pump decides how many."""

    def resize(self, prefetch: int) -> None:
        """Receive at most *prefetch* unacknowledged messages from now on."""
        ...


@runtime_checkable
class StandsBack(Protocol):
    """A receiver that can leave its messages to other consumers while a handler takes long."""

    def stand_back(
        self, received: Sequence[Received], may_return: Callable[[Received], bool]
    ) -> int:
        """Release *received* and the messages that were sent ahead; return how many.

        No more messages come until the next ``receive``. A message that was sent ahead is kept if
        *may_return* is false for it. Another thread calls this while a handler takes long, and the
        end of the batch waits for that thread. So it must not wait for the handler's transaction:
        it raises StorageConflict instead, and *received* is kept.
        """
        ...


class TransportSession(Protocol):
    """A connection used by one thread at a time. Every method raises TransportUnavailable."""

    def create_queues(self, names: Sequence[str], *, error_queue: str | None = None) -> None:
        """Create missing queues, durable; idempotent and safe to run concurrently.

        An existing queue is left as it is. The broker moves messages beyond a delivery limit to
        *error_queue*, so that the limit never drops a message.
        """
        ...

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return the *names* that do not exist."""
        ...

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues and their messages; ignore missing queues."""
        ...

    def count(self, queue: str) -> int:
        """Return approximately how many messages wait in *queue*."""
        ...

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues; return the result of each, in order.

        A message is durable when it is CONFIRMED (in *transaction*: when that commits). The
        message's own id is kept. Headers that control a broker are removed.
        """
        ...

    def receiver(self, queue: str, *, prefetch: int) -> Receiver:
        """Return a consumer of *queue*, which must exist (QueueMissing)."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction for ``send``, ``ack`` and a store: commits, or rolls back on error.

        Only if the capabilities name SENDS_ATOMIC_WITH_RECEIVE.
        """
        ...

    def ping(self) -> None:
        """Return if the broker answers."""
        ...

    def close(self) -> None:
        """Let go of the connection; closing twice is fine."""
        ...
