"""Messages without a binding of the delivery exchange: forwarded if their queue exists now.

RabbitMQ would keep such a message in its last delay level, and after 32 of them the level would
deliver nothing for any endpoint. So the alternate exchange routes it here instead.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.contracts import Clock, Timeout
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    InvalidMessage,
    MessageRejected,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, instant_of
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.native.levels import read_routing_key
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.delivery_policy import PLAIN_FORWARDING, ForwardingPolicy, Undeliverable
from timeoutmgr.transport.error_queue import ErrorQueue
from timeoutmgr.transport.work import Work, send_each

from .dispatch import move_to_error_queue
from .forwarder import classify_results

logger = logging.getLogger(__name__)

_CLOCKS_DIFFER: Final[Micros] = 1_000_000
"""Microseconds by which this clock may be behind the sender's: the wait of the shortest level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleUnroutable:
    """The step on the queue of messages that the delay levels could not deliver.

    A queue that was created or bound too late still gets its message. If there is no queue, the
    policy settles the message, or it goes into the error queue with the destination as FailedQ, so
    that a retry sends it to its destination.
    """

    endpoint: str
    error_queue: str
    limits: Limits
    clock: Clock
    telemetry: Telemetry
    policy: ForwardingPolicy = PLAIN_FORWARDING
    rest: Callable[[float], None] = field(default=time.sleep)
    """Waits for at least so many seconds."""

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Settle each message of *batch*; raise if the batch must be redelivered."""
        batch = [each for each in batch if headers.PROBE not in each.message.headers]
        at = self._now_caught_up(batch)
        arrived, failed = self._parted(batch, at)
        outgoing = [Outgoing(one.destination, one.message) for one in arrived]
        found = classify_results(arrived, outgoing, send_each(outgoing, work), attempts=1)
        self.telemetry.count("unroutable_delivered", len(found.confirmed))
        reach("unroutable.sent_on")
        failed += found.failed
        try:
            if found.again:
                raise TransportUnavailable(
                    f"{len(found.again)} messages were sent on from the delay levels without a "
                    "confirm; they are tried again"
                )
            self.telemetry.count("unroutable", len(failed))
            self._to_error_queue(self._not_settled(failed, work), at, work)
        except (StorageUnavailable, TransportUnavailable):
            # Forwarded messages must not be redelivered together with the other messages.
            undone = {one.message.id for one in failed}
            undone |= {one.message.id for one, _ in found.again}
            work.ack([each for each in batch if each.message.id not in undone])
            raise

    def _now_caught_up(self, batch: Sequence[Received]) -> Micros:
        """Return the time, after a wait in which this clock catches up with a sender's clock."""
        at = self.clock.now()
        early = [due - at for each in batch if (due := _due(each)) is not None]
        behind = max((one for one in early if 0 < one < _CLOCKS_DIFFER), default=0)
        self.rest(behind / 1_000_000)
        return at + behind

    def _parted(
        self, batch: Sequence[Received], at: Micros
    ) -> tuple[list[Timeout], list[Undeliverable]]:
        """Separate messages that are due and may go to their destination from the rest."""
        arrived: list[Timeout] = []
        failed: list[Undeliverable] = []
        for received in batch:
            message = received.message
            key = read_routing_key(received.routing_key or "")
            destination = received.queue if key is None else key[1]
            one = Timeout(id=message.id, due=at, destination=destination, message=message)
            why = _stray(received) if key is None else self._refusal(received, destination, at)
            if why is None:
                arrived.append(one)
            else:
                failed.append(Undeliverable(one, message, why))
        return arrived, failed

    def _refusal(
        self, received: Received, destination: str, at: Micros
    ) -> TimeoutManagerError | None:
        """Return why *received* must not be forwarded to *destination* now; None if it may be."""
        due = _due(received)
        if due is not None and due > at:
            return _too_early(received)
        try:
            check_destination(destination, self.limits)
        except InvalidMessage as error:
            return error
        return None

    def _not_settled(self, failed: list[Undeliverable], work: Work) -> list[Undeliverable]:
        settlement = self.policy.settle(failed, work)
        if settlement.postponed:
            raise StorageUnavailable(
                f"{len(settlement.postponed)} unroutable messages have no place now"
            )
        return settlement.others

    def _to_error_queue(self, failed: list[Undeliverable], at: Micros, work: Work) -> None:
        error_queue = ErrorQueue(self.error_queue, self.endpoint, at)
        _, kept = move_to_error_queue(error_queue, failed, work)
        if kept:
            raise TransportUnavailable(
                f"the error queue {self.error_queue!r} did not take unroutable message "
                f"{kept[0].timeout.id!r:.80} ({kept[0].answer}); it is tried again"
            )
        reach("unroutable.error_copies_confirmed")


def _due(received: Received) -> Micros | None:
    """Return when the message is due, or None: a message of another program may not say so."""
    return instant_of(received.message.headers, headers.DELIVER_AT, None)


def _stray(received: Received) -> TimeoutManagerError:
    return MessageRejected(
        f"message {received.message.id!r:.80} came out of the delay levels under the routing key "
        f"{(received.routing_key or '')[:80]!r}, which names no destination; expected 28 bits and "
        "the name of a queue"
    )


def _too_early(received: Received) -> TimeoutManagerError:
    return MessageRejected(
        f"message {received.message.id!r:.80} came out of the delay levels before it was due "
        f"({received.message.headers.get(headers.DELIVER_AT)}); is a level's binding missing? "
        "Run `timeoutmgr install`, then retry it from here when it is due"
    )
