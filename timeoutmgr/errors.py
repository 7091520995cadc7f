"""Errors of this package, in one tree, so that callers can catch as widely as they need.

::

    TimeoutManagerError
    ├── ConfigurationError          wrong before anything runs
    │   ├── UnknownSetting          a key that is not read, with the nearest known key
    │   ├── UnknownPart             a transport, persistence or feature of an unknown name
    │   ├── CombinationRefused      transport x store x mode cannot keep the promises
    │   ├── FeatureRefused          a prerequisite of an enabled feature is not met
    │   ├── DelayedDeliveryDisabled a message has a delay, and no feature delivers delays
    │   ├── Unsupported             an operation that a feature lacks, with an alternative
    │   ├── TopologyMismatch        an exchange or queue has other arguments on the broker
    │   ├── SchemaMissing           the tables are not there, or too old
    │   ├── PipelineUnavailable     Spark, Java or a driver of the data pipeline is missing
    │   ├── RunConflict             a run of the pipeline is unfinished, or has another plan
    │   ├── QueueMissing            a required queue does not exist
    │   ├── WrongPair               store and broker belong to different endpoints
    │   ├── LossyQueue              a queue that exists drops messages that it accepted
    │   └── MigrationRefused        a migration may not start, or may not continue
    ├── InvalidMessage              the caller's message is invalid; nothing was sent
    │   ├── MessageTooLarge
    │   ├── IdInUse                 the message id was used for another delayed message
    │   ├── DelayTooLong            further ahead than the broker's delay levels reach
    │   ├── DestinationNotAllowed   the rules forbid the destination
    │   ├── WrongColumns            a data set lacks columns that a job needs
    │   ├── TooManyRejects          too many rows cannot be scheduled; nothing was scheduled
    │   └── InvalidQueueName        a format or path name breaks the grammar, with the place
    ├── MessageRejected             a received message that no retry can mend
    │   ├── ContentConflict         its id was used before, with other content
    │   └── ReceivedTooLate         its time to be received is over
    ├── HandlerFailed               a handler's own SQL was wrong, or it ended its thread
    ├── DeliveryFailed              the broker did not take responsibility
    │   ├── Unroutable              there is no such destination queue
    │   └── DeliveryUnknown         the confirm did not come; it may have been taken
    ├── TransactionLost             the transaction of a message ended inside its handler
    ├── StorageUnavailable          the store is out of reach now; try again later
    │   ├── NodeFull                a node of dead letters has reached its quota
    │   └── StorageConflict         a transaction lost against another; try it again
    ├── TransportUnavailable        the broker is out of reach now; try again later
    ├── UnknownSchedule             no recurring timeout has this name
    ├── LeaseLost                   another receiver owns the message now
    ├── EndpointClosed              an endpoint was used after ``close``; nothing was sent
    ├── MigrationFailed             a migration stopped; its ledger has the place
    ├── ContentDiffers              a stored row has the id of a new row, and other content
    ├── SnapshotEnded               the database ended the snapshot that a run reads
    ├── ArchiveMismatch             written and read rows differ; nothing was removed
    └── BulkInterrupted             a bulk stopped half-way; it has the rejected rest

Each error text states the value, what was expected, and the remedy.
"""

import pickle
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

LOSSY_REMEDY: Final = (
    "empty the queue, delete it and run `timeoutmgr install`, which creates it anew (take a policy "
    "off instead); or admit the loss with accept_loss = true"
)
"""Remedy for a queue that drops messages."""


def text_of(value: object) -> str:
    """Return the text of *value*, or a substitute if the class of *value* cannot make its text.

    The exception of a handler may be such an object, and its message must still be recovered.
    """
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: its text raised {type(error).__name__}>"


def _picklable(value: object) -> object:
    """Return *value*, or a text with its class if a pickle of it cannot be made or read."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return f"<{type(value).__name__}: cannot be pickled>"
    return value


class TimeoutManagerError(Exception):
    """Base of every error that this package raises on purpose.

    Each error can be pickled, for pools of processes: a text replaces an unpicklable attribute.
    """

    def __reduce__(self) -> tuple[object, ...]:
        # Bypass __init__, which would build the text again from other arguments.
        args = (type(self), *map(_picklable, self.args))
        return type(self).__new__, args, {key: _picklable(each) for key, each in vars(self).items()}

    @classmethod
    def help_page(cls) -> str:
        """Return the section of the documentation that explains this error, below ``docs/``."""
        return f"reference/errors.md#{cls.__name__.lower()}"


class ConfigurationError(TimeoutManagerError):
    """The configuration cannot work; nothing was started."""


class UnknownSetting(ConfigurationError):
    """A setting that no part reads, most likely misspelt."""

    def __init__(self, key: str, source: str, suggestion: str | None, known: list[str]) -> None:
        hint = f"did you mean {suggestion!r}?" if suggestion else f"known: {', '.join(known)}"
        super().__init__(f"unknown setting {key!r} in {source}; {hint}")
        self.key = key
        self.suggestion = suggestion


class UnknownPart(ConfigurationError):
    """No transport, persistence or feature has this name."""

    def __init__(self, group: str, name: str, suggestion: str | None, known: list[str]) -> None:
        hint = f"did you mean {suggestion!r}?" if suggestion else f"known: {', '.join(known)}"
        super().__init__(
            f"no {group.rpartition('.')[2].removesuffix('s')} is called {name!r}; {hint} "
            f"(plugins are found through the entry point group {group!r})"
        )
        self.group = group
        self.name = name
        self.suggestion = suggestion


class CombinationRefused(ConfigurationError):
    """This transport, store and mode together would break a promise."""

    def __init__(self, what: str, reason: str, remedy: str) -> None:
        super().__init__(f"{what} is refused: {reason}. {remedy}")
        self.reason = reason
        self.remedy = remedy


class FeatureRefused(ConfigurationError):
    """An enabled feature cannot be set up; the text states the unmet prerequisite."""


class DelayedDeliveryDisabled(ConfigurationError):
    """A message has a delay, and no enabled feature delays messages."""

    def __init__(self) -> None:
        super().__init__(
            "Cannot delay delivery of messages when TimeoutManager is disabled or there is no "
            "infrastructure support for delayed messages. Enable it with "
            "config.enable_feature(TimeoutManager()) from timeoutmgr.satellites, or on RabbitMQ "
            "with NativeDelayedDelivery() from timeoutmgr.native."
        )


class Unsupported(ConfigurationError):
    """The enabled way to delay messages lacks the requested operation."""

    def __init__(self, what: str, reason: str, alternative: str) -> None:
        super().__init__(f"{what} is not supported: {reason}. {alternative}")
        self.what = what
        self.alternative = alternative


class TopologyMismatch(ConfigurationError):
    """An exchange or queue exists with arguments that differ from the endpoint's declaration."""

    def __init__(self, name: str, broker_says: str) -> None:
        super().__init__(
            f"{name!r} exists on the broker with other arguments ({broker_says}); endpoints that "
            "share it must declare the same arguments. Choose other names, or remove it once it "
            "is empty"
        )
        self.name = name


class SchemaMissing(ConfigurationError):
    """The tables do not exist, or are older than this version needs."""


class QueueMissing(ConfigurationError):
    """Queues that the endpoint needs do not exist."""

    def __init__(self, queues: list[str], remedy: str) -> None:
        names = ", ".join(repr(name) for name in queues)
        super().__init__(f"missing queue {names}; {remedy}")
        self.queues = queues


class WrongPair(ConfigurationError):
    """Store and broker of an endpoint do not belong together: their markers differ."""

    def __init__(self, endpoint: str, difference: str) -> None:
        super().__init__(
            f"store and broker of {endpoint!r} do not belong together: {difference}. Correct the "
            "URL that is wrong; or, if the other is given up, stop every process of the endpoint "
            "and run `timeoutmgr install --new-marker`. Timeouts are migrated into a store after "
            "`timeoutmgr install --tables`, which needs no marker"
        )


class LossyQueue(ConfigurationError):
    """Queues of the endpoint exist already, and drop messages that they accepted."""

    def __init__(self, losses: Mapping[str, Sequence[str]]) -> None:
        shown = "; ".join(f"queue {name!r}: {', '.join(each)}" for name, each in losses.items())
        super().__init__(f"an existing queue would lose accepted messages: {shown}; {LOSSY_REMEDY}")
        self.losses = losses


class MigrationRefused(ConfigurationError):
    """A migration may not start or continue; nothing was moved. Each line gives a reason."""

    def __init__(self, what: str, reasons: list[str]) -> None:
        super().__init__("\n  ".join([what, *reasons]))
        self.reasons = reasons


class InvalidMessage(TimeoutManagerError, ValueError):
    """The message is invalid; nothing was sent."""


class MessageTooLarge(InvalidMessage):
    """Body or headers exceed the configured limit; nothing was truncated or sent."""

    def __init__(self, what: str, size: int, limit: int, setting: str) -> None:
        super().__init__(
            f"the {what} has {size} bytes, the limit is {limit}; send a reference instead, "
            f"or raise {setting}"
        )
        self.size = size
        self.limit = limit


class IdInUse(InvalidMessage):
    """The message id was used before, for a delayed message with different content."""

    def __init__(self, message_id: str, timeout_id: str) -> None:
        super().__init__(
            f"message id {message_id!r} was used before with other content (timeout "
            f"{timeout_id!r}), and on_conflict='error' refuses that; send under another id, or "
            "with on_conflict='replace' while that timeout is pending"
        )
        self.message_id = message_id
        self.timeout_id = timeout_id


class DelayTooLong(InvalidMessage):
    """A delay beyond the range of the broker's delay levels."""

    def __init__(self, delay: timedelta, limit: timedelta) -> None:
        super().__init__(
            f"the message cannot be delayed by {delay}, which exceeds the maximum delay value "
            f"{limit} of native delayed delivery; choose a nearer time, or say "
            "fallback_to_store=True and enable TimeoutManager, whose store has no limit"
        )
        self.delay = delay
        self.limit = limit


class DestinationNotAllowed(InvalidMessage):
    """The destination belongs to another endpoint, or the rules forbid it."""


class InvalidQueueName(InvalidMessage):
    """A format name or path name that breaks the grammar; *at* counts characters from 0."""

    def __init__(self, text: str, at: int, expected: str) -> None:
        # Each character is shown as a single character, so that the caret stands below the error.
        shown = "".join(
            each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text
        )
        found = repr(text[at]) if at < len(text) else "the end"
        first = max(0, at - 60)
        super().__init__(
            f"queue name, character {at}: expected {expected}, got {found}\n"
            f"  {shown[first : at + 40]}\n  {' ' * (at - first)}^"
        )
        self.text = text
        self.at = at
        self.expected = expected


class MessageRejected(TimeoutManagerError):
    """A received message that no retry can repair; it belongs in the error queue."""


class ContentConflict(MessageRejected):
    """A delayed message whose id was used with different content; the first message stays."""

    def __init__(self, message_id: str, timeout_id: str) -> None:
        super().__init__(
            f"message id {message_id!r} was used before with other content, and timeout "
            f"{timeout_id!r} stays as it is; send the message under another id, or with "
            "on_conflict='replace' while that timeout is pending"
        )


class ReceivedTooLate(MessageRejected):
    """A message that was received after its time to be received had ended."""


class HandlerFailed(TimeoutManagerError):
    """A handler tried to end its thread, or its own SQL was wrong; the cause has the details."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the handler failed with {type(error).__name__}: {text_of(error)}")


class HandlerStopped(TimeoutManagerError):
    """A stop of the endpoint cancelled the coroutine of a handler; its message stays queued."""

    def __init__(self) -> None:
        super().__init__(
            "the endpoint stopped, and cancelled a handler that ran longer than shutdown_timeout; "
            "its effects are undone and its message is delivered again"
        )


class DeliveryFailed(TimeoutManagerError):
    """The transport did not take responsibility for a message."""


class Unroutable(DeliveryFailed):
    """The destination queue does not exist."""

    def __init__(self, destination: str) -> None:
        super().__init__(
            f"there is no queue {destination!r:.80}; start or install the endpoint that owns it, "
            "or correct the destination"
        )
        self.destination = destination


class DeliveryUnknown(DeliveryFailed):
    """The broker did not answer in time: the message may or may not have been accepted."""


class TransactionLost(TimeoutManagerError):
    """The transaction of a message ended inside its handler: by a deadlock, DDL or COMMIT."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the transaction in which the message was handled is gone: {reason}; a handler that "
            "ends it (COMMIT, DDL on MySQL) is registered with batch=1, and no handler goes on "
            "after a deadlock"
        )


class StorageUnavailable(TimeoutManagerError):
    """The store cannot be reached now; the message itself is valid."""


class NodeFull(StorageUnavailable):
    """The quota of a node is reached: the message is valid, and was not placed."""

    def __init__(self, node: str, used: int, quota: int) -> None:
        super().__init__(
            f"node {node!r} keeps {used} bytes of dead letters and journals, its quota is {quota}; "
            "read and delete some (`timeoutmgr deadletters delete`), or raise the quota"
        )


class StorageConflict(StorageUnavailable):
    """A transaction conflicted with another, as in a deadlock, and was undone; not an outage."""


class TransportUnavailable(TimeoutManagerError):
    """The broker cannot be reached now; the message itself is valid."""


class EndpointClosed(TimeoutManagerError):
    """The endpoint was closed; nothing was sent."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            f"endpoint {endpoint!r} is closed and sends nothing; send before close(), or make "
            "another Endpoint"
        )
        self.endpoint = endpoint


class MigrationFailed(TimeoutManagerError):
    """A migration stopped half-way; run it again to go on, or abort it."""


class UnknownSchedule(TimeoutManagerError):
    """No recurring timeout has this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        expected = f"known: {', '.join(known)}" if known else "there is none"
        super().__init__(
            f"no recurring timeout is called {name!r:.80} here; {expected}. A configuration "
            "defines it with config.recurring(...) or [recurring.<name>]"
        )
        self.name = name


class LeaseLost(TimeoutManagerError):
    """The lease on a received message ended before its acknowledgement; another receiver has it."""
