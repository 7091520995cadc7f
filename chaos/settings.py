"""Settings of a chaos run."""

import secrets
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.errors import ConfigurationError

_RANGES: Final = (
    *("kill_every", "kill_migration_every", "pause_every", "cut_every", "lose_every"),
    "restart_every",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosSettings:
    """Length, servers, processes and faults of a run; durations are in seconds.

    Without *store* everything is in one SQLite file of the run; without *broker* the queues are in
    the store's database. Faults happen during *seconds*; then all accepted messages must arrive,
    and the run gives up if no message arrives for *drain*. All producers together send *rate*
    messages a second, each due within *longest_delay*; the share *cancelled* of them is cancelled,
    and the share *dead* has a destination that does not exist, and must leave dead letters. The
    handlers of the share *failing* fail, once or always, and coroutines handle the share *awaited*.
    The share *foreign* comes from another program; with *split* all messages do, the queues of the
    fleet are in the store's database, and only the consumer's queues are at the broker. With
    *delayed_store* a delayed message store replaces the timeout manager; it cancels nothing. With
    *native* the fleet is mixed: every second worker and producer belongs to another endpoint, whose
    delays are in RabbitMQ's levels, and half of the messages are sent on from one endpoint to the
    other. With *migrate* the timeouts of the first endpoint are moved into the levels during the
    run. Each pair is a range of the time until the next kill, pause, cut or lost reply;
    *kill_migration_every* applies only to the migration. *claim_time* is the time-out of a claim:
    short, so that some pauses are longer. The *seed* determines every random choice.
    """

    seconds: float = 60.0
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    store: str | None = None
    broker: str | None = None
    workers: int = 3
    producers: int = 2
    rate: float = 60.0
    longest_delay: float = 5.0
    cancelled: float = 0.1
    dead: float = 0.0
    failing: float = 0.03
    awaited: float = 0.5
    foreign: float = 0.2
    split: bool = False
    delayed_store: bool = False
    native: bool = False
    migrate: bool = False
    claim_time: float = 5.0
    drain: float = 90.0
    kill_every: tuple[float, float] = (0.2, 2.0)
    kill_migration_every: tuple[float, float] = (0.3, 2.0)
    pause_every: tuple[float, float] = (2.0, 6.0)
    cut_every: tuple[float, float] = (1.0, 4.0)
    lose_every: tuple[float, float] = (1.0, 4.0)
    restart_every: tuple[float, float] = (10.0, 20.0)
    kills: bool = True
    pauses: bool = True
    cuts: bool = True
    lost_replies: bool = True

    def __post_init__(self) -> None:
        """Check every value."""
        least = {
            "seconds": 1.0,
            "workers": 1,
            "producers": 1,
            "rate": 0.1,
            "longest_delay": 0.0,
            "cancelled": 0.0,
            "dead": 0.0,
            "failing": 0.0,
            "awaited": 0.0,
            "foreign": 0.0,
            "claim_time": 1.0,
            "drain": 1.0,
        }
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise ConfigurationError(
                    f"{name} must be at least {limit:g}, got {getattr(self, name)}"
                )
        for name in ("cancelled", "dead", "failing", "awaited", "foreign"):
            if getattr(self, name) > 1.0:
                raise ConfigurationError(f"{name} is a share up to 1, got {getattr(self, name)}")
        for name in _RANGES:
            low, high = getattr(self, name)
            if not 0.05 <= low <= high:
                raise ConfigurationError(
                    f"{name} is a range of seconds, 0.05 or more, the smaller first; "
                    f"got {low:g} to {high:g}"
                )
        if self.broker is not None and self.store is None and "sqlite" in self.broker:
            raise ConfigurationError("a broker on SQLite needs a store; give both")
        if self.uses_levels:
            self._check_levels()
        if self.split:
            self._check_split()

    @property
    def uses_levels(self) -> bool:
        """Whether RabbitMQ's delay levels take part."""
        return self.native or self.migrate

    @property
    def share_cancelled(self) -> float:
        """Share of messages to cancel; a delayed message store cancels none."""
        return 0.0 if self.delayed_store else self.cancelled

    @property
    def share_foreign(self) -> float:
        """Share of messages of another program."""
        return 1.0 if self.split else self.foreign

    def _check_split(self) -> None:
        if self.store is None or self.broker is None:
            raise ConfigurationError("split needs a store and, beside it, a broker; give both")
        if self.uses_levels or self.delayed_store or self.dead:
            raise ConfigurationError(
                "split is for a timeout manager and messages that arrive; leave out native, "
                "migrate, delayed_store and dead"
            )

    def _check_levels(self) -> None:
        if not (self.broker or "").startswith(("amqp://", "pyamqp://")):
            raise ConfigurationError(
                "native and migrate need RabbitMQ, which alone has delay levels; give a broker "
                "amqp://…"
            )
        if self.delayed_store:
            raise ConfigurationError(
                "native and migrate are for endpoints with a timeout manager; leave delayed_store "
                "out"
            )
        if self.native and min(self.workers, self.producers) < 2:
            raise ConfigurationError(
                f"native makes two kinds of workers and of producers: at least 2 of each, got "
                f"{self.workers} workers and {self.producers} producers"
            )
        if self.migrate and self.dead:
            raise ConfigurationError(
                f"a migration does not start while a queue is missing, got dead {self.dead:g}; "
                "leave out --migrate or --dead"
            )
