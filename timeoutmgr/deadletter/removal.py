"""Purge and delete queues through us: every message gets its class, and its dead letter.

A broker that deletes or purges a queue by itself drops what is in it.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import DeadLetters, Receiver, SendResult, Transport, TransportSession
from timeoutmgr.contracts.message_classes import MessageClass
from timeoutmgr.deadletter.failures import Rejected
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.message.validation import Limits, check_destination

logger = logging.getLogger(__name__)

_BATCH: Final = 200
_WAIT: Final = 1.0


@dataclass(slots=True)
class RemovalResult:
    """How many messages a queue had that nobody was handling, and how many left a dead letter."""

    messages: int = 0
    dead: int = 0


def remove_messages(
    transport: Transport,
    dead_letters: DeadLetters,
    queue: str,
    *,
    delete_queue: bool = False,
    progress: Callable[[int], None] = lambda _count: None,
) -> RemovalResult:
    """Take all messages out of *queue*, then delete it if asked to.

    Placed first, acknowledged second: a crash in between leaves both, and purging again mends it.
    What a consumer has in hand is not seen; stop consumers first. A message whose level asks for
    no dead letter is gone. Raises QueueMissing, InvalidMessage for queues that are not to be
    touched, TransportUnavailable and StorageUnavailable.
    """
    check_destination(queue, Limits())
    ended = MessageClass.NACK_Q_DELETED if delete_queue else MessageClass.NACK_Q_PURGED
    why = Rejected(ended, f"queue {queue!r} was {'deleted' if delete_queue else 'purged'}")
    removed = RemovalResult()
    with closing(transport.session()) as session:
        _empty(session, dead_letters, queue, why, removed, progress)
        # What a broker deletes with its queue leaves no trace, so nothing may have come since.
        while delete_queue and (left := session.count(queue)):
            before = removed.messages
            _empty(session, dead_letters, queue, why, removed, progress)
            if removed.messages == before:
                raise TransportUnavailable(
                    f"queue {queue!r} has {left} messages and hands none out; it is not deleted"
                )
        if delete_queue:
            session.delete_queues([queue])
    return removed


def _empty(
    session: TransportSession,
    dead_letters: DeadLetters,
    queue: str,
    why: Rejected,
    removed: RemovalResult,
    progress: Callable[[int], None],
) -> None:
    with closing(session.receiver(queue, prefetch=_BATCH)) as receiver:
        while batch := receiver.receive(_BATCH, _WAIT):
            for received in batch:
                removed.dead += _remove(session, receiver, dead_letters, received, why)
                removed.messages += 1
            progress(removed.messages)


def _remove(
    session: TransportSession,
    receiver: Receiver,
    dead_letters: DeadLetters,
    received: Received,
    why: Rejected,
) -> bool:
    result = dead_letters.dead_letter(received.message, why, queue=received.queue)
    if result is not None:
        if set(session.send(result.needed)) - {SendResult.CONFIRMED}:
            raise TransportUnavailable(
                f"the source of message {received.message.id!r:.80} could not be told that it is "
                f"removed; it stays in {received.queue!r}"
            )
        session.send(result.notifications)
    elif dead_letters.expires_with_trace(received.message):
        raise TransportUnavailable(
            f"message {received.message.id!r:.80} asks for a dead letter and the dead-letter queue "
            f"is full; it stays in {received.queue!r}"
        )
    receiver.ack([received])
    if result is not None and result.report:
        logger.error("%s", result.report)
    return result is not None
