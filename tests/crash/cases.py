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
    delayed: bool = False
    """Whether it is a delayed message store, and no timeout manager."""
    dead_letters: bool = True
    """Whether it has dead-letter queues, which want to see each message that is dispatched."""
    destinations: str = ""
    """The broker of foreign messages, if it is beside the database of the queues."""

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

MOVING: Final = Pair(
    "postgres+moves",
    "postgres",
    "postgres",
    TransactionMode.TRANSACTION_SCOPE,
    dead_letters=False,
)
"""Where messages that are due are moved inside the database."""

SPLIT_SQLITE: Final = Pair(
    "sqlite+split", "sqlite", "sqlite", TransactionMode.RECEIVE_ONLY, destinations="rabbitmq"
)
SPLIT_POSTGRES: Final = Pair(
    "postgres+split", "postgres", "postgres", TransactionMode.RECEIVE_ONLY, destinations="rabbitmq"
)
"""Where foreign messages go to a broker, and all else stays in one database."""

DELAYED_SQLITE: Final = Pair(
    "delayed+sqlite", "sqlite", "sqlite", TransactionMode.TRANSACTION_SCOPE, delayed=True
)
DELAYED_RABBITMQ: Final = Pair(
    "delayed+rabbitmq+postgres", "rabbitmq", "postgres", TransactionMode.RECEIVE_ONLY, delayed=True
)
DELAYED_FENCED: Final = Pair(
    "delayed+sqlite+fence", "sqlite", "sqlite", TransactionMode.RECEIVE_ONLY, delayed=True
)
"""Its store has the single form only."""

_SQL_QUEUE: Final = (SQLITE, POSTGRES)
_ON_POSTGRES: Final = (POSTGRES, RABBITMQ)
_TWO_SYSTEMS: Final = (RABBITMQ, FENCED)

_SPLIT: Final = (SPLIT_SQLITE, SPLIT_POSTGRES)
_DELAYED: Final = (DELAYED_SQLITE, DELAYED_RABBITMQ, DELAYED_FENCED)
_BURIES: Final = (*PAIRS, *_DELAYED)

REACHED: Final[Mapping[str, tuple[Pair, ...]]] = {
    # Only the points that are not reached on each of PAIRS.
    "window.": (RABBITMQ,),
    "install.queue_declared": (RABBITMQ,),
    "leases.": _SQL_QUEUE,
    "expiry.": _SQL_QUEUE,
    "partitions.": _ON_POSTGRES,
    "queues.": _SQL_QUEUE,
    "poller.not_sent": _TWO_SYSTEMS,
    "poller.released": _TWO_SYSTEMS,
    "split.": _SPLIT,
    "closing.at_once": _ON_POSTGRES,
    "moving.": (MOVING,),
    "dispatch.moved": (MOVING,),
    "taking.marked": _TWO_SYSTEMS,
    "deadletters.attempt_noted": _TWO_SYSTEMS,
    "taking.claim_added": (RABBITMQ,),
    "taking.fence_raised": (FENCED,),
    "dispatch.arrivals_noted": _BURIES,
    "dispatch.dead_letter_placed": _BURIES,
    "dispatch.source_told": _BURIES,
    "dispatch.buried": _BURIES,
    "delayed.": _DELAYED,
    "delayed.stored_one": (DELAYED_FENCED,),
    "due.removed_one": (DELAYED_FENCED,),
    "due.": _DELAYED,
    "fencing.": (DELAYED_FENCED,),
    "upgrade.schema_created": _ON_POSTGRES,
    "upgrade.index_created": (SQLITE,),
}

BESIDE: Final = frozenset(
    {
        *("dispatch.taken", "dispatch.confirmed", "dispatch.error_copy_confirmed"),
        *("dispatch.closed", "closing.keys_closed", "closing.rows_removed"),
        *("closing.claim_dropped", "poller.claimed", "pump.handled", "work.committed"),
    }
)
"""Points that are reached by a split transport too, on the way of its foreign messages."""

_ONE_CHANGE: Final = ("replaced", "prepared", "swapped", "discarded")
ONCE: Final = {
    ("upgrade.schema_created", RABBITMQ),
    ("upgrade.revisions_run", RABBITMQ),
    *((f"install.{point}", pair) for point in ("marker_kept", "broker_marked") for pair in PAIRS),
    *(("deadletters.attempt_noted", pair) for pair in _TWO_SYSTEMS),
    *((f"expiry.{point}", pair) for point in ("settled", "deleted") for pair in _SQL_QUEUE),
    *((f"partitions.{point}", pair) for point in _ONE_CHANGE for pair in _ON_POSTGRES),
}
"""Reached once only: there is one set of tables where only the store is in the database, one pair
of store and broker to mark, one chunk that cannot be sent, one sweep of what has expired, and one
partition to replace.
"""

FRESH: Final = frozenset(
    point for point in POINTS if point.startswith(("install.", "upgrade.")) and "index" not in point
)
"""Reached where nothing is installed yet."""


def more(point: str, name: str, target: str) -> dict[str, Any]:
    """Return the further options with which a worker comes by *point*."""
    if point in FRESH or point in ("upgrade.index_created", "delayed.set_up"):
        return {"installs": True, "restarts": True}
    if point.startswith(("heartbeats.", "purging.")):
        return {"restarts": True}
    if point == "partitions.discarded":
        return {"partitions": "auto"}
    if point.startswith("partitions."):
        few = 1_000_000 if point == "partitions.replaced" else 0
        return {"partitions": "convert", "replacing": {"FEW": few, "CHUNK": 2}}
    if point == "leases.renewed":
        return {"lease": 1}
    if point in {"poller.not_sent", "poller.released"}:
        return {"stumbles": f"{name}.TimeoutsDispatcher"}
    if point in {"taking.marked", "deadletters.attempt_noted"}:
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
    """Processes that die in sequence, on one pair; another process then goes on."""

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
    pairs = REACHED.get(point) or REACHED.get(group) or PAIRS
    return (*pairs, *_SPLIT) if point in BESIDE else pairs


NATIVE: Final = ("topology.", "unroutable.", "forgetting.", "uninstall.")
"""Groups of points that these endpoints do not come by; ``test_native.py`` does."""
MIGRATIONS: Final = ("migration.", "ledger.", "leaving.", "arriving.", "draining.", "foreign.")
"""Groups of points that no endpoint comes by; ``test_migrations.py`` does."""
RECURRING: Final = ("recurring.",)
"""Points of recurring timeouts, which these endpoints do not have; ``test_recurring.py`` does."""
BULK: Final = ("pausing.", "bulk.", "load.", "changing.cancel_remembered")
"""Points of pauses, bulk runs, counts and cancels of many; ``test_bulk_runs.py`` has them."""
OWNED: Final = ("owned_queues.",)
"""Points of queues that end with their owners, as kombu's may; ``test_owned_queues.py`` does."""
_BY_OTHERS: Final = (*NATIVE, *MIGRATIONS, *RECURRING, *BULK, *OWNED)
ON_THE_WAY: Final = tuple(point for point in POINTS if not point.startswith(_BY_OTHERS))
SAMPLED: Final = tuple(point for point in ON_THE_WAY if not point.startswith("partitions."))


def matrix() -> list[Case]:
    """Return each point, each hit, each pair."""
    return [
        Case(pair, (Crash(point, nth),))
        for point in ON_THE_WAY
        for pair in pairs_of(point)
        for nth in (1, 2)
        if nth == 1 or (point, pair) not in ONCE
    ]


def sample(length: int = 6) -> list[Case]:
    """Return cases that touch each point once, spread over the pairs, several deaths in each.

    A file serves most points that it comes by: its round takes a third of the time of a server's.
    The points of partitions are left out: they wait until no transaction uses the table, and the
    machine's speed decides how soon that comes among the messages of a round.
    """
    groups: dict[tuple[Pair, bool, bool], list[Crash]] = {}
    for number, point in enumerate(SAMPLED):
        pairs = pairs_of(point)
        first = POSTGRES if POSTGRES in pairs else pairs[0]
        spread = (*pairs, SQLITE, SQLITE) if SQLITE in pairs else pairs
        pair = first if point in FRESH else spread[number % len(spread)]
        # An upgrade comes before the later steps of an installation: it must still be pending.
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
