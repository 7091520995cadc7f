"""The port to dead-letter queues, for the paths of a message in an endpoint that has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterResult:
    """Messages to send because a message became a dead letter.

    *needed* tells its source, which alone has a copy: unless it is confirmed, the message must go
    another way. *notifications* are for senders that asked for a report; a missing queue is their
    own fault. *report* is the line for the log, to be written once the message is settled.
    """

    needed: tuple[Outgoing, ...] = ()
    notifications: tuple[Outgoing, ...] = ()
    report: str = ""


class DeadLetters(Protocol):
    """The dead-letter queues and journals of this endpoint's node."""

    def queue_of(self, destination: str) -> str:
        """Return the queue that *destination*, which may be a format name, stands for.

        Raises InvalidMessage if nothing can be sent to it.
        """
        ...

    def delivery_headers(
        self, given: Any, headers: Mapping[str, str], destination: str
    ) -> dict[str, str]:
        """Return the delivery headers of a new message with *headers*.

        *given* are DeliveryOptions, or None. Raises InvalidMessage if the node cannot keep them.
        """
        ...

    def before_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> None:
        """Keep a copy of transactional messages until their final acknowledgement."""
        ...

    def after_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Note the messages that reached their queues; return the acknowledgements to send."""
        ...

    def refusal(self, message: Message, waited: Micros) -> TimeoutManagerError | None:
        """Return why *message*, which *waited* here, must not be passed on; None if it may."""
        ...

    def passed_on(self, message: Message) -> Message:
        """Return *message* with one hop more."""
        ...

    def dead_letter(
        self,
        message: Message,
        error: BaseException,
        *,
        queue: str,
        attempts: int = 0,
        transaction: Transaction | None = None,
    ) -> DeadLetterResult | None:
        """Place *message*, which *error* kept from being delivered to *queue*.

        None where it leaves no dead letter (its level, its error, a full queue): then it belongs
        into the error queue. Repeatable. Raises StorageUnavailable.
        """
        ...

    def expires_with_trace(self, message: Message) -> bool:
        """Return whether *message*, received too late, is to be buried, not just discarded."""
        ...

    def misfit(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return why *message* does not fit *queue* of this endpoint; None if it fits."""
        ...

    def received(
        self, message: Message, queue: str, transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Journal the handled *message*; return the acknowledgements to send."""
        ...
