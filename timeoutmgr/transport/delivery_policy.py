"""Policies around the sends, steps and failures of an endpoint.

These policies are the defaults. A feature installs derived policies by ``FeatureParts``.
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
    """A transport session, or a wrapper around its sends."""

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues; see ``TransportSession.send``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The parts with which a pump waits for the end of a storage outage."""

    breaker: OutageBreaker
    probe: Callable[[], None]
    """Returns if the storage answers, and raises StorageUnavailable if not."""

    def end(self, *, proved: bool) -> None:
        """Disarm the breaker: if no batch *proved* that the storage works, the probe must."""
        if not proved:
            try:
                self.probe()
            except StorageUnavailable as error:
                raise StorageOutage(self, error) from error
        self.breaker.success()


class StorageOutage(StorageUnavailable):
    """The storage of *outage* is away; it need not be the storage behind the pump's step."""

    def __init__(self, outage: Outage, error: StorageUnavailable) -> None:
        super().__init__(str(error))
        self.outage = outage


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """A timeout that no retry can deliver, the *message* as it was to be sent, and the error."""

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

    *settled* messages are done; *postponed* messages stay stored, since their place is away or
    full; the *others* belong in the error queue.
    """

    settled: list[Undeliverable] = field(default_factory=list)
    postponed: list[Undeliverable] = field(default_factory=list)
    others: list[Undeliverable] = field(default_factory=list)


class SendingPolicy:
    """Policy for messages that a program sends: it sends them as they are."""

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
        """Prepare messages that are stored without passing through the queue."""

    def wrap(self, session: TransportSession) -> SendsMessages:
        """Return *session*, or a wrapper around its sends."""
        return session


class HandlingPolicy:
    """Policy for messages that handlers receive and send: it has each message handled."""

    def traces_expired(self, message: Message) -> bool:
        """Return whether *message*, received too late, must leave a trace or may be discarded."""
        return False

    def refusal(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return why *message* does not belong in *queue*; None if it does."""
        return None

    def send(self, outgoing: Sequence[Outgoing], work: Work) -> list[SendResult]:
        """Send the messages of handlers; undone with the receive if the mode supports it."""
        return work.send(outgoing)

    def handled(self, message: Message, queue: str, work: Work) -> None:
        """Settle a message that the handlers have handled."""


class ForwardingPolicy:
    """Policy for due messages on their way: it passes them on as they are."""

    sees_each_message: ClassVar[bool] = False
    """Whether each message must pass through this process, even within a single database."""

    def refusal(self, timeout: Timeout, at: Micros) -> TimeoutManagerError | None:
        """Return why *timeout* must not be passed on at the instant *at*, or None."""
        return None

    def tried(self, timeouts: Sequence[Timeout], at: Micros, work: IsolatedSends) -> None:
        """Note that *timeouts* could not be sent at the instant *at*; must not raise."""

    def forwarded(self, message: Message) -> Message:
        """Return *message* in the form that its destination gets."""
        return message

    def sent(
        self, outgoing: Sequence[Outgoing], results: Sequence[object], work: IsolatedSends
    ) -> None:
        """Note the *results* of a sent batch; must not raise, or the batch is sent twice."""

    def settle(self, failed: Sequence[Undeliverable], work: IsolatedSends) -> Settlement:
        """Settle undeliverable messages; do not raise for a message that has no place."""
        return Settlement(others=list(failed))


class FailurePolicy:
    """Policy for received messages that failed permanently: all go to the error queue."""

    def divert(
        self, received: Received, error: Exception, open_work: Callable[[], Work]
    ) -> str | None:
        """Settle *received* elsewhere than in the error queue; return the name of that place.

        None if the message belongs in the error queue. *open_work* returns a unit of work.
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
