"""The dead-letter queues as the product's own paths use them: ``contracts.DeadLetters``."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from timeoutmgr.contracts import Clock, Transaction
from timeoutmgr.contracts.dead_letters import DeadLetterResult
from timeoutmgr.contracts.delivery_options import DeliveryOptions
from timeoutmgr.contracts.message_classes import JournalLevel, MessageClass
from timeoutmgr.crashpoints import reach
from timeoutmgr.deadletter.acknowledgements import final_acknowledgement, requested_acknowledgements
from timeoutmgr.deadletter.addresses import destination as queue_of
from timeoutmgr.deadletter.delivery_headers import (
    MOST_HOPS,
    DeliveryHeaders,
    one_hop_more,
    read_delivery_headers,
)
from timeoutmgr.deadletter.failures import Rejected, class_of
from timeoutmgr.deadletter.levels import AcceptedMessages, JournalingRules
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.stored_copy import Placement, StoredCopy, stored_copy_of
from timeoutmgr.errors import InvalidMessage, StorageUnavailable, TimeoutManagerError
from timeoutmgr.message import headers as names
from timeoutmgr.message.instants import Micros, duration_micros, from_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.routes import DELAYED, TIMEOUTS, final_destination
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.telemetry import Telemetry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterService:
    """Places, keeps and tells for one endpoint of a node.

    *joins* says that the queue's transaction can span the store. *journaled* are the queues here
    that keep a copy of what was received from them, *takes* is what they are for.
    """

    manager: QueueManager
    endpoint: str
    rules: JournalingRules
    clock: Clock
    telemetry: Telemetry
    limits: Limits
    joins: bool
    journaled: frozenset[str] = frozenset()
    takes: AcceptedMessages = AcceptedMessages.BOTH

    # --- the sender's side

    def queue_of(self, destination: str) -> str:
        """Return the queue that *destination* stands for; a plain name is a queue's own."""
        return queue_of(destination, self.manager.node, self.manager.store.nodes)

    def delivery_headers(
        self, given: DeliveryOptions | None, headers: Mapping[str, str], destination: str
    ) -> dict[str, str]:
        """Return the headers that say how a message is to be delivered."""
        asked = given or DeliveryOptions()
        level = self.rules.level(
            asked.journal,
            expires=names.TIME_TO_BE_RECEIVED in headers,
            transactional=asked.transactional,
        )
        if asked.dead_letter_queue is not None and JournalLevel.DEADLETTER not in level:
            raise InvalidMessage(
                f"dead_letter_queue {asked.dead_letter_queue!r} needs a journal level with "
                f"DEADLETTER, and it has {level!r}; say journal=JournalLevel.DEADLETTER"
            )
        admin_queue = None if asked.admin_queue is None else self.queue_of(asked.admin_queue)
        if admin_queue is not None:
            check_destination(admin_queue, self.limits)
        own = asked.dead_letter_queue
        made = DeliveryHeaders(
            journal=level,
            transactional=asked.transactional,
            acknowledge=asked.acknowledge,
            admin_queue=admin_queue,
            source_node=self.manager.node,
            source_guid=self._guid() if asked.transactional else None,
            source_queue=self.endpoint,
            dead_letter_queue=None if own is None else self.queue_of(own),
        )
        if asked.time_to_reach_queue is not None:
            made = replace(made, time_to_reach_queue=asked.time_to_reach_queue)
        return made.as_headers()

    def before_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> None:
        """Keep a copy of those that are transactional; committed before anything is sent."""
        now = self.clock.now()
        for one in outgoing:
            delivery = read_delivery_headers(one.message.headers)
            if not self._keeps(delivery):
                continue
            if transaction is not None and not self.joins:
                raise InvalidMessage(
                    f"message {one.message.id!r:.80} is transactional and sent inside a "
                    "transaction of another database than the dead letters': the copy would stay "
                    "if that is undone. Give DeadLetterQueues the queues' own database as its store"
                )
            begins, time_to_be_received = _dispatch(one, now), delivery.time_to_be_received
            arrives_by = begins + duration_micros(delivery.timers.until_arrival)
            copy = self._stored_copy(
                one.message, delivery, MessageClass.NORMAL, final_destination(one), now
            )
            self.manager.keep(
                [copy],
                arrives_by,
                None
                if time_to_be_received is None
                else begins + duration_micros(time_to_be_received),
                transaction=self._joined(transaction),
            )
            reach("deadletters.source_keeps")

    def after_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Note what reached its queue: what is still to be delayed has not."""
        acknowledgements: list[Outgoing] = []
        for one in outgoing:
            if names.EXPIRE in one.message.headers or one.via is not None:
                continue
            delivery = read_delivery_headers(one.message.headers)
            acknowledgements += self._acknowledgements(
                one.message, delivery, one.destination, MessageClass.ACK_REACH_QUEUE
            )
            if self._keeps(delivery):
                key = one.message.id, one.destination
                self.manager.arrived([key], transaction=self._joined(transaction))
                reach("deadletters.source_told")
            elif delivery.wants_journal and delivery.source_node == self.manager.node:
                self._journal(one.message, delivery, one.destination, False, transaction)
                reach("deadletters.source_journaled")
        return acknowledgements

    # --- passing on

    def refusal(self, message: Message, waited: Micros) -> TimeoutManagerError | None:
        """Return why *message* must not be passed on any more, if so."""
        delivery = read_delivery_headers(message.headers)
        if not delivery.has_hops_left:
            return Rejected(
                MessageClass.NACK_HOP_COUNT_EXCEEDED,
                f"message {message.id!r:.80} was passed on more than {MOST_HOPS} times; does it "
                "go in circles?",
            )
        if self._has_lost_its_source(delivery):
            return Rejected(
                MessageClass.NACK_SOURCE_COMPUTER_GUID_CHANGED,
                f"message {message.id!r:.80} was kept by node {self.manager.node!r} as it was "
                "before it was installed anew; the copy is gone, and nobody would hear how it "
                "ended",
            )
        # Not before a first try: time at rest, until it was due, is no time on the way.
        if waited > 0 and waited >= delivery.timers.reach_queue_micros:
            return Rejected(
                MessageClass.NACK_REACH_QUEUE_TIMEOUT,
                f"message {message.id!r:.80} did not reach its queue within "
                f"{delivery.time_to_reach_queue}",
            )
        return None

    def passed_on(self, message: Message) -> Message:
        """Return *message* with one hop more; a delayed retry is no hop, it comes back here."""
        if names.RETRIES in message.headers:
            return message
        return replace(message, headers=one_hop_more(message.headers))

    # --- the end

    def dead_letter(
        self,
        message: Message,
        error: BaseException,
        *,
        queue: str,
        attempts: int = 0,
        transaction: Transaction | None = None,
    ) -> DeadLetterResult | None:
        """Place it where it died, or have its source move the copy that it keeps."""
        message_class = class_of(error)
        if message_class is None:
            return None
        delivery = read_delivery_headers(message.headers)
        if queue.endswith((TIMEOUTS, DELAYED)) and names.EXPIRE in message.headers:
            # What is to be delayed always leaves a trace: nobody else would miss it.
            delivery = replace(delivery, journal=delivery.journal | JournalLevel.DEADLETTER)
        if not delivery.wants_dead_letter:
            return None
        now, reason = self.clock.now(), str(error)
        acknowledgements = tuple(
            self._acknowledgements(message, delivery, queue, message_class, reason)
        )
        source = delivery.source_node
        if delivery.transactional and source is not None and source != self.manager.node:
            final = self._final(message, delivery, queue, message_class, reason)
            return (
                DeadLetterResult(needed=tuple(final), notifications=acknowledgements)
                if final
                else None
            )
        copy = replace(
            self._stored_copy(message, delivery, message_class, queue, now),
            reason=reason,
            attempts=attempts,
        )
        placed = self.manager.place(copy, transaction=self._joined(transaction))
        reach("deadletters.buried")
        if placed is not Placement.PLACED:
            self.telemetry.count("dead_letters_over_quota")
            logger.error(
                "node %s refuses message %.80r, its dead-letter queue is full: %s",
                self.manager.node,
                message.id,
                on_one_line(reason),
            )
            return None
        self.telemetry.count("dead_letters_placed")
        report = (
            f"message {message.id!r:.80} for {queue!r:.80} is dead ({copy.class_name}) on node "
            f"{self.manager.node}: {on_one_line(reason)}"
        )
        return DeadLetterResult(notifications=acknowledgements, report=report)

    def expires_with_trace(self, message: Message) -> bool:
        """Return whether it asks for a dead letter."""
        return read_delivery_headers(message.headers).wants_dead_letter

    def misfit(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return why *queue* does not take *message*, by what it is for."""
        refused = self.takes.refuses(
            transactional=read_delivery_headers(message.headers).transactional
        )
        if refused is None:
            return None
        return Rejected(
            refused,
            f"queue {queue!r} takes {self.takes} messages only; message {message.id!r:.80} is not "
            "one",
        )

    def received(
        self, message: Message, queue: str, transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Journal what was received here; settle, or have settled, what its source keeps."""
        delivery = read_delivery_headers(message.headers)
        ended = MessageClass.ACK_RECEIVE
        if queue in self.journaled:
            self._journal(message, delivery, queue, True, transaction)
            reach("deadletters.target_journaled")
        acknowledgements = self._acknowledgements(message, delivery, queue, ended)
        if delivery.awaits_final_acknowledgement and delivery.source_node is not None:
            if delivery.source_node == self.manager.node:
                key, joined = (message.id, queue), self._joined(transaction)
                self.manager.acknowledge(key, ended, transaction=joined)
                reach("deadletters.source_settled")
            else:
                acknowledgements += self._final(message, delivery, queue, ended)
        return acknowledgements

    def _final(
        self,
        message: Message,
        delivery: DeliveryHeaders,
        queue: str,
        message_class: int,
        reason: str = "",
    ) -> list[Outgoing]:
        """Return what tells another node's source; nothing where no message may go there."""
        try:
            final = final_acknowledgement(
                message,
                delivery,
                self.limits,
                queue=queue,
                message_class=message_class,
                at=self.clock.now(),
                reason=reason,
            )
        except InvalidMessage as error:
            logger.warning(
                "node %s does not acknowledge message %.80r to its source: %s",
                self.manager.node,
                message.id,
                on_one_line(error),
            )
            return []
        return [final]

    def _acknowledgements(
        self,
        message: Message,
        delivery: DeliveryHeaders,
        queue: str,
        message_class: int,
        reason: str = "",
    ) -> list[Outgoing]:
        try:
            # Its sender may be a stranger, who must not have us write to any queue.
            if delivery.admin_queue is not None:
                check_destination(delivery.admin_queue, self.limits)
        except InvalidMessage as error:
            logger.warning(
                "node could not notify the admin queue of message %.80r: %s",
                message.id,
                on_one_line(error),
            )
            return []
        return requested_acknowledgements(
            message, delivery, queue, message_class, self.clock.now(), reason
        )

    def _has_lost_its_source(self, delivery: DeliveryHeaders) -> bool:
        """Return whether this node kept the message when it was another installation."""
        if not (delivery.transactional and delivery.source_node == self.manager.node):
            return False
        return delivery.source_guid is not None and self._guid() not in (None, delivery.source_guid)

    def _guid(self) -> str | None:
        try:
            return self.manager.store.known_guid(self.manager.node)
        except StorageUnavailable as error:
            # What is not known harms nobody: it only leaves a later change unnoticed.
            logger.info(
                "node %s could not read its GUID: %s", self.manager.node, on_one_line(error)
            )
            return None

    def _keeps(self, delivery: DeliveryHeaders) -> bool:
        return delivery.awaits_final_acknowledgement and delivery.source_node == self.manager.node

    def _journal(
        self,
        message: Message,
        delivery: DeliveryHeaders,
        queue: str,
        target: bool,
        transaction: Transaction | None,
    ) -> None:
        ended = MessageClass.ACK_RECEIVE if target else MessageClass.ACK_REACH_QUEUE
        copy = self._stored_copy(message, delivery, ended, queue, self.clock.now())
        placed = self.manager.journal(copy, target=target, transaction=self._joined(transaction))
        if placed is Placement.OVER_QUOTA:
            self.telemetry.count("journal_over_quota")

    def _stored_copy(
        self,
        message: Message,
        delivery: DeliveryHeaders,
        message_class: int,
        destination: str,
        now: Micros,
    ) -> StoredCopy:
        return stored_copy_of(message, delivery, message_class, destination=destination, kept=now)

    def _joined(self, transaction: Transaction | None) -> Any:
        return transaction if self.joins else None


def _dispatch(outgoing: Outgoing, now: Micros) -> Micros:
    """Return from when on a message is on its way: a delayed one when it is due."""
    due = names.EXPIRE if outgoing.via is None else names.DELIVER_AT
    try:
        return max(now, from_wire(outgoing.message.headers.get(due, "")))
    except ValueError:
        return now
