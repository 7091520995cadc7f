"""Settings of the SQL stores."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from timeoutmgr.errors import ConfigurationError

_LEAST_TOMBSTONES: Final = timedelta(days=7)
_HISTORY: Final = ("outcomes", "full", "none")
_CLOCKS: Final = ("database", "host")
_PARTITIONS: Final = ("auto", "convert", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSettings:
    """How timeouts are kept.

    *claim_time* is how long a claim holds whose owner neither closes it nor dies. *history* says
    which events are recorded: ``outcomes``, ``full`` (also scheduled and rescheduled) or
    ``none``. *tombstone_retention* is how long a dispatched or cancelled id is remembered, so
    that a redelivered store message cannot bring it back. *clock* decides about due times; SQLite
    has no clock but the host's. *max_in_flight* bounds the ids that are claimed and not yet
    dispatched: the ids that a crash leaves behind, and that wait in the dispatcher's queue. *copy*
    has PostgreSQL take batches by COPY and as arrays; without it they are written statement by
    statement, as on every database. *partitions* is PostgreSQL's too: with ``off`` one partition
    holds all pending timeouts, ``auto`` keeps pending timeouts of a new installation in ranges of
    due times, ``convert`` also cuts an existing partition into ranges while it is in use.
    """

    claim_time: timedelta = timedelta(seconds=60)
    history: str = "outcomes"
    history_retention: timedelta = timedelta(days=30)
    tombstone_retention: timedelta = timedelta(days=30)
    clock: str = "database"
    max_in_flight: int = 5_000
    copy: bool = True
    partitions: str = "off"

    def __post_init__(self) -> None:
        """Check every value."""
        if self.history not in _HISTORY:
            raise ConfigurationError(f"history must be in {_HISTORY}, got {self.history!r}")
        if self.clock not in _CLOCKS:
            raise ConfigurationError(f"clock must be in {_CLOCKS}, got {self.clock!r}")
        if self.partitions not in _PARTITIONS:
            raise ConfigurationError(
                f"partitions must be in {_PARTITIONS}, got {self.partitions!r}"
            )
        for name in ("claim_time", "history_retention"):
            if getattr(self, name) <= timedelta(0):
                raise ConfigurationError(f"{name} must be positive, got {getattr(self, name)}")
        if self.max_in_flight < 1:
            raise ConfigurationError(f"max_in_flight must be positive, got {self.max_in_flight}")
        if self.tombstone_retention < _LEAST_TOMBSTONES:
            raise ConfigurationError(
                f"tombstone_retention must be at least {_LEAST_TOMBSTONES}, since a broker may "
                f"redeliver that late; got {self.tombstone_retention}"
            )
