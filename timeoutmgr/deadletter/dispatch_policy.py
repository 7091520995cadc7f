"""Dead letters in the dispatch step: arrivals are noted, undeliverable messages are placed.

Neither may raise for messages that are sent and not yet closed: they would be sent again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from timeoutmgr.contracts import DeadLetters, SendResult
from timeoutmgr.crashpoints import reach
from timeoutmgr.deadletter.session_policy import confirmed
from timeoutmgr.errors import (
    MessageRejected,
    NodeFull,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.delivery_policy import ForwardingPolicy, Settlement, Undeliverable
from timeoutmgr.transport.work import IsolatedSends, send_each

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetterForwarding(ForwardingPolicy):
    """The forwarding policy of an endpoint with dead-letter queues."""

    dead_letters: DeadLetters
    sees_each_message: ClassVar[bool] = True

    def refusal(self, message: Message, waited: Micros) -> TimeoutManagerError | None:
        """Return why *message* must not be passed on: too many hops, too late, source lost."""
        return self.dead_letters.refusal(message, waited)

    def forwarded(self, message: Message) -> Message:
        """Return *message* with one hop more."""
        return self.dead_letters.passed_on(message)

    def sent(
        self, outgoing: Sequence[Outgoing], results: Sequence[object], work: IsolatedSends
    ) -> None:
        """Note the messages that reached their queues; send the acknowledgements."""
        arrived = confirmed(outgoing, results)
        try:
            acknowledgements = self.dead_letters.after_sending(arrived, work.scope)
            reach("dispatch.arrivals_noted")
            work.notify(acknowledgements, isolated=True)
        except (StorageUnavailable, TransportUnavailable) as error:
            if work.scope is not None:
                raise  # all of it is undone together
            logger.warning(
                "dispatcher could not record the arrival of %d messages: %s",
                len(arrived),
                on_one_line(error),
                extra={"event": "arrivals_not_noted"},
            )

    def settle(self, failed: Sequence[Undeliverable], work: IsolatedSends) -> Settlement:
        """Place each message that leaves a dead letter."""
        found = Settlement()
        for one in failed:
            try:
                is_placed = self._place(one, work)
            except MessageRejected as error:
                logger.warning(
                    "dispatcher keeps no dead letter of timeout %.80r: %s",
                    one.timeout.id,
                    on_one_line(error),
                    extra=_fields("dead_letter_rejected", one),
                )
                found.others.append(one)
            except (StorageUnavailable, TransportUnavailable) as error:
                # A full node has changed nothing, and must not hold up other messages.
                if work.scope is not None and not isinstance(error, NodeFull):
                    raise
                logger.error(
                    "timeout %.80r stays stored, the node has no room for its dead letter: %s",
                    one.timeout.id,
                    on_one_line(error),
                    extra=_fields("dead_letter_postponed", one),
                )
                found.postponed.append(one)
            else:
                (found.settled if is_placed else found.others).append(one)
                reach("dispatch.buried")
        return found

    def _place(self, one: Undeliverable, work: IsolatedSends) -> bool:
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
            logger.error("%s", placed.report, extra=_fields("dead_letter", one))
        return True


def _fields(event: str, one: Undeliverable) -> dict[str, object]:
    return {
        "event": event,
        "message_id": one.message.id,
        "timeout_id": one.timeout.id,
        "destination": one.timeout.destination,
        "attempt": one.timeout.attempts + 1,
    }
