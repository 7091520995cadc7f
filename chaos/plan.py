"""The plan of all faults with their times, drawn from the seed before the run. Pure functions."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from chaos.settings import ChaosSettings


class FaultKind(StrEnum):
    """Kind of a fault."""

    KILL = "kill"
    """SIGKILL of a process, which is started again at once."""
    KILL_MIGRATION = "kill_migration"
    """SIGKILL of the migration, which is continued at once, or aborted."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT later."""
    CUT_STORE = "cut_store"
    """A process' connections to the database are terminated."""
    CUT_BROKER = "cut_broker"
    """A process' connections to the broker are reset."""
    LOSE_COMMIT = "lose_commit"
    """The database commits, and its answer to a process is lost together with the connection."""
    LOSE_CONFIRM = "lose_confirm"
    """The broker accepts a message, and its answer is lost together with the connection."""
    RESTART_STORE = "restart_store"
    """The database is restarted; the caller of the run provides the restart."""
    RESTART_BROKER = "restart_broker"
    """The broker is restarted; the caller of the run provides the restart."""


LONG_PAUSES: Final = 0.3
"""The share of pauses that are longer than a claim lasts."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, *at* seconds after the begin.

    *choice*, from 0 to 1, picks a process; *length* is how long a
    pause lasts.
    """

    at: float
    kind: FaultKind
    choice: float
    length: float = 0.0


def plan(settings: ChaosSettings, kinds: Collection[FaultKind] = tuple(FaultKind)) -> list[Fault]:
    """Return all faults of *kinds*, in their order: the same for the same settings.

    Each kind has its own generator: leaving a kind out does not move the other faults.
    """
    found = [fault for kind in FaultKind if kind in kinds for fault in _of(kind, settings)]
    return sorted(found, key=lambda fault: fault.at)


def _of(kind: FaultKind, settings: ChaosSettings) -> Iterator[Fault]:
    chance = Random(f"{settings.seed} {kind.value}")
    low, high = {
        FaultKind.KILL: settings.kill_every,
        FaultKind.KILL_MIGRATION: settings.kill_migration_every,
        FaultKind.PAUSE: settings.pause_every,
        FaultKind.CUT_STORE: settings.cut_every,
        FaultKind.CUT_BROKER: settings.cut_every,
        FaultKind.LOSE_COMMIT: settings.lose_every,
        FaultKind.LOSE_CONFIRM: settings.lose_every,
        FaultKind.RESTART_STORE: settings.restart_every,
        FaultKind.RESTART_BROKER: settings.restart_every,
    }[kind]
    at = 0.0
    while (at := at + chance.uniform(low, high)) < settings.seconds:
        length = _pause(chance, settings.claim_time) if kind is FaultKind.PAUSE else 0.0
        yield Fault(at, kind, chance.random(), length)


def _pause(chance: Random, claim_time: float) -> float:
    if chance.random() < LONG_PAUSES:
        return claim_time * chance.uniform(1.1, 1.6)
    return chance.uniform(0.05, 0.8) * claim_time
