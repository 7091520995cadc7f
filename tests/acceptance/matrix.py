"""Every supported pair of transport and store, its promises, and the tests that run on it.

A test names the abilities that it needs: ``@matrix(needs={"processes"})``. A pair without these
abilities is not part of the test: it is counted as n/a, never skipped, because nothing is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from zlib import crc32

import pytest

from timeoutmgr import TransactionMode

SCOPE: Final = TransactionMode.TRANSACTION_SCOPE
ATOMIC: Final = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE
RECEIVE_ONLY: Final = TransactionMode.RECEIVE_ONLY

_SQL: Final = ("sqlite", "postgres", "mysql")


@dataclass(frozen=True, slots=True)
class Pair:
    """A transport and a store; *mode* None is the strongest mode of the pair."""

    transport: str
    store: str
    mode: TransactionMode | None = None

    @property
    def id(self) -> str:
        """The name of the pair in a report."""
        queue = f"sql_{self.transport}" if self.transport in _SQL else self.transport
        return f"{queue}+{self.store}" + (f"+{self.mode.value}" if self.mode else "")

    @property
    def servers(self) -> set[str]:
        """The servers that must run."""
        return {self.transport, self.store} - {"memory", "sqlite"}

    @property
    def capabilities(self) -> frozenset[str]:
        """The promises of the pair, by the names that tests use."""
        one_database = self.transport == self.store and self.transport in _SQL
        claims = {
            "durable": self.transport not in ("redis", "memory") and self.store != "memory",
            "processes": "memory" not in (self.transport, self.store),
            "sql_queue": self.transport in _SQL,
            "sql_store": self.store in _SQL,
            "one_database": one_database,
            "one_transaction": one_database and self.mode in (None, SCOPE),
            "two_systems": not one_database,
            "row_locks": self.store in ("postgres", "mysql"),
        }
        return frozenset(name for name, holds in claims.items() if holds)


PAIRS: Final = tuple(
    Pair(transport, store)
    for transport in ("sqlite", "postgres", "mysql", "rabbitmq", "redis", "memory")
    for store in (*_SQL, "memory")
)
OTHER_MODES: Final = tuple(
    Pair(kind, kind, mode) for kind in _SQL for mode in (ATOMIC, RECEIVE_ONLY)
)
"""Pairs on a single database, in modes that do not use its common transaction."""

REFERENCE: Final = Pair("rabbitmq", "postgres")
EMBEDDED: Final = Pair("sqlite", "sqlite")
REPRESENTATIVE: Final = (
    EMBEDDED,
    REFERENCE,
    Pair("postgres", "postgres"),
    Pair("rabbitmq", "sqlite"),
    Pair("mysql", "mysql"),
)
"""One pair of each kind, for a claim that is costly to test."""
MAIN: Final = (EMBEDDED, REFERENCE, Pair("postgres", "postgres"))
"""The pairs that `make test` never leaves out of a test that names them."""
SERVED: Final = tuple(
    pair
    for pair in PAIRS
    if "durable" in pair.capabilities
    or pair in (Pair("redis", "postgres"), Pair("memory", "memory"))
)
"""Every pair that keeps messages, and two pairs that may lose them: Redis, and memory."""
EACH_ONCE: Final = (*REPRESENTATIVE, Pair("redis", "postgres"), Pair("memory", "memory"))
"""Each transport and each store, for a claim that does not depend on how the two fit together."""

USUAL: Final = (
    *EACH_ONCE,
    Pair("postgres", "postgres", ATOMIC),
    Pair("sqlite", "sqlite", RECEIVE_ONLY),
)
"""The pairs of `make test`; with PAIRS=all it tries every pair that a test names."""

Test = TypeVar("Test", bound=Callable[..., Any])


def matrix(
    *,
    needs: Collection[str] = (),
    pairs: Collection[Pair] = PAIRS,
    all_modes: bool = False,
    installed: bool = True,
) -> Callable[[Test], Test]:
    """Run a test on each of *pairs* that has all that it *needs*, through the fixture ``place``.

    *all_modes* adds the pairs on one database in the modes that do not use it. A SQLite file has
    the tables already, as a shared server's database has them, unless a test asks for none.
    """
    unknown = set(needs) - set().union(*(pair.capabilities for pair in PAIRS))
    assert not unknown, f"no pair can ever do {unknown}"
    chosen = (*pairs, *(OTHER_MODES if all_modes else ()))

    def marked(test: Test) -> Test:
        tried = chosen if os.environ.get("PAIRS") == "all" else usual(chosen, test.__name__)
        chosen_for = {"needs": frozenset(needs), "pairs": tried, "installed": installed}
        result: Test = pytest.mark.matrix(**chosen_for)(test)
        return result

    return marked


def usual(pairs: Collection[Pair], test: str) -> tuple[Pair, ...]:
    """Return the part of *pairs* that `make test` tries with *test*: all of MAIN, and another.

    A rare pair has no property that the usual pairs lack. The name of a test selects one of the
    pairs beside MAIN, so that over all tests each pair is tried.
    """
    known = tuple(pair for pair in pairs if pair in USUAL) or tuple(pairs)
    if not set(known) & set(MAIN):
        return known
    others = [pair for pair in known if pair not in MAIN]
    tried = {*MAIN, *others[crc32(test.encode()) % max(len(others), 1) :][:1]}
    return tuple(pair for pair in known if pair in tried)
