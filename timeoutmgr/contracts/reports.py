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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A store at one look; lateness in microseconds over the most recent dispatches."""

    pending: int
    due: int
    oldest_due: Micros | None
    claimed: int
    outcomes: Mapping[str, int]
    lateness_p50: int | None
    lateness_p99: int | None
    lateness_max: int | None


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
