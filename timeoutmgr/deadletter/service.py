"""The dead-letter service of an endpoint: the implementation of ``contracts.DeadLetters``."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from timeoutmgr.contracts import Clock, Timeout, Transaction
from timeoutmgr.contracts.dead_letters import (
    DeadLetterResult,
    DeliveryOptions,
    JournalLevel,
    MessageClass,
    is_negative,
    is_well_formed,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.deadletter.acknowledgements import final_acknowledgement, requested_acks
from timeoutmgr.deadletter.addresses import destination as queue_of
from timeoutmgr.deadletter.delivery_headers import (
    MOST_HOPS,
    DeliveryHeaders,
    one_hop_more,
    read_headers,
)
from timeoutmgr.deadletter.manager import FirstAttempt, QueueManager
from timeoutmgr.deadletter.stored_copy import DeliveryEnd, Placement
from timeoutmgr.errors import (
    DeliveryFailed,
    DeliveryUnknown,
    DestinationNotAllowed,
    InvalidMessage,
    MessageRejected,
    MessageTooLarge,
    QueueMissing,
    ReceivedTooLate,
    StorageUnavailable,
    TimeoutManagerError,
    Unroutable,
)
from timeoutmgr.message import headers as names
from timeoutmgr.message.foreign import is_delayed_by_broker
from timeoutmgr.message.instants import Micros, duration_micros, instant_of
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.routes import DELAYED, TIMEOUTS, final_destination
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.telemetry import Telemetry, count_each_of
from timeoutmgr.transport.error_queue import message_fields

logger = logging.getLogger(__name__)

# --- message classes of errors that prevent a delivery ----------------------------------------


class Rejected(MessageRejected):
    """Raised for a message that becomes a dead letter of *message_class*; no retry can help.

    Handlers and hooks raise it too: NACK_BAD_SIGNATURE if a signature does not match,
    NACK_BAD_ENCRYPTION if a body cannot be decrypted.
    """

    def __init__(self, message_class: int, reason: str) -> None:
        if not (is_well_formed(message_class) and is_negative(message_class)):
            raise ValueError(f"the class of a dead letter is negative, got {message_class!r}")
        super().__init__(reason)
        self.message_class = message_class


def class_of_error(error: BaseException | None) -> int | None:
    """Return the class of a message that failed with *error*, or None.

    None: the error (a bug in a handler, say) is not about delivery, and belongs to the error queue.
    """
    seen = 0
    fallback: int | None = None
    while error is not None and seen < 10:
        match error:
            case Rejected():
                return error.message_class
            case Unroutable() | QueueMissing():
                return MessageClass.NACK_BAD_DST_Q
            case ReceivedTooLate():
                return MessageClass.NACK_RECEIVE_TIMEOUT
            case DestinationNotAllowed():
                return MessageClass.NACK_ACCESS_DENIED
            case MessageTooLarge():
                return MessageClass.NACK_Q_EXCEED_QUOTA
            case DeliveryUnknown():
                return None
            case DeliveryFailed():
                return MessageClass.NACK_Q_EXCEED_QUOTA
            case MessageRejected():
                # The cause of the error may have a more exact class.
                fallback = MessageClass.NACK_RECEIVE_REJECTED
        error = error.__cause__
        seen += 1
    return fallback


# --- rules of an endpoint: copies of a message, and messages that its queue accepts. Pure -----


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalingRules:
    """Copies that an endpoint requests for its messages.

    *dead_letter_when_expiring* is for messages with a time to be received, *dead_letter* for all
    other messages. *journal* adds a copy of delivered messages. *all_transactional* is MSMQ 1.0's
    rule: every transactional message has a dead letter, even if its level says otherwise.
    """

    dead_letter: bool = True
    dead_letter_when_expiring: bool = False
    journal: bool = False
    all_transactional: bool = False

    def level(
        self, own: JournalLevel | None, *, expires: bool, transactional: bool
    ) -> JournalLevel:
        """Return the level of a message of this endpoint: its *own* level, or the default.

        *expires*: the message has a time to be received.
        """
        level = own
        if level is None:
            dead_letter = self.dead_letter_when_expiring if expires else self.dead_letter
            level = JournalLevel.DEADLETTER if dead_letter else JournalLevel.NONE
            if self.journal:
                level |= JournalLevel.JOURNAL
        if transactional and self.all_transactional:
            level |= JournalLevel.DEADLETTER
        return level


class AcceptedMessages(StrEnum):
    """The kind of messages that an endpoint's queue accepts; MSMQ fixes it at creation."""

    BOTH = "both"
    TRANSACTIONAL = "transactional"
    NONTRANSACTIONAL = "nontransactional"

    def refuses(self, *, transactional: bool) -> MessageClass | None:
        """Return the class of the dead letter, or None if the queue accepts the message."""
        if self is AcceptedMessages.TRANSACTIONAL and not transactional:
            return MessageClass.NACK_NOT_TRANSACTIONAL_MSG
        if self is AcceptedMessages.NONTRANSACTIONAL and transactional:
            return MessageClass.NACK_NOT_TRANSACTIONAL_Q
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterService:
    """Places and keeps copies for an endpoint of a node, and builds its acknowledgements.

    *joins*: the queue's transaction can span the store. *journaled* queues keep a copy of each
    received message; *takes* is the kind of messages that the endpoint's queue accepts.
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
    may_end: Callable[[str, bool], bool] = lambda _queue, _wants_dead_letter: False
    """Whether the transport may expire a message (which wants a dead letter) in its queue."""

    # --- the sender's side

    def queue_of(self, destination: str) -> str:
        """Return the queue of *destination*; a plain name is the name of a queue."""
        return queue_of(destination, self.manager.node, self.manager.store.nodes)

    def delivery_headers(
        self, given: DeliveryOptions | None, headers: Mapping[str, str], destination: str
    ) -> dict[str, str]:
        """Return the delivery headers of a new message."""
        asked = given or DeliveryOptions()
        level = self.rules.level(
            asked.journal,
            expires=names.TIME_TO_BE_RECEIVED in headers,
            transactional=asked.transactional,
        )
        if asked.dead_letter_queue is not None and JournalLevel.DEADLETTER not in level:
            raise InvalidMessage(
                f"dead_letter_queue {asked.dead_letter_queue!r} needs a journal level with "
                f"DEADLETTER, got {level!r}; set journal=JournalLevel.DEADLETTER"
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

    def ending(self, outgoing: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Return *outgoing* with a time to live for messages that may expire in their queue."""
        return [self._ending(one) for one in outgoing]

    def _ending(self, one: Outgoing) -> Outgoing:
        given = one.message.headers
        if names.TIME_TO_BE_RECEIVED not in given or names.EXPIRE in given or one.via is not None:
            return one
        delivery = read_headers(given)
        lifetime = delivery.time_to_be_received
        if lifetime is None or not self.may_end(one.destination, delivery.wants_dead_letter):
            return one
        return replace(one, time_to_live=duration_micros(lifetime))

    def before_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> None:
        """Keep a copy of each transactional message, and commit it before the send."""
        for one in outgoing:
            delivery = read_headers(one.message.headers)
            if not self._keeps(delivery):
                continue
            if transaction is not None and not self.joins:
                raise InvalidMessage(
                    f"message {one.message.id!r:.80} is transactional, and its transaction is not "
                    "in the database of the dead letters: a rollback would leave the copy. Set "
                    "the store of DeadLetterQueues to the database of the queues"
                )
            joined = self._joined(transaction)
            now = self.manager.now(joined)
            begins, lifetime = _dispatch(one, now), delivery.time_to_be_received
            arrives_by = begins + duration_micros(delivery.timers.until_arrival)
            queue = final_destination(one)
            end = DeliveryEnd(one.message, delivery, queue, MessageClass.NORMAL, now)
            self.manager.keep(
                [end.stored_copy()],
                arrives_by,
                None if lifetime is None else begins + duration_micros(lifetime),
                transaction=joined,
            )
            reach("deadletters.source_keeps")

    def after_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Record the messages that reached their queue, so no delayed messages."""
        acks: list[Outgoing] = []
        for one in outgoing:
            if names.EXPIRE in one.message.headers or is_delayed_by_broker(one):
                continue
            delivery = read_headers(one.message.headers)
            reached, now = MessageClass.ACK_REACH_QUEUE, self.clock.now()
            end = DeliveryEnd(one.message, delivery, one.destination, reached, now)
            acks += self._acks(end)
            if self._keeps(delivery):
                key = one.message.id, one.destination
                self.manager.arrived([key], transaction=self._joined(transaction))
                reach("deadletters.source_told")
            elif delivery.wants_journal and delivery.source_node == self.manager.node:
                self._journal(end, False, transaction)
                reach("deadletters.source_journaled")
        return acks

    # --- passing on

    def refusal(self, timeout: Timeout, at: Micros) -> TimeoutManagerError | None:
        """Return the reason why *timeout* must not be passed on at the instant *at*, or None."""
        message = timeout.message
        delivery = read_headers(message.headers)
        if not delivery.has_hops_left:
            return Rejected(
                MessageClass.NACK_HOP_COUNT_EXCEEDED,
                f"message {message.id!r:.80} was passed on more than {MOST_HOPS} times; look for "
                "endpoints that pass it on in a circle",
            )
        if self._has_lost_its_source(delivery):
            return Rejected(
                MessageClass.NACK_SOURCE_COMPUTER_GUID_CHANGED,
                f"message {message.id!r:.80} has a copy on an earlier installation of node "
                f"{self.manager.node!r}, which is lost; send the message again",
            )
        if self._is_in_transit_too_long(timeout, delivery.timers.reach_queue_micros, at):
            return Rejected(
                MessageClass.NACK_REACH_QUEUE_TIMEOUT,
                f"message {message.id!r:.80} did not reach its queue within "
                f"{delivery.time_to_reach_queue}",
            )
        return None

    def tried(
        self, timeouts: Sequence[Timeout], at: Micros, transaction: Transaction | None = None
    ) -> None:
        """Record the first attempts of *timeouts*, which began their transit."""
        attempts = [
            FirstAttempt(
                key=(one.message.id, one.destination),
                due=one.due,
                at=at,
                reach_queue=read_headers(one.message.headers).timers.reach_queue_micros,
            )
            for one in timeouts
        ]
        if attempts:
            self.manager.note_attempts(attempts, transaction=self._joined(transaction))

    def _is_in_transit_too_long(self, timeout: Timeout, limit: Micros, at: Micros) -> bool:
        # The time until a message is due, or until the first attempt, is not time in transit. No
        # attempt comes before the due time, so a message that is on time needs no query.
        if at - timeout.due < limit:
            return False
        try:
            key = timeout.message.id, timeout.destination
            first = self.manager.first_attempt(key, timeout.due)
        except StorageUnavailable as error:
            # One attempt more does no harm.
            logger.info(
                "node %s could not read the first attempt of message %.80r: %s",
                self.manager.node,
                timeout.message.id,
                on_one_line(error),
                extra=self._fields("attempt_unreadable", timeout.message, timeout.destination),
            )
            return False
        return first is not None and at - first >= limit

    def passed_on(self, message: Message) -> Message:
        """Return *message* with one more hop; a delayed retry returns here, and is not a hop."""
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
        """Place *message* on this node, or build the request for its source to move its copy."""
        message_class = class_of_error(error)
        if message_class is None:
            return None
        delivery = read_headers(message.headers)
        if queue.endswith((TIMEOUTS, DELAYED)) and names.EXPIRE in message.headers:
            # A lost delayed message would go unnoticed: it always leaves a dead letter.
            delivery = replace(delivery, journal=delivery.journal | JournalLevel.DEADLETTER)
        if not delivery.wants_dead_letter:
            return None
        end = DeliveryEnd(message, delivery, queue, message_class, self.clock.now(), str(error))
        acks = tuple(self._acks(end))
        source = delivery.source_node
        if delivery.transactional and source is not None and source != self.manager.node:
            final = self._final(end)
            return DeadLetterResult(needed=tuple(final), notifications=acks) if final else None
        copy = end.stored_copy(attempts)
        placed = self.manager.place(copy, transaction=self._joined(transaction))
        reach("deadletters.buried")
        if placed is not Placement.PLACED:
            self.telemetry.count("dead_letters_over_quota")
            logger.error(
                "node %s discards message %.80r, its dead-letter queue is full: %s",
                self.manager.node,
                message.id,
                on_one_line(end.reason),
                extra=self._fields("dead_letter_discarded", message, queue),
            )
            return None
        self.telemetry.count("dead_letters_placed")
        count_each_of(self.telemetry)("dead_letters", [copy.class_name])
        report = (
            f"message {message.id!r:.80} for {queue!r:.80} is dead ({copy.class_name}) on node "
            f"{self.manager.node}: {on_one_line(end.reason)}"
        )
        return DeadLetterResult(notifications=acks, report=report)

    def wants_dead_letter(self, message: Message) -> bool:
        """Return whether *message* requests a dead letter."""
        return read_headers(message.headers).wants_dead_letter

    def misfit(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return the reason why *queue* does not accept *message*, or None."""
        refused = self.takes.refuses(transactional=read_headers(message.headers).transactional)
        if refused is None:
            return None
        return Rejected(
            refused,
            f"queue {queue!r} accepts only {self.takes} messages; message {message.id!r:.80} is "
            "of the other kind",
        )

    def received(
        self, message: Message, queue: str, transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Journal a received message; settle its source's copy, directly or by a message."""
        delivery = read_headers(message.headers)
        ended = MessageClass.ACK_RECEIVE
        end = DeliveryEnd(message, delivery, queue, ended, self.clock.now())
        if queue in self.journaled:
            self._journal(end, True, transaction)
            reach("deadletters.target_journaled")
        acks = self._acks(end)
        if delivery.awaits_final_acknowledgement and delivery.source_node is not None:
            if delivery.source_node == self.manager.node:
                key, joined = (message.id, queue), self._joined(transaction)
                self.manager.acknowledge(key, ended, transaction=joined)
                reach("deadletters.source_settled")
            else:
                acks += self._final(end)
        return acks

    def _final(self, end: DeliveryEnd) -> list[Outgoing]:
        """Return the final acknowledgement to another node's source, if that is allowed."""
        try:
            return [final_acknowledgement(end, self.limits)]
        except InvalidMessage as error:
            logger.warning(
                "node %s does not acknowledge message %.80r to its source: %s",
                self.manager.node,
                end.message.id,
                on_one_line(error),
                extra=self._fields("final_acknowledgement_refused", end.message, end.queue),
            )
            return []

    def _acks(self, end: DeliveryEnd) -> list[Outgoing]:
        try:
            # A foreign program may have sent it, and must not make us write to arbitrary queues.
            if end.delivery.admin_queue is not None:
                check_destination(end.delivery.admin_queue, self.limits)
        except InvalidMessage as error:
            logger.warning(
                "node %s could not notify the admin queue of message %.80r: %s",
                self.manager.node,
                end.message.id,
                on_one_line(error),
                extra=self._fields("admin_queue_refused", end.message, end.queue),
            )
            return []
        return requested_acks(end)

    def _has_lost_its_source(self, delivery: DeliveryHeaders) -> bool:
        """Return whether an earlier installation of this node kept the message."""
        if not (delivery.transactional and delivery.source_node == self.manager.node):
            return False
        return delivery.source_guid is not None and self._guid() not in (None, delivery.source_guid)

    def _guid(self) -> str | None:
        try:
            return self.manager.guid()
        except StorageUnavailable as error:
            # If the GUID is unavailable, skip the reinstall check.
            logger.info(
                "node %s could not read its GUID: %s",
                self.manager.node,
                on_one_line(error),
                extra={"event": "node_guid_unreadable", "endpoint": self.endpoint},
            )
            return None

    def _keeps(self, delivery: DeliveryHeaders) -> bool:
        return delivery.awaits_final_acknowledgement and delivery.source_node == self.manager.node

    def _journal(self, end: DeliveryEnd, target: bool, transaction: Transaction | None) -> None:
        copy, joined = end.stored_copy(), self._joined(transaction)
        try:
            placed = self.manager.journal(copy, target=target, transaction=joined)
        except MessageRejected as error:
            # Delivered already: do not raise, or the message would be sent or handled twice.
            logger.warning(
                "node %s keeps no journal copy of message %.80r: %s",
                self.manager.node,
                end.message.id,
                on_one_line(error),
                extra=self._fields("journal_copy_rejected", end.message, end.queue),
            )
            return
        if placed is Placement.OVER_QUOTA:
            self.telemetry.count("journal_over_quota")

    def _fields(self, event: str, message: Message, queue: str) -> dict[str, str]:
        return {**message_fields(event, message, queue), "endpoint": self.endpoint}

    def _joined(self, transaction: Transaction | None) -> Any:
        return transaction if self.joins else None


def _dispatch(outgoing: Outgoing, now: Micros) -> Micros:
    """Return the instant at which a message's transit begins; if it is delayed, its due time."""
    due = names.DELIVER_AT if is_delayed_by_broker(outgoing) else names.EXPIRE
    return max(now, instant_of(outgoing.message.headers, due, now))
