"""Which points are reached where, and the runs that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from timeoutmgr import TransactionMode
from timeoutmgr.crashpoints import POINTS


@dataclass(frozen=True, slots=True)
class Pair:
    """A queue and a store, and how far one transaction reaches."""

    id: str
    queue: str
    store: str
    mode: TransactionMode

    @property
    def exactly_once(self) -> bool:
        """Whether not even a crash may repeat."""
        return self.mode is TransactionMode.TRANSACTION_SCOPE


SQLITE: Final = Pair("sqlite", "sqlite", "sqlite", TransactionMode.TRANSACTION_SCOPE)
POSTGRES: Final = Pair("postgres", "postgres", "postgres", TransactionMode.TRANSACTION_SCOPE)
RABBITMQ: Final = Pair("rabbitmq+postgres", "rabbitmq", "postgres", TransactionMode.RECEIVE_ONLY)
PAIRS: Final = (SQLITE, POSTGRES, RABBITMQ)
FENCED: Final = Pair("sqlite+fence", "sqlite", "sqlite", TransactionMode.RECEIVE_ONLY)
"""Where there is neither a row lock nor a common transaction, for the points of just that."""

_SQL_QUEUE: Final = (SQLITE, POSTGRES)
_TWO_SYSTEMS: Final = (RABBITMQ, FENCED)

REACHED: Final[Mapping[str, tuple[Pair, ...]]] = {
    # Only what is not reached on each of PAIRS.
    "window.": (RABBITMQ,),
    "leases.": _SQL_QUEUE,
    "queues.": _SQL_QUEUE,
    "poller.not_sent": _TWO_SYSTEMS,
    "taking.marked": _TWO_SYSTEMS,
    "taking.claim_added": (RABBITMQ,),
    "taking.fence_raised": (FENCED,),
    "upgrade.schema_created": (POSTGRES, RABBITMQ),
    "upgrade.index_created": (SQLITE,),
}

ONCE: Final = {("upgrade.schema_created", RABBITMQ)}
"""Reached once only: there is one schema to create where only the store is in the database."""

FRESH: Final = frozenset(
    point for point in POINTS if point.startswith(("install.", "upgrade.")) and "index" not in point
)
"""Reached where nothing is installed yet."""


def more(point: str, name: str, target: str) -> dict[str, Any]:
    """Return what a worker is told besides, so that it comes by *point*."""
    if point in FRESH or point == "upgrade.index_created":
        return {"installs": True, "restarts": True}
    if point.startswith(("heartbeats.", "purging.")):
        return {"restarts": True}
    if point == "leases.renewed":
        return {"lease": 1}
    if point == "poller.not_sent":
        return {"stumbles": f"{name}.TimeoutsDispatcher"}
    if point == "taking.marked":
        return {"stumbles": target}
    return {}


@dataclass(frozen=True, slots=True)
class Crash:
    """One death."""

    point: str
    nth: int

    def __str__(self) -> str:
        return f"{self.point}:{self.nth}"


@dataclass(frozen=True, slots=True)
class Case:
    """Processes that die one after the other, on one pair; another one then goes on."""

    pair: Pair
    crashes: tuple[Crash, ...]

    @property
    def id(self) -> str:
        """Its name in a report."""
        first, *others = self.crashes
        return f"{self.pair.id}-{first}" + (f"-and-{len(others)}-more" if others else "")

    @property
    def fresh(self) -> bool:
        """Whether it begins where nothing is installed."""
        return self.crashes[0].point in FRESH


def pairs_of(point: str) -> tuple[Pair, ...]:
    """Return the pairs on which *point* is reached."""
    group = point.partition(".")[0] + "."
    return REACHED.get(point) or REACHED.get(group) or PAIRS


def matrix() -> list[Case]:
    """Return each point, each hit, each pair."""
    return [
        Case(pair, (Crash(point, nth),))
        for point in POINTS
        for pair in pairs_of(point)
        for nth in (1, 2)
        if nth == 1 or (point, pair) not in ONCE
    ]


def sample(length: int = 6) -> list[Case]:
    """Return cases that touch each point once, spread over the pairs, several deaths in each."""
    groups: dict[tuple[Pair, bool, bool], list[Crash]] = {}
    for number, point in enumerate(POINTS):
        pairs = pairs_of(point)
        pair = POSTGRES if point in FRESH else pairs[number % len(pairs)]
        # Upgrades come before what an installation does after them, so that they are still to do.
        kind = (pair, point in FRESH, point == "upgrade.index_created")
        groups.setdefault(kind, []).append(Crash(point, 1))
    cases = []
    for (pair, fresh, _), crashes in groups.items():
        if fresh:
            crashes.sort(key=lambda crash: not crash.point.startswith("upgrade."))
        cases += [
            Case(pair, tuple(crashes[start : start + length]))
            for start in range(0, len(crashes), length)
        ]
    return cases
