"""The policies of an endpoint with dead letters: for sends, pumps and dispatches."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from timeoutmgr.contracts import DeadLetters, SendResult, Timeout, Transaction, TransportSession
from timeoutmgr.contracts.dead_letters import DeadLetterResult, DeliveryOptions
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    InvalidMessage,
    MessageRejected,
    NodeFull,
    StorageConflict,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.delivery_policy import (
    FailurePolicy,
    ForwardingPolicy,
    HandlingPolicy,
    Outage,
    SendingPolicy,
    Settlement,
    StorageOutage,
    Undeliverable,
)
from timeoutmgr.transport.error_queue import message_fields
from timeoutmgr.transport.work import IsolatedSends, Work, send_each

logger = logging.getLogger(__name__)

# --- around the sends of a program: copies are kept before, arrivals are recorded after -------


@dataclass(frozen=True, slots=True)
class KeepingSession:
    """A wrapper around the sends of a transport session."""

    session: TransportSession
    dead_letters: DeadLetters

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Keep copies, send, and record the arrivals; raise the errors of a session."""
        outgoing = self.dead_letters.ending(outgoing)
        # Store the copy first: a crash in between leaves a copy that expires, not a message without
        # a copy.
        self.dead_letters.before_sending(outgoing, transaction)
        reach("sending.source_keeps")
        results = self.session.send(outgoing, transaction=transaction)
        reach("sending.sent")
        arrived = confirmed(outgoing, results)
        with _outage_logged("sender", "arrivals", len(arrived), lambda _: transaction is not None):
            acknowledgements = self.dead_letters.after_sending(arrived, transaction)
            reach("sending.arrivals_noted")
            self.session.send(acknowledgements, transaction=transaction)
        return results


@contextmanager
def _outage_logged(
    actor: str, facts: str, number: int, breaks: Callable[[TimeoutManagerError], bool]
) -> Iterator[None]:
    """Log an outage in which *number* *facts* could not be recorded; raise it if it *breaks*.

    After an error, the caller sends messages again that were sent, unless a transaction undoes it.
    """
    try:
        yield
    except (StorageUnavailable, TransportUnavailable) as error:
        if breaks(error):
            raise
        text, fields = on_one_line(error), {"event": f"{facts}_not_noted"}
        logger.warning("%s could not note %d %s: %s", actor, number, facts, text, extra=fields)


@dataclass(frozen=True, slots=True)
class DeadLetterSending(SendingPolicy):
    """The sending policy of an endpoint with dead-letter queues."""

    dead_letters: DeadLetters
    sends_at_once: ClassVar[bool] = False

    def queue_of(self, destination: str) -> str:
        """Return the queue of *destination*, which may be a format name."""
        return self.dead_letters.queue_of(destination)

    def delivery_headers(
        self, options: DeliveryOptions | None, headers: Mapping[str, str], destination: str
    ) -> Mapping[str, str]:
        """Return the delivery headers of a new message with *headers*."""
        return self.dead_letters.delivery_headers(options, headers, destination)

    def before_storing(self, outgoing: Sequence[Outgoing], transaction: Transaction | None) -> None:
        """Keep copies of transactional messages."""
        self.dead_letters.before_sending(outgoing, transaction)

    def wrap(self, session: TransportSession) -> KeepingSession:
        """Return *session*, wrapped to keep copies and record arrivals."""
        return KeepingSession(session, self.dead_letters)


def confirmed(outgoing: Sequence[Outgoing], results: Sequence[object]) -> list[Outgoing]:
    """Return the messages that their queues confirmed."""
    both = zip(outgoing, results, strict=True)
    return [sent for sent, result in both if result is SendResult.CONFIRMED]


# --- around the steps of a pump: handled messages, and messages that failed for good ----------


@dataclass(frozen=True, slots=True)
class DeadLetterHandling(HandlingPolicy):
    """The handling policy of an endpoint with dead-letter queues; *outage* is their store's."""

    dead_letters: DeadLetters
    outage: Outage

    def traces_expired(self, message: Message) -> bool:
        """Return whether *message*, received too late, requests a dead letter."""
        return self.dead_letters.wants_dead_letter(message)

    def refusal(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return the reason why the rule of *queue* excludes *message*, or None."""
        return self.dead_letters.misfit(message, queue)

    def send(self, outgoing: Sequence[Outgoing], work: Work) -> list[SendResult]:
        """Keep copies, send with the receive, and record the arrivals."""
        outgoing = self.dead_letters.ending(outgoing)
        with _of_the_store(self.outage):
            self.dead_letters.before_sending(outgoing, work.transaction)
            reach("handler.source_keeps")
            results = work.send(outgoing)
            arrived = confirmed(outgoing, results)
            acknowledgements = self.dead_letters.after_sending(arrived, work.transaction)
        reach("handler.arrivals_noted")
        work.notify(acknowledgements)
        return results

    def handled(self, message: Message, queue: str, work: Work) -> None:
        """Journal the handled message; send its acknowledgements."""
        reach("handler.finished")
        with _of_the_store(self.outage):
            notifications = self.dead_letters.received(message, queue, work.transaction)
        work.notify(notifications)


@dataclass(frozen=True, slots=True)
class DeadLetterFailures(FailurePolicy):
    """The failure policy of an endpoint with dead-letter queues; *outage* is their store's."""

    dead_letters: DeadLetters
    telemetry: Telemetry
    outage: Outage

    def divert(
        self, received: Received, error: Exception, open_work: Callable[[], Work]
    ) -> str | None:
        """First place the message in a dead-letter queue, then settle it."""
        try:
            with open_work() as work:
                placed = self._place_received(received, error, work)
                if placed is None:
                    return None
                if not work.is_settled:
                    work.ack([received])
                    reach("pump.replaced")
        except (MessageRejected, InvalidMessage) as refusal:
            logger.warning(
                "pump keeps no dead letter of message %.80r: %s",
                received.message.id,
                on_one_line(refusal),
                extra=_received_fields("dead_letter_rejected", received),
            )
            return None
        if placed.report:
            logger.error("%s", placed.report, extra=_received_fields("dead_letter", received))
        self.telemetry.count("moved_to_dead_letters")
        return "a dead-letter queue"

    def _place_received(
        self, received: Received, error: Exception, work: Work
    ) -> DeadLetterResult | None:
        with _of_the_store(self.outage):
            placed = self.dead_letters.dead_letter(
                received.message,
                error,
                queue=received.queue,
                attempts=received.delivery_count + 1,
                transaction=work.transaction,
            )
        if placed is None:
            return None
        reach("pump.buried")
        if set(work.try_send(placed.needed)) - {SendResult.CONFIRMED}:
            return None
        reach("pump.source_told")
        work.notify(placed.notifications)
        reach("pump.told")
        return placed


@contextmanager
def _of_the_store(outage: Outage) -> Iterator[None]:
    """Report the store as away or full, so that the pump waits for the end of *outage*."""
    try:
        yield
    except StorageConflict:
        raise  # the pump tries again at once
    except StorageUnavailable as error:
        raise StorageOutage(outage, error) from error


def _received_fields(event: str, received: Received) -> dict[str, object]:
    fields = message_fields(event, received.message, received.queue)
    return {**fields, "attempt": received.delivery_count + 1}


# --- dead letters in the dispatch step: record arrivals, place undeliverable messages -----------
# Neither may raise for messages that are sent but not yet closed: they would be sent again.


@dataclass(frozen=True, slots=True)
class DeadLetterForwarding(ForwardingPolicy):
    """The forwarding policy of an endpoint with dead-letter queues."""

    dead_letters: DeadLetters
    sees_each_message: ClassVar[bool] = True

    def refusal(self, timeout: Timeout, at: Micros) -> TimeoutManagerError | None:
        """Return why *timeout* must not be passed on: too many hops, too late, source lost."""
        return self.dead_letters.refusal(timeout, at)

    def tried(self, timeouts: Sequence[Timeout], at: Micros, work: IsolatedSends) -> None:
        """Record the first attempts of *timeouts*, which began their transit."""
        with _outage_logged("dispatcher", "attempts", len(timeouts), partial(self._breaks, work)):
            self.dead_letters.tried(timeouts, at, work.scope)

    def forwarded(self, message: Message) -> Message:
        """Return *message* with one more hop."""
        return self.dead_letters.passed_on(message)

    def sent(
        self, outgoing: Sequence[Outgoing], results: Sequence[object], work: IsolatedSends
    ) -> None:
        """Record the messages that reached their queues; send the acknowledgements."""
        arrived = confirmed(outgoing, results)
        with _outage_logged("dispatcher", "arrivals", len(arrived), partial(self._breaks, work)):
            acknowledgements = self.dead_letters.after_sending(arrived, work.scope)
            reach("dispatch.arrivals_noted")
            work.notify(acknowledgements, isolated=True)

    def settle(self, failed: Sequence[Undeliverable], work: IsolatedSends) -> Settlement:
        """Place each message that must leave a dead letter."""
        found = Settlement()
        for one in failed:
            try:
                is_placed = self._place_timeout(one, work)
            except MessageRejected as error:
                logger.warning(
                    "dispatcher keeps no dead letter of timeout %.80r: %s",
                    one.timeout.id,
                    on_one_line(error),
                    extra=_timeout_fields("dead_letter_rejected", one),
                )
                found.others.append(one)
            except (StorageUnavailable, TransportUnavailable) as error:
                if self._breaks(work, error):
                    raise
                logger.error(
                    "timeout %.80r stays stored, there is no place for its dead letter yet: %s",
                    one.timeout.id,
                    on_one_line(error),
                    extra=_timeout_fields("dead_letter_postponed", one),
                )
                found.postponed.append(one)
            else:
                (found.settled if is_placed else found.others).append(one)
                reach("dispatch.buried")
        return found

    def _breaks(self, work: IsolatedSends, error: TimeoutManagerError) -> bool:
        """Return whether *error* leaves the transaction of *work* in doubt.

        A full node has changed nothing, and a separate store is not part of the queues'
        transaction. Neither must hold up other messages.
        """
        if work.scope is None or isinstance(error, NodeFull):
            return False
        return self.dead_letters.joins or isinstance(error, TransportUnavailable)

    def _place_timeout(self, one: Undeliverable, work: IsolatedSends) -> bool:
        placed = self.dead_letters.dead_letter(
            one.message,
            one.error,
            queue=one.timeout.destination,
            attempts=one.timeout.attempts + 1,
            transaction=work.scope,
        )
        if placed is None:
            return False
        reach("dispatch.dead_letter_placed")
        if set(send_each(placed.needed, work)) - {SendResult.CONFIRMED}:
            return False
        reach("dispatch.source_told")
        work.notify(placed.notifications, isolated=True)
        if placed.report:
            logger.error("%s", placed.report, extra=_timeout_fields("dead_letter", one))
        return True


def _timeout_fields(event: str, one: Undeliverable) -> dict[str, object]:
    fields = message_fields(event, one.message, one.timeout.destination)
    return {**fields, "timeout_id": one.timeout.id, "attempt": one.timeout.attempts + 1}
