"""One tree of errors, so that a caller can catch as widely or as narrowly as wanted.

::

    TimeoutManagerError
    ├── ConfigurationError          wrong before anything runs
    │   ├── UnknownSetting          a key nobody reads, with the nearest that is read
    │   ├── UnknownPart             a transport, persistence or feature of no known name
    │   ├── CombinationRefused      transport x store x mode cannot keep the promises
    │   ├── FeatureRefused          a prerequisite of an enabled feature is not met
    │   ├── DelayedDeliveryDisabled a delay was asked for and no feature delivers delays
    │   ├── SchemaMissing           the tables are not there, or too old
    │   └── QueueMissing            a queue that is needed does not exist
    ├── InvalidMessage              bad input at the door; nothing was sent
    │   └── MessageTooLarge
    ├── MessageRejected             a received message that no retry can mend
    ├── DeliveryFailed              the broker did not take responsibility
    │   ├── Unroutable              there is no such destination queue
    │   └── DeliveryUnknown         the confirm did not come; it may have been taken
    ├── StorageUnavailable          the store cannot be reached; later it may
    ├── TransportUnavailable        the broker cannot be reached; later it may
    └── LeaseLost                   somebody else owns the message by now

A sentence says what came, what was expected, and what to do.
"""


class TimeoutManagerError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigurationError(TimeoutManagerError):
    """The configuration cannot work; nothing was started."""


class UnknownSetting(ConfigurationError):
    """A setting that nobody reads, most likely misspelt."""

    def __init__(self, key: str, source: str, suggestion: str | None, known: list[str]) -> None:
        hint = f"did you mean {suggestion!r}?" if suggestion else f"known: {', '.join(known)}"
        super().__init__(f"unknown setting {key!r} in {source}; {hint}")
        self.key = key
        self.suggestion = suggestion


class UnknownPart(ConfigurationError):
    """No transport, persistence or feature goes by that name."""

    def __init__(self, group: str, name: str, suggestion: str | None, known: list[str]) -> None:
        hint = f"did you mean {suggestion!r}?" if suggestion else f"known: {', '.join(known)}"
        super().__init__(
            f"no {group.removeprefix('timeoutmgr.').removesuffix('s')} is called {name!r}; {hint} "
            f"(others are found through the entry point group {group!r})"
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
    """An enabled feature cannot be set up; the sentence is the unmet prerequisite."""


class DelayedDeliveryDisabled(ConfigurationError):
    """A message was to be delayed, and no enabled feature can do that."""

    def __init__(self) -> None:
        super().__init__(
            "Cannot delay delivery of messages when TimeoutManager is disabled or there is no "
            "infrastructure support for delayed messages. Enable it with "
            "config.enable_feature(TimeoutManager()) from timeoutmgr.satellites."
        )


class SchemaMissing(ConfigurationError):
    """The tables are not there, or older than this version needs."""


class QueueMissing(ConfigurationError):
    """Queues that the endpoint needs do not exist."""

    def __init__(self, queues: list[str], remedy: str) -> None:
        names = ", ".join(repr(name) for name in queues)
        super().__init__(f"missing queue {names}; {remedy}")
        self.queues = queues


class InvalidMessage(TimeoutManagerError, ValueError):
    """What was to be sent is not sendable; nothing was sent."""


class MessageTooLarge(InvalidMessage):
    """Body or headers are over the configured limit; nothing was truncated, nothing sent."""

    def __init__(self, what: str, size: int, limit: int, setting: str) -> None:
        super().__init__(
            f"the {what} has {size} bytes, the limit is {limit}; send a reference instead, "
            f"or raise {setting}"
        )
        self.size = size
        self.limit = limit


class MessageRejected(TimeoutManagerError):
    """A received message that no retry can mend; it belongs into the error queue."""


class DeliveryFailed(TimeoutManagerError):
    """The transport did not take responsibility for a message."""


class Unroutable(DeliveryFailed):
    """The destination queue does not exist."""

    def __init__(self, destination: str) -> None:
        super().__init__(
            f"there is no queue {destination!r}; start or install the endpoint that owns it, "
            "or correct the destination"
        )
        self.destination = destination


class DeliveryUnknown(DeliveryFailed):
    """The broker did not answer in time: the message may or may not have been taken."""


class StorageUnavailable(TimeoutManagerError):
    """The store cannot be reached now. Nothing is wrong with the message at hand."""


class TransportUnavailable(TimeoutManagerError):
    """The broker cannot be reached now. Nothing is wrong with the message at hand."""


class LeaseLost(TimeoutManagerError):
    """The lease on a received message ended before it was acknowledged; another has it now."""
