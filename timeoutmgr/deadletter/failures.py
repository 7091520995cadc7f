"""Message classes of errors that prevent a delivery."""

from timeoutmgr.contracts.dead_letters import MessageClass, is_negative, is_well_formed
from timeoutmgr.errors import (
    DeliveryFailed,
    DeliveryUnknown,
    DestinationNotAllowed,
    MessageRejected,
    MessageTooLarge,
    QueueMissing,
    ReceivedTooLate,
    Unroutable,
)


class Rejected(MessageRejected):
    """A message that becomes a dead letter of *message_class*; no retry can mend it.

    Handlers and hooks raise it too: NACK_BAD_SIGNATURE if a signature does not match,
    NACK_BAD_ENCRYPTION if a body cannot be decrypted.
    """

    def __init__(self, message_class: int, reason: str) -> None:
        if not (is_well_formed(message_class) and is_negative(message_class)):
            raise ValueError(f"the class of a dead letter is negative, got {message_class!r}")
        super().__init__(reason)
        self.message_class = message_class


def class_of(error: BaseException | None) -> int | None:
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
