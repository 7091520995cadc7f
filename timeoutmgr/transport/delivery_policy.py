"""Policies around the sends, steps and failures of an endpoint.

These policies are plain. A feature installs policies derived from them by ``FeatureParts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from timeoutmgr.contracts import SendResult, Timeout, Transaction, TransportSession
from timeoutmgr.errors import InvalidMessage, StorageUnavailable, TimeoutManagerError
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.transport.error_queue import FailedMessage
from timeoutmgr.transport.work import IsolatedSends, Work

if TYPE_CHECKING:
    from timeoutmgr.contracts import DeliveryOptions


class SendsMessages(Protocol):
    """A transport session, or a wrapper of its sends."""

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues, see ``TransportSession.send``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Parts that let a pump sit out an outage of a storage."""

    breaker: OutageBreaker
    probe: Callable[[], None]
    """Returns if the storage answers, raises StorageUnavailable if not."""

    def end(self, *, proved: bool) -> None:
        """Disarm the breaker: a batch *proved* that the storage works, else the probe must."""
        if not proved:
            try:
                self.probe()
            except StorageUnavailable as error:
                raise StorageOutage(self, error) from error
        self.breaker.success()


class StorageOutage(StorageUnavailable):
    """A storage is away that need not be the one behind the step of a pump: *outage* names it."""

    def __init__(self, outage: Outage, error: StorageUnavailable) -> None:
        super().__init__(str(error))
        self.outage = outage


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


@dataclass(frozen=True, slots=True)
class Settlement:
    """Undeliverable messages by their place.

    Nothing for *settled* messages; *postponed* messages stay stored, since their place is away or
    full; the *others* belong into the error queue.
    """

    settled: list[Undeliverable] = field(default_factory=list)
    postponed: list[Undeliverable] = field(default_factory=list)
    others: list[Undeliverable] = field(default_factory=list)


class SendingPolicy:
    """The policy of messages that a program sends: messages are sent as they are."""

    sends_at_once: ClassVar[bool] = True
    """Whether a session may send messages before the results of earlier sends are known."""

    def queue_of(self, destination: str) -> str:
        """Return the queue of *destination*; raise InvalidMessage if it has none."""
        return destination

    def delivery_headers(
        self, options: DeliveryOptions | None, headers: Mapping[str, str], destination: str
    ) -> Mapping[str, str]:
        """Return the headers that a new message needs besides *headers*; raise InvalidMessage."""
        if options is not None:
            raise InvalidMessage(
                "delivery is given and this endpoint has no dead-letter queues; enable "
                "DeadLetterQueues from timeoutmgr.deadletter, or leave it out"
            )
        return {}

    def before_storing(self, outgoing: Sequence[Outgoing], transaction: Transaction | None) -> None:
        """Prepare messages that are stored past their queue."""

    def wrap(self, session: TransportSession) -> SendsMessages:
        """Return *session*, or a wrapper of its sends."""
        return session


class HandlingPolicy:
    """The policy of messages that handlers receive and send: each message is handled."""

    def traces_expired(self, message: Message) -> bool:
        """Return whether *message*, received too late, must leave a trace; else it is discarded."""
        return False

    def refusal(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return why *message* does not belong into *queue*; None if it does."""
        return None

    def send(self, outgoing: Sequence[Outgoing], work: Work) -> list[SendResult]:
        """Send the messages of handlers, undone with the receive if the mode can."""
        return work.send(outgoing)

    def handled(self, message: Message, queue: str, work: Work) -> None:
        """Settle a message that the handlers have handled."""


class ForwardingPolicy:
    """The policy of due messages on their way: messages are passed on as they are."""

    sees_each_message: ClassVar[bool] = False
    """Whether each message must pass this process, also inside a single database."""

    def refusal(self, timeout: Timeout, at: Micros) -> TimeoutManagerError | None:
        """Return why *timeout* must not be passed on at the instant *at*; None if it may."""
        return None

    def tried(self, timeouts: Sequence[Timeout], at: Micros, work: IsolatedSends) -> None:
        """Note that *timeouts* could not be sent at the instant *at*; must not raise."""

    def forwarded(self, message: Message) -> Message:
        """Return *message* as its destination gets it."""
        return message

    def sent(
        self, outgoing: Sequence[Outgoing], results: Sequence[object], work: IsolatedSends
    ) -> None:
        """Note the *results* of a sent batch; must not raise, or the batch is sent twice."""

    def settle(self, failed: Sequence[Undeliverable], work: IsolatedSends) -> Settlement:
        """Settle undeliverable messages; a message without a place does not raise."""
        return Settlement(others=list(failed))


class FailurePolicy:
    """The policy of received messages that failed for good: all go to the error queue."""

    def divert(
        self, received: Received, error: Exception, open_work: Callable[[], Work]
    ) -> str | None:
        """Settle *received* in another place than the error queue; return the name of the place.

        None if the message belongs into the error queue. *open_work* returns a unit of work.
        """
        return None


PLAIN_SENDING: Final = SendingPolicy()
PLAIN_HANDLING: Final = HandlingPolicy()
PLAIN_FORWARDING: Final = ForwardingPolicy()
PLAIN_FAILURES: Final = FailurePolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicies:
    """The policies of an endpoint."""

    sending: SendingPolicy = PLAIN_SENDING
    handling: HandlingPolicy = PLAIN_HANDLING
    forwarding: ForwardingPolicy = PLAIN_FORWARDING
    failures: FailurePolicy = PLAIN_FAILURES


PLAIN: Final = DeliveryPolicies()
