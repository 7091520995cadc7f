"""What a store and the processes at it say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from timeoutmgr.instants import Micros

LIVE: Final[Micros] = 3 * 60 * 1_000_000
"""How old the heartbeat of a process that lives can be: there is one in 75 seconds."""

SENDERS_AHEAD: Final = "senders_ahead"
"""Key in the state of a process: names of senders whose clock is ahead of the store's."""


COUNTED: Final = 10_000
"""How many timeouts are counted one by one; of more it is only said that there are more."""
LOOKED_AT: Final = 50_000
"""How many rows are read at most to count those that match, where no index knows them."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of timeouts: all of them, or at least so many if it is not *exact*."""

    number: int
    exact: bool = True

    def __str__(self) -> str:
        """Spell the number, with a sign where there may be more."""
        return str(self.number) if self.exact else f"{self.number}+"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A store at one look; lateness in microseconds over the most recent dispatches.

    *pending*, *due* and *outcomes* are counted up to COUNTED. Those that *at_least* names may be
    more.
    """

    pending: int
    due: int
    oldest_due: Micros | None
    claimed: int
    outcomes: Mapping[str, int]
    lateness_p50: int | None
    lateness_p99: int | None
    lateness_max: int | None
    at_least: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process at its last heartbeat; *state* is whatever its features reported."""

    owner: str
    endpoint: str
    host: str
    pid: int
    started: Micros
    heartbeat: Micros
    state: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReport:
    """An endpoint with pending timeouts: the earliest due time, and the last heartbeat or 0."""

    endpoint: str
    earliest: Micros
    last_heartbeat: Micros
