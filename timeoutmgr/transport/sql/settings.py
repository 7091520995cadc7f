"""Settings of the SQL queue: leases, polling and wakeups."""

from dataclasses import dataclass
from datetime import timedelta

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.transport.unsettled_messages import BUFFER_BYTES, check_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQueueSettings:
    """Tuning of the SQL queue; the defaults suit a busy and an idle queue alike.

    *lease* is how long a received message stays with a consumer that hangs; a working consumer
    renews it, and a dead consumer is noticed within *owner_check*. An idle receiver queries the
    database after *poll_min*, then less and less often, up to *poll_max*. None means 10 to 50 ms on
    SQLite (where a query costs nothing while the file is unchanged), 50 ms to 1 s on PostgreSQL
    (where NOTIFY wakes it earlier) and 20 to 250 ms on MySQL. *notify* sends that NOTIFY; it
    serialises commits of the whole database, so a database with very many small sends may be better
    off without it. *buffer_bytes* limits the received, unsettled bodies of all receivers together.
    """

    lease: timedelta = timedelta(seconds=60)
    poll_min: timedelta | None = None
    poll_max: timedelta | None = None
    owner_check: timedelta = timedelta(seconds=1)
    notify: bool = True
    buffer_bytes: int = BUFFER_BYTES

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        for name in ("lease", "poll_min", "poll_max", "owner_check"):
            value = getattr(self, name)
            if value is not None and value <= timedelta(0):
                raise ConfigurationError(f"{name} must be positive, got {value}")
        check_bound("buffer_bytes", self.buffer_bytes)
        if not timedelta(seconds=1) <= self.lease <= timedelta(days=365):
            raise ConfigurationError(
                f"lease must be from 1 s to 365 days, to be renewed at a third; got {self.lease}"
            )
        if self.poll_min and self.poll_max and self.poll_min > self.poll_max:
            raise ConfigurationError(
                f"poll_min must not exceed poll_max, got {self.poll_min} and {self.poll_max}"
            )

    def polling(self, dialect: str) -> tuple[float, float]:
        """Return the shortest and the longest pause of an idle receiver, in seconds."""
        shortest, longest = {"sqlite": (0.01, 0.05), "postgresql": (0.05, 1.0)}.get(
            dialect, (0.02, 0.25)
        )
        if self.poll_min is not None:
            shortest = self.poll_min.total_seconds()
            longest = max(shortest, longest)
        if self.poll_max is not None:
            longest = self.poll_max.total_seconds()
        return min(shortest, longest), longest
