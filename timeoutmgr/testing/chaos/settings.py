"""What a chaos run is to be."""

import secrets
from dataclasses import dataclass, field

from timeoutmgr.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosSettings:
    """How long, where, with how many processes, and which faults; durations are in seconds.

    Without *store* everything is in one SQLite file of the run's own; without *broker* the
    queues are in the store's database. Faults happen during *seconds*; then all that was
    accepted has to arrive, and the run gives up when nothing did for *drain*. *rate* messages a
    second are sent by all producers together, each due within *longest_delay*; the share
    *cancelled* of them is cancelled, and the share *dead* is for a queue that does not exist,
    and has to leave a dead letter. With *delayed_store* a delayed message store takes the
    timeout manager's place; it cancels nothing. Each pair is a range: how long it is until the
    next kill, pause, cut or lost reply. *claim_time* is how long a claim of the timeout manager
    holds: short, so that some pauses are longer. The *seed* settles every random choice.
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
    delayed_store: bool = False
    claim_time: float = 5.0
    drain: float = 90.0
    kill_every: tuple[float, float] = (0.2, 2.0)
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
            "claim_time": 1.0,
            "drain": 1.0,
        }
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise ConfigurationError(
                    f"{name} must be at least {limit:g}, got {getattr(self, name)}"
                )
        for name in ("cancelled", "dead"):
            if getattr(self, name) > 1.0:
                raise ConfigurationError(f"{name} is a share up to 1, got {getattr(self, name)}")
        for name in ("kill_every", "pause_every", "cut_every", "lose_every", "restart_every"):
            low, high = getattr(self, name)
            if not 0.05 <= low <= high:
                raise ConfigurationError(
                    f"{name} is a range of seconds, 0.05 or more, the smaller first; "
                    f"got {low:g} to {high:g}"
                )
        if self.broker is not None and self.store is None and "sqlite" in self.broker:
            raise ConfigurationError("a broker on SQLite needs a store; give both")

    @property
    def share_cancelled(self) -> float:
        """The share of messages that can be cancelled, and is."""
        return 0.0 if self.delayed_store else self.cancelled
