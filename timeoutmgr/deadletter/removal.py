"""Purge and delete queues so that each message gets its class and its dead letter.

If a broker deletes or purges a queue, it drops the messages.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import DeadLetters, Receiver, SendResult, Transport, TransportSession
from timeoutmgr.contracts.dead_letters import MessageClass
from timeoutmgr.deadletter.service import Rejected
from timeoutmgr.errors import MessageRejected, TransportUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.transport.error_queue import message_fields
from timeoutmgr.transport.queue_view import InstalledSatellites

logger = logging.getLogger(__name__)

_BATCH: Final = 200
_WAIT: Final = 1.0


@dataclass(slots=True)
class RemovalResult:
    """Number of messages removed from a queue, and number of dead letters that they left."""

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
    """Remove all messages from *queue*, then with *delete_queue* the queue itself.

    A message is first placed, then acknowledged: a crash in between leaves both, and a second purge
    repairs this. Stop consumers first: their unacknowledged messages are invisible here. A message
    whose level requests no dead letter is dropped. Raises QueueMissing, InvalidMessage for reserved
    queues, TransportUnavailable and StorageUnavailable; and MessageRejected at the end, if messages
    remain that cannot be copied.
    """
    check_destination(queue, Limits(is_satellite=InstalledSatellites(transport)))
    ended = MessageClass.NACK_Q_DELETED if delete_queue else MessageClass.NACK_Q_PURGED
    why = Rejected(ended, f"queue {queue!r} was {'deleted' if delete_queue else 'purged'}")
    removed = RemovalResult()
    with closing(transport.session()) as session:
        _empty(session, dead_letters, queue, why, removed, progress)
        # A broker deletes a queue with its messages, without a trace: empty it again first.
        while delete_queue and (left := session.count(queue)):
            before = removed.messages
            _empty(session, dead_letters, queue, why, removed, progress)
            if removed.messages == before:
                raise TransportUnavailable(
                    f"queue {queue!r} has {left} messages that it does not deliver, so it stays; "
                    "stop its consumers and try again"
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
    refused: MessageRejected | None = None
    with closing(session.receiver(queue, prefetch=_BATCH)) as receiver:
        while batch := receiver.receive(_BATCH, _WAIT):
            for received in batch:
                try:
                    removed.dead += _remove(session, receiver, dead_letters, received, why)
                except MessageRejected as error:  # not of the later messages
                    refused = error
                    continue
                removed.messages += 1
            progress(removed.messages)
    if refused is not None:
        raise MessageRejected(
            f"removed {removed.messages} messages from queue {queue!r}; messages remain of "
            f"which no dead letter can be kept, and only the broker can remove them: {refused}"
        ) from refused


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
                f"the source of message {received.message.id!r:.80} could not be notified of its "
                f"removal; the message stays in {received.queue!r}, try again later"
            )
        session.send(result.notifications)
    elif dead_letters.wants_dead_letter(received.message):
        raise TransportUnavailable(
            f"message {received.message.id!r:.80} asks for a dead letter and stays in "
            f"{received.queue!r}: the dead-letter queue is full (delete dead letters, or raise the "
            "quota), or the source that it names is refused (the log has the reason)"
        )
    receiver.ack([received])
    if result is not None and result.report:
        fields = message_fields("message_dead_lettered", received.message, received.queue)
        logger.error("%s", result.report, extra=fields)
    return result is not None
