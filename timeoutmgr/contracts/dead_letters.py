"""What the paths of a message ask of the dead-letter queues, where an endpoint has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.instants import Micros
from timeoutmgr.message import Message, Outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class Burial:
    """What is to be sent because a message died.

    *needed* tells its source, which alone has a copy: unless it is confirmed, the message must go
    another way. *told* is for those who asked to hear of it; a missing queue of theirs is theirs.
    *report* is the line for the log, to be written once the message is settled.
    """

    needed: tuple[Outgoing, ...] = ()
    told: tuple[Outgoing, ...] = ()
    report: str = ""


class DeadLetters(Protocol):
    """The dead-letter queues and journals of this endpoint's node."""

    def queue_of(self, destination: str) -> str:
        """Return the queue that *destination*, which may be a format name, stands for.

        Raises InvalidMessage for what cannot be sent to.
        """
        ...

    def marks(self, given: Any, headers: Mapping[str, str], destination: str) -> dict[str, str]:
        """Return what a new message with *headers* is to say of its own delivery.

        *given* is a Delivery, or None. Raises InvalidMessage for what cannot be kept.
        """
        ...

    def before_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> None:
        """Keep a copy of those that are transactional, until their final acknowledgement."""
        ...

    def after_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Note what has reached its queue, and return whom to tell."""
        ...

    def refusal(self, message: Message, waited: Micros) -> TimeoutManagerError | None:
        """Return why *message*, which *waited* here, must not be passed on; None if it may."""
        ...

    def passed_on(self, message: Message) -> Message:
        """Return *message* with one hop more."""
        ...

    def bury(
        self,
        message: Message,
        error: BaseException,
        *,
        queue: str,
        attempts: int = 0,
        transaction: Transaction | None = None,
    ) -> Burial | None:
        """Place *message*, which *error* kept from being delivered to *queue*.

        None where it leaves no dead letter (its level, its error, a full queue): then it belongs
        into the error queue. Repeatable. Raises StorageUnavailable.
        """
        ...

    def expires_with_trace(self, message: Message) -> bool:
        """Return whether *message*, received too late, is to be buried, not just discarded."""
        ...

    def misfit(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return why *message* is none for *queue* of this endpoint; None if it is one."""
        ...

    def received(
        self, message: Message, queue: str, transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Journal and acknowledge *message*, which was handled; return whom to tell."""
        ...
