"""Retry of dead letters: each is sent again to its destination, once, under the same id."""

import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum

from timeoutmgr.contracts import SendResult, Transaction, Transport, TransportSession
from timeoutmgr.deadletter.delivery_headers import without_limits
from timeoutmgr.deadletter.queues import StoredCopyQueue
from timeoutmgr.deadletter.service import DeadLetterService
from timeoutmgr.deadletter.stored_copy import StoredCopy
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.foreign import finally_to
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import check_destination
from timeoutmgr.transport.error_queue import message_fields

logger = logging.getLogger(__name__)


class Retry(StrEnum):
    """Result of a retry."""

    RETRIED = "retried"
    WOULD_RETRY = "would_retry"
    UNROUTABLE = "unroutable"
    NOT_ALLOWED = "not_allowed"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    MISSING = "missing"
    """Another retry or a purge was faster."""


@dataclass(frozen=True, slots=True)
class RetriedDeadLetter:
    """A dead letter without headers and body, and the result of its retry."""

    copy: StoredCopy
    what: Retry


def retry(
    transport: Transport,
    service: DeadLetterService,
    queue: StoredCopyQueue,
    copies: Iterable[StoredCopy],
    *,
    dry_run: bool = False,
    progress: Callable[[RetriedDeadLetter], None] = lambda _retried: None,
) -> list[RetriedDeadLetter]:
    """Send *copies* of *queue* to their destinations; delete the accepted dead letters.

    A copy is first sent and confirmed, then deleted. If queue and store share a database, both
    happen in one transaction; otherwise a crash in between repeats the message under the same id.
    Of two concurrent retries, only one sends. A transactional message is kept again until its final
    acknowledgement. Raises TransportUnavailable and StorageUnavailable.
    """
    done: list[RetriedDeadLetter] = []
    with closing(transport.session()) as session:
        for copy in copies:
            what = _permission(service, copy)
            if what is Retry.WOULD_RETRY and not dry_run:
                what = _retry(session, service, queue, copy)
            bare = replace(copy, message=Message(id=copy.message.id))
            done.append(RetriedDeadLetter(bare, what))
            progress(done[-1])
    return done


def _permission(service: DeadLetterService, copy: StoredCopy) -> Retry:
    """Return whether *copy* may be sent: a foreign program may have chosen its destination."""
    try:
        check_destination(
            copy.destination, service.limits, back_to=service.endpoint, message=copy.message
        )
    except InvalidMessage as error:
        logger.warning(
            "retry skips dead letter %.80r, its destination is not allowed: %s",
            copy.message.id,
            on_one_line(error),
            extra=message_fields("retry_not_allowed", copy.message, copy.destination),
        )
        return Retry.NOT_ALLOWED
    return Retry.WOULD_RETRY


def retried_message(copy: StoredCopy) -> Outgoing:
    """Return the message of *copy* for a second send: with its id, without its limits."""
    return finally_to(copy.destination, without_limits(copy.message))


def _retry(
    session: TransportSession, service: DeadLetterService, queue: StoredCopyQueue, copy: StoredCopy
) -> Retry:
    outgoing = retried_message(copy)
    apart = service.manager.store.database.begin
    # The node stays locked during the send: a second retry waits, and so does the final
    # acknowledgement. A crash here leaves the copy where it was.
    with session.transaction() if service.joins else apart() as transaction:
        if not queue.holds(copy, transaction):
            return Retry.MISSING
        within = replace(service, joins=True)
        within.before_sending([outgoing], transaction)
        result = _sent(session, outgoing, transaction if service.joins else None)
        if result is SendResult.CONFIRMED:
            acknowledgements = within.after_sending([outgoing], transaction)
            queue.delete([copy], transaction=transaction)
        elif copy.transactional:
            # ``before_sending`` moved the copy to ``awaiting``: place it again, with its class.
            service.manager.place(copy, transaction=transaction)
    if result is not SendResult.CONFIRMED:
        return Retry(result.value)
    session.send(acknowledgements)  # after the commit: its failure must not repeat the message
    return Retry.RETRIED


def _sent(
    session: TransportSession, outgoing: Outgoing, transaction: Transaction | None = None
) -> SendResult:
    try:
        [result] = session.send([outgoing], transaction=transaction)
    except InvalidMessage as error:
        # A message that the transport cannot carry (too large, say) must not block the rest.
        logger.warning(
            "transport cannot carry message %.80r: %s",
            outgoing.message.id,
            on_one_line(error),
            extra=message_fields("retry_refused", outgoing.message, outgoing.destination),
        )
        return SendResult.REFUSED
    return result
