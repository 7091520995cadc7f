"""From the error queue back to where a message failed: sent and confirmed first, then removed.

Or removed for good, where that is asked for.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from timeoutmgr import headers
from timeoutmgr.cli.failures import ANY, FailureFilter
from timeoutmgr.config import EndpointSettings
from timeoutmgr.contracts import (
    Receiver,
    SendResult,
    TransactionMode,
    Transport,
    TransportSession,
)
from timeoutmgr.deadletter.marks import without_limits
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import Outgoing, Received
from timeoutmgr.resilience.error_copy import without_failure
from timeoutmgr.validation import Limits, check_destination

MOST_HELD: Final = 5_000
"""Messages that are passed over, and held meanwhile so that they do not come again."""
_WAIT: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which messages to retry; no ids means all, no limit as many as there are.

    *which* narrows the choice further; *delete* removes the chosen messages in place of a retry.
    """

    ids: frozenset[str] = frozenset()
    limit: int | None = None
    dry_run: bool = False
    which: FailureFilter = ANY
    delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What became of one message; *what* is ``left`` for one that was not chosen."""

    message_id: str
    queue: str | None
    what: str
    reason: str | None

    def document(self) -> dict[str, str | None]:
        """Return it for JSON."""
        return {
            "message_id": self.message_id,
            "queue": self.queue,
            "result": self.what,
            "failed_with": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorQueueOf:
    """The error queue *name* of *endpoint*, out of which a message goes as *limits* permit.

    A message in it says itself where it failed, and a stranger may have put it there.
    """

    name: str
    endpoint: str
    limits: Limits

    def refusal(self, queue: str) -> str | None:
        """Return why no message may go back to *queue*; None if it may."""
        try:
            check_destination(queue, self.limits, back_to=self.endpoint)
        except InvalidMessage as error:
            return str(error)
        return None


def error_queue_of(settings: EndpointSettings) -> ErrorQueueOf:
    """Return the error queue of the endpoint of *settings*."""
    return ErrorQueueOf(name=settings.error_queue, endpoint=settings.name, limits=settings.limits)


def retry_from(transport: Transport, errors: ErrorQueueOf, choice: Choice) -> list[Retried]:
    """Retry or delete the chosen messages of an error queue; all others go back at the end.

    It ends where the queue is empty. A message that fails again meanwhile, and so comes back, is
    left for the next time. Raises QueueMissing and TransportUnavailable.
    """
    atomic = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE in transport.capabilities.modes
    with closing(transport.session()) as session:
        send = _send_in_transaction if atomic else _send_then_ack
        with closing(session.receiver(errors.name, prefetch=MOST_HELD)) as receiver:
            return _retry(session, receiver, errors, choice, send)


_Send = Callable[[TransportSession, Receiver, Received, Outgoing], SendResult]


def _retry(
    session: TransportSession,
    receiver: Receiver,
    errors: ErrorQueueOf,
    choice: Choice,
    send: _Send,
) -> list[Retried]:
    results: list[Retried] = []
    wanted = set(choice.ids)
    retried: set[str] = set()
    held = 0
    left = choice.limit
    # A count of the queue is no bound: brokers leave out what is on its way, and what we hold.
    while held < MOST_HELD and left != 0:
        batch = receiver.receive(1, _WAIT)
        if not batch:
            break
        (received,) = batch
        if received.message.id in retried:
            held += 1
            continue
        result = _judge(received, wanted, errors, choice)
        if result.what == "deleted":
            receiver.ack([received])
        if result.what == "retried":
            again = without_limits(without_failure(received.message))
            outgoing = Outgoing(result.queue or "", again)
            answer = send(session, receiver, received, outgoing)
            retried.add(received.message.id)
            if answer is not SendResult.CONFIRMED:
                result = replace(result, what=answer.value)
        results.append(result)
        held += result.what not in ("retried", "deleted")
        if result.what != "left":
            wanted.discard(result.message_id)
            left = None if left is None else left - 1
        if choice.ids and not wanted:
            break
    # What is held goes back when the receiver is closed, all at once, and so in its order.
    return results


def judged(received: Received, errors: ErrorQueueOf, choice: Choice) -> Retried:
    """Return what *choice* does with *received*."""
    return _judge(received, set(choice.ids), errors, choice)


def _judge(received: Received, wanted: set[str], errors: ErrorQueueOf, choice: Choice) -> Retried:
    message = received.message
    queue = message.headers.get(headers.FAILED_QUEUE)
    reason = received.defect or message.headers.get(headers.EXCEPTION_MESSAGE)
    if (choice.ids and message.id not in wanted) or not choice.which.matches(received):
        what = "left"
    elif choice.delete:
        what = "would_delete" if choice.dry_run else "deleted"
    elif received.defect is not None:
        what = "unreadable"
    elif not queue:
        what = "names_no_queue"
    elif (refusal := errors.refusal(queue)) is not None:
        what, reason = "not_allowed", refusal
    else:
        what = "would_retry" if choice.dry_run else "retried"
    return Retried(message_id=message.id, queue=queue, what=what, reason=reason)


def _send_in_transaction(
    session: TransportSession, receiver: Receiver, received: Received, outgoing: Outgoing
) -> SendResult:
    with session.transaction() as transaction:
        (answer,) = session.send([outgoing], transaction=transaction)
        if answer is SendResult.CONFIRMED:
            receiver.ack([received], transaction=transaction)
    return answer


def _send_then_ack(
    session: TransportSession, receiver: Receiver, received: Received, outgoing: Outgoing
) -> SendResult:
    (answer,) = session.send([outgoing])
    if answer is SendResult.CONFIRMED:
        receiver.ack([received])
    return answer
