"""The ``<endpoint>.timeouts`` satellite: stores messages, or sends them if they are due."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from timeoutmgr.contracts import RepeatKind, SendResult, Timeout, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    InvalidMessage,
    MessageRejected,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.satellites.delivery.dispatch import (
    BatchDispatch,
    ClosedElsewhere,
    DispatchMeter,
    RetryLater,
    StepPoints,
    addressed,
    finish,
    sent_of,
)
from timeoutmgr.satellites.delivery.forwarder import Forwarder
from timeoutmgr.satellites.timeout_manager.timeouts import (
    StoringStep,
    Wake,
    read_timeout,
    read_wake,
)
from timeoutmgr.telemetry import Operation
from timeoutmgr.transport.delivery_policy import PLAIN_FORWARDING, ForwardingPolicy
from timeoutmgr.transport.work import Work

from .adapter import Batches

logger = logging.getLogger(__name__)

_POINTS: Final = StepPoints(
    locked="delayed.stored",
    confirmed="delayed.sent",
    error_copied="delayed.sent_on",
    closed="delayed.sent_on",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDelayed(StoringStep):
    """The step: store a batch in one transaction, before it is acknowledged.

    A message that is already due is sent directly, in the receive transaction if there is one. If
    its queue does not accept it, it is stored like the rest, and the due poller tries again.
    """

    batches: Batches
    endpoint: str
    error_queue: str
    attempts: int
    ready: Callable[[], None]
    policy: ForwardingPolicy = PLAIN_FORWARDING
    _meter: DispatchMeter = field(init=False)

    def __post_init__(self) -> None:
        """Ask the telemetry once what it observes."""
        object.__setattr__(self, "_meter", DispatchMeter(self.telemetry, "delayed"))

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Store *batch*; raises MessageRejected for a message that is not delayed."""
        self.ready()
        orders = [self._read(received.message) for received in batch]
        timeouts = [order for order in orders if isinstance(order, Timeout)]
        if self.senders is not None:
            self.senders.compare(timeouts)
        due = self._due_of(timeouts)
        later = [timeout for timeout in timeouts if timeout.due not in due]
        self._put(later, work)
        left = self._straight_on([one for one in timeouts if one.due in due], work)
        self._put(left, work)
        self._wake_after_commit([*later, *left], batch, orders, work)

    def store_directly(
        self, messages: Sequence[Message], transaction: Transaction | None
    ) -> Sequence[RepeatKind | None]:
        """Store routed messages, bypassing the queue, by the same rules; no poller is woken.

        *transaction* is a caller's own; without it the messages are stored in their own
        transaction. This store does not remember ids, so every id is new.
        """
        timeouts: list[Timeout] = []
        for message in messages:
            order = self._read(message)
            if not isinstance(order, Timeout):
                raise InvalidMessage(
                    f"message {message.id!r:.80} is not delayed and cannot be stored"
                )
            timeouts.append(order)
        if transaction is None:
            self.ready()
        self.batches.put(timeouts, transaction)
        return [None] * len(timeouts)

    def _due_of(self, timeouts: Sequence[Timeout]) -> set[Micros]:
        """Return the due times of *timeouts* that have passed by the store's clock."""
        if all(timeout.due > self.clock.now() for timeout in timeouts):
            return set()
        now = self.batches.now()
        return {timeout.due for timeout in timeouts if timeout.due <= now}

    def _put(self, timeouts: Sequence[Timeout], work: Work) -> None:
        if timeouts:
            with self._meter.during(Operation.STORE, addressed(timeouts)):
                self.batches.put(timeouts, work.scope)
            self.telemetry.count("delayed_stored", len(timeouts))
            self._meter.count_each("delayed_stored", (one.destination for one in timeouts))

    def _straight_on(self, due: Sequence[Timeout], work: Work) -> list[Timeout]:
        """Send *due*; return the messages that reached neither their queue nor the error queue."""
        # The acknowledgement of the batch settles its messages.
        sending = self._step(ClosedElsewhere(due, self.clock.now()), work)
        try:
            next(sending)
        except (StorageUnavailable, TransportUnavailable):
            raise
        except Exception as error:
            logger.warning(
                "receiver stores due messages that it could not send: %s",
                on_one_line(error),
                extra={"event": "stored_unsent", "endpoint": self.endpoint},
            )
            reach("delayed.sent_on")
            return list(due)
        result = finish(sending)
        self._meter.count(result)
        self._meter.late_by_host(result.at, sent_of(result.dispatched))
        return [_attempted(one) for one in result.retries]

    @property
    def _step(self) -> BatchDispatch:
        return BatchDispatch(
            endpoint=self.endpoint,
            error_queue=self.error_queue,
            forwarder=Forwarder(self.attempts, self.limits, self.policy),
            points=_POINTS,
            during=self._meter.during,
        )

    def _read(self, message: Message) -> Timeout | Wake:
        if headers.CLEAR_TIMEOUTS in message.headers:
            raise MessageRejected(
                "a delayed message store cannot clear timeouts: it does not read its "
                "messages. Use TimeoutManager, or send a time to be received"
            )
        if headers.WAKE in message.headers:
            return read_wake(message)
        if headers.ON_CONFLICT in message.headers:
            raise MessageRejected(
                f"message {message.id!r} says on_conflict, and a delayed message store does not "
                "remember which ids were used. Use TimeoutManager, or send without on_conflict"
            )
        return read_timeout(message, self.endpoint, self.limits, self.clock.now())


def _attempted(one: RetryLater) -> Timeout:
    """Return the message to store, with the attempt if its own queue refused it."""
    counts = one.answer is SendResult.REFUSED and not one.is_undeliverable
    return replace(one.timeout, attempts=one.timeout.attempts + counts)
