"""The ``<endpoint>.timeouts`` satellite: what arrives is stored, or sent on if it is due."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from timeoutmgr.contracts import (
    Clock,
    DeadLetters,
    RepeatKind,
    SendResult,
    Timeout,
    Transaction,
)
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
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.channel_log import ChannelLog
from timeoutmgr.satellites.delivery.forwarder import Forwarder
from timeoutmgr.satellites.delivery.undeliverable import move_to_error_queue, send_each
from timeoutmgr.satellites.timeout_manager.sender_clocks import SenderClocks
from timeoutmgr.satellites.timeout_manager.timeouts import Wake, read_timeout, read_wake
from timeoutmgr.satellites.timeout_manager.wake_limit import WakeLimit
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.error_queue import ErrorQueue
from timeoutmgr.transport.work import Work

from .adapter import Batches

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDelayed:
    """The step: a batch is stored, in one transaction, before it is acknowledged.

    What is due already goes straight on, in the receive transaction where there is one, and what
    its queue does not take at once is stored like the rest: the other attempts are the due
    poller's.
    """

    batches: Batches
    endpoint: str
    error_queue: str
    attempts: int
    limits: Limits
    clock: Clock
    telemetry: Telemetry
    ready: Callable[[], None]
    wake: Callable[[Micros], None]
    dead_letters: DeadLetters | None = None
    senders: SenderClocks | None = None
    wake_limit: WakeLimit = field(default_factory=WakeLimit)
    wake_log: ChannelLog = field(default_factory=lambda: ChannelLog("wakes"))

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Store *batch*; raises MessageRejected for one that is no delayed message."""
        self.ready()
        orders = [self._read(received.message) for received in batch]
        timeouts = [order for order in orders if isinstance(order, Timeout)]
        if self.senders is not None:
            self.senders.compare(timeouts)
        due = self._due_of(timeouts)
        later = [timeout for timeout in timeouts if timeout.due not in due]
        self._put(later, work)
        reach("delayed.stored")
        left = self._straight_on([one for one in timeouts if one.due in due], work)
        reach("delayed.sent_on")
        self._put(left, work)
        dues = [one.due for one in (*timeouts, *left)]
        wakes = [
            (received, order.due)
            for received, order in zip(batch, orders, strict=True)
            if isinstance(order, Wake)
        ]
        if wakes:
            self.telemetry.count("wakes_received", len(wakes))
            newest, _ = wakes[-1]
            self.wake_log.note(newest, self.clock.monotonic(), len(wakes))
            dues.append(self.wake_limit.poll_time(min(due for _, due in wakes), self.clock.now()))
        if dues:
            earliest = min(dues)
            # Not before: a poller woken by a row that it cannot see yet would sleep past it.
            work.after_commit(lambda: self.wake(earliest))

    def store_directly(
        self, messages: Sequence[Message], transaction: Transaction | None
    ) -> Sequence[RepeatKind | None]:
        """Store routed messages past the queue, by the same rules; nobody is woken.

        *transaction* is a caller's own; without one they are stored in one of their own. This
        store remembers no ids: all are new.
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
        """Return the due times of *timeouts* that have come, by the store's clock."""
        if all(timeout.due > self.clock.now() for timeout in timeouts):
            return set()
        now = self.batches.now()
        return {timeout.due for timeout in timeouts if timeout.due <= now}

    def _put(self, timeouts: Sequence[Timeout], work: Work) -> None:
        if timeouts:
            if work.scope is not None:
                self.batches.put(timeouts, work.scope)
            else:
                self.batches.put(timeouts, None)
            self.telemetry.count("delayed_stored", len(timeouts))

    def _straight_on(self, due: Sequence[Timeout], work: Work) -> list[Timeout]:
        """Send what is due; return what neither its queue took, nor those of the dead."""
        at = self.clock.now()
        forwarder = Forwarder(self.attempts, self.limits, self.dead_letters)
        prepared = forwarder.prepare(due, at)
        try:
            results = send_each(prepared.outgoing, work)
        except (StorageUnavailable, TransportUnavailable):
            raise
        except Exception as error:
            logger.warning(
                "receiver stores due messages that it could not send: %s", on_one_line(error)
            )
            return list(due)
        reach("delayed.sent")
        ended = forwarder.classify(prepared, results, work)
        self.telemetry.count("delayed_dispatched", len(ended.taken))
        self.telemetry.count("delayed_failed", len(ended.dead))
        left = [
            replace(one, attempts=one.attempts + (result is SendResult.REFUSED))
            for one, result in ended.again
        ]
        left += [one.timeout for one in ended.later]
        error_queue = ErrorQueue(self.error_queue, self.endpoint, at)
        results = move_to_error_queue(error_queue, ended.failed, work)
        for one, result in zip(ended.failed, results, strict=True):
            if result is SendResult.CONFIRMED:
                self.telemetry.count("delayed_failed")
            else:
                left.append(one.timeout)
        return left

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
