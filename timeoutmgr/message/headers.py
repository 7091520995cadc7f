"""Header names: NServiceBus' names if they exist, so that both can read each other's messages.

A header's value is always a string. Names that start with ``NServiceBus.`` or ``Timeout.`` are
fixed by the wire format; ours start with ``TimeoutManager.``.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final, TypeVar

MESSAGE_ID: Final = "NServiceBus.MessageId"
CORRELATION_ID: Final = "NServiceBus.CorrelationId"
CONVERSATION_ID: Final = "NServiceBus.ConversationId"
RELATED_TO: Final = "NServiceBus.RelatedTo"
ENCLOSED_MESSAGE_TYPES: Final = "NServiceBus.EnclosedMessageTypes"
CONTENT_TYPE: Final = "NServiceBus.ContentType"
MESSAGE_INTENT: Final = "NServiceBus.MessageIntent"
CONTROL_MESSAGE: Final = "NServiceBus.ControlMessage"
TIME_SENT: Final = "NServiceBus.TimeSent"
TIME_TO_BE_RECEIVED: Final = "NServiceBus.TimeToBeReceived"
REPLY_TO: Final = "NServiceBus.ReplyToAddress"
ORIGINATING_ENDPOINT: Final = "NServiceBus.OriginatingEndpoint"
ORIGINATING_MACHINE: Final = "NServiceBus.OriginatingMachine"
VERSION: Final = "NServiceBus.Version"
SAGA_ID: Final = "NServiceBus.SagaId"
NO_SAGA: Final = "00000000-0000-0000-0000-000000000000"
"""How NServiceBus spells that there is none."""

# On a delayed message on its way to the timeout manager. The dispatch removes both: otherwise every
# forwarded copy would be sent back to the destination of the former delay.
EXPIRE: Final = "NServiceBus.Timeout.Expire"
DESTINATION: Final = "NServiceBus.Timeout.RouteExpiredTimeoutTo"
# The same for a delayed message store, with the names of NServiceBus' MSMQ transport, whose
# instructions for a message have this prefix. No receiver ever sees them.
DELAYED_DESTINATION: Final = "NServiceBus.Timeout.Destination"
PROPERTY_PREFIX: Final = "NServiceBus.Timeouts.Properties."
CLEAR_TIMEOUTS: Final = "NServiceBus.ClearTimeouts"
ROUTING: Final = (EXPIRE, DESTINATION, DELAYED_DESTINATION)
"""The headers that routing adds to a delayed message, and removes again."""

# Instructions of the sender to the timeout manager for a used id; removed when the message is
# stored.
ON_CONFLICT: Final = "TimeoutManager.OnConflict"
DELIVER_AT_GIVEN: Final = "TimeoutManager.DeliverAtGiven"

# On the delivered message.
RELATED_TO_TIMEOUT: Final = "NServiceBus.RelatedToTimeoutId"
DELIVER_AT: Final = "NServiceBus.DeliverAt"
DISPATCHED_AT: Final = "TimeoutManager.DispatchedAt"
RECURRING: Final = "TimeoutManager.Recurring"
"""The name of the recurring timeout, if the message is a run."""

LABELS: Final = "TimeoutManager.Labels"
"""Texts ``name=value`` by which the timeout is found, as a JSON list (``message.labels``)."""

# On a control message to <endpoint>.TimeoutsDispatcher: a single id in NServiceBus' form, or the
# version of the body with our chunk.
TIMEOUT_ID: Final = "Timeout.Id"
CHUNK_VERSION: Final = "TimeoutManager.Chunk"
WAKE: Final = "TimeoutManager.Wake"
KEEPS_TIMEOUTS: Final = "TimeoutManager.KeepsTimeouts"
"""Marks an order to clear whose body names timeouts to keep; orders of other programs may have
another body."""

# A message of another program, carried by a message of ours (``message.foreign``).
FOREIGN: Final = "TimeoutManager.Foreign"
FOREIGN_CONTENT: Final = "TimeoutManager.ForeignContent"
FOREIGN_DUE: Final = "TimeoutManager.ForeignDue"
"""Names the foreign header that holds the due time, as ISO 8601."""
ROUTE: Final = "TimeoutManager.Route"
"""Exchange and routing key of the destination."""

# On an empty message that only tests whether a broker has a route; the receiver drops it.
PROBE: Final = "TimeoutManager.Probe"

# Delayed retries of an endpoint's own handlers.
RETRIES: Final = "NServiceBus.Retries"
RETRIES_TIMESTAMP: Final = "NServiceBus.Retries.Timestamp"

# On a copy in the error queue.
FAILED_QUEUE: Final = "NServiceBus.FailedQ"
TIME_OF_FAILURE: Final = "NServiceBus.TimeOfFailure"
PROCESSING_MACHINE: Final = "NServiceBus.ProcessingMachine"
PROCESSING_ENDPOINT: Final = "NServiceBus.ProcessingEndpoint"
EXCEPTION_TYPE: Final = "NServiceBus.ExceptionInfo.ExceptionType"
INNER_EXCEPTION_TYPE: Final = "NServiceBus.ExceptionInfo.InnerExceptionType"
EXCEPTION_MESSAGE: Final = "NServiceBus.ExceptionInfo.Message"
EXCEPTION_SOURCE: Final = "NServiceBus.ExceptionInfo.Source"
EXCEPTION_STACK: Final = "NServiceBus.ExceptionInfo.StackTrace"
HOST_ID: Final = "$.diagnostics.hostid"
HOST_NAME: Final = "$.diagnostics.hostdisplayname"
ORIGINAL_ID: Final = "TimeoutManager.OriginalMessageId"
ORIGINAL_HEADERS: Final = "TimeoutManager.OriginalHeaders"

FAILURE_HEADERS: Final = frozenset(
    {
        FAILED_QUEUE,
        TIME_OF_FAILURE,
        PROCESSING_MACHINE,
        PROCESSING_ENDPOINT,
        EXCEPTION_TYPE,
        INNER_EXCEPTION_TYPE,
        EXCEPTION_MESSAGE,
        EXCEPTION_SOURCE,
        EXCEPTION_STACK,
        HOST_ID,
        HOST_NAME,
    }
)
"""The headers that a failure adds; removed again when a message is retried from the error queue."""

# An NServiceBus sender's headers for the whole delay of a message in RabbitMQ's delay levels,
# counted from TimeSent, and for the number by which it awaits the confirm.
DELAY_IN_SECONDS: Final = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
CONFIRMATION_ID: Final = "NServiceBus.Transport.RabbitMQ.ConfirmationId"

BROKER_HEADERS: Final = frozenset(
    {
        "cc",
        "bcc",
        "x-delay",
        "x-death",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
        "x-delivery-count",
        "x-acquired-count",
        "compression",
        DELAY_IN_SECONDS.lower(),
        CONFIRMATION_ID.lower(),
    }
)
"""Headers (lower case) that control a broker, kombu or another transport; never sent on.

CC and BCC would deliver copies elsewhere, x-death makes RabbitMQ drop a message that comes back,
kombu decompresses a body by its 'compression' header, and NServiceBus' tools would read the old
delay of a message that is sent on.
"""

OF_PROPERTIES: Final = (
    (MESSAGE_ID, "message_id"),
    (CORRELATION_ID, "correlation_id"),
    (REPLY_TO, "reply_to"),
    (ENCLOSED_MESSAGE_TYPES, "type"),
    (CONTENT_TYPE, "content_type"),
)
"""Headers, each with the AMQP property that replaces it on a message without the header."""


def filled(given: dict[str, str], properties: Mapping[str, object]) -> dict[str, str]:
    """Return the headers *given*, with missing headers filled from the message's *properties*.

    So a sender that knows only AMQP need not set any of our headers.
    """
    for name, of in OF_PROPERTIES:
        if name not in given and isinstance(value := properties.get(of), str) and value:
            given[name] = value
    return given


MOST_NAMES: Final = 64
MOST_CHARACTERS: Final = 4096

Names = TypeVar("Names", str, tuple[str, ...])
Found = TypeVar("Found")


def remembers_short(entries: int) -> Callable[[Callable[[Names], Found]], Callable[[Names], Found]]:
    """Return a decorator that caches up to *entries* results, for names that are few and short.

    Longer names are not cached: senders choose names, and must not fill the memory with them.
    Errors are not cached.
    """

    def decorate(function: Callable[[Names], Found]) -> Callable[[Names], Found]:
        remembered: dict[Names, Found] = {}

        @wraps(function)
        def call(names: Names) -> Found:
            # Look up first: each message passes here three times, and few names are new. An
            # lru_cache could be asked only after a check of the length.
            try:
                return remembered[names]
            except KeyError:
                found = function(names)
            if _is_short(names):
                if len(remembered) >= entries:
                    remembered.clear()
                remembered[names] = found
            return found

        return call

    return decorate


def _is_short(names: str | tuple[str, ...]) -> bool:
    try:
        return len(names) <= MOST_NAMES and len("".join(names)) <= MOST_CHARACTERS
    except TypeError:  # a header of the program whose name is not a text
        return False
