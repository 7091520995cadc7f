"""One run: a seed, some nodes and their clients, faults, healing, and the quiet end."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.model.promises import Promise
from timeoutmgr.message.instants import Micros

from .clients import SPAN, Client
from .faults import Faults
from .node import Node, Parts
from .timeline import MINUTE, SECOND
from .trouble import LONGEST, Trouble
from .world import Event, World

TIMEOUTS: Final = 400
"""Timeouts of one run."""
_PATIENCE: Final = 60 * MINUTE
_DEFAULT_PARTS: Final = Parts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run; *broken* is the promise, the reason, and the message concerned."""

    seed: int
    timeouts: int
    outcomes: Counter[str]
    crashes: int
    repeats: int
    reports: int
    fired: Counter[str]
    broken: tuple[Promise, str, str] | None
    events: Sequence[Event]
    timeout_id: str

    @property
    def digest(self) -> str:
        """A digest of the whole event log: equal for equal runs."""
        return hashlib.sha256(repr(self.events).encode()).hexdigest()

    def about(self, most: int = 40) -> list[str]:
        """Return the last events of the timeout whose promise was broken."""
        if self.broken is None:
            return []
        names = {self.broken[2], self.timeout_id}
        reports = [line(event, names) for event in self.events if names.intersection(event.of)]
        return reports[-most:]


class Run:
    """A world that is played from its seed to its quiet end."""

    def __init__(
        self,
        seed: int,
        *,
        timeouts: int = TIMEOUTS,
        parts: Parts = _DEFAULT_PARTS,
        row_locks: bool | None = None,
        only: frozenset[str] | None = None,
    ) -> None:
        chance = Random(seed)
        faults = Faults(chance, only=only)
        drawn = chance.random() < 0.5
        self._seed = seed
        database = parts.database(row_locks=drawn if row_locks is None else row_locks)
        self.world = World(chance, faults, database)
        chunk = chance.choice((5, 100, 100))
        amount = 2 + chance.randrange(2)
        self.nodes = [Node(self.world, f"n{n}", parts, chunk) for n in range(1, amount + 1)]
        self.world.on_death = lambda process: self._node_of(process.name).died()
        now = self.world.timeline.now
        rushes = [now + int(chance.random() * SPAN) for _ in range(1 + chance.randrange(9))]
        for node in self.nodes:
            node.start()
        each = timeouts // amount
        self.clients = [Client(self.world, node, each, rushes) for node in self.nodes]
        self.trouble = Trouble(self.world, self.nodes)
        for actor in (self.trouble.actor, *(client.actor for client in self.clients)):
            self.world.timeline.at(now + chance.randrange(SECOND), actor)

    def play(self) -> Result:
        """Play until all is quiet, or a promise is broken."""
        world, ledger = self.world, self.world.ledger
        with _unlogged():
            self._until(self._all_is_sent, LONGEST)
            # Trouble outlasts the senders: most of it shall meet due timeouts.
            self._for(int(SPAN * (0.5 + world.random.random())))
            self.trouble.heal()
            world.note("from here on", "all goes well")
            self._until(self._is_quiet, _PATIENCE)
            self._for(2 * MINUTE)
            if ledger.broken is None:
                ledger.closes(self._pending())
        return self._result()

    def _node_of(self, process: str) -> Node:
        return next(node for node in self.nodes if node.process.name == process)

    def _until(self, so_far: Callable[[], bool], at_most: Micros) -> None:
        timeline, ledger = self.world.timeline, self.world.ledger
        end = timeline.now + at_most
        while ledger.broken is None and timeline.now < end and not so_far():
            timeline.play_next()

    def _for(self, micros: Micros) -> None:
        self._until(lambda: False, micros)

    def _all_is_sent(self) -> bool:
        return all(client.done for client in self.clients)

    def _is_quiet(self) -> bool:
        database, broker = self.world.database, self.world.broker
        waiting = database.rows or broker.unacknowledged or broker.on_its_way
        return not waiting and not any(broker.queues.values()) and self._all_is_sent()

    def _pending(self) -> dict[str, str]:
        database, broker = self.world.database, self.world.broker
        timeouts = self.world.ledger.by_timeout
        pending = {timeouts[key.id].message_id: "stored" for key in database.rows}
        for queue, waiting in broker.queues.items():
            pending |= {received.message.id: f"in {queue}" for received in waiting}
        held = broker.unacknowledged.values()
        return pending | {one.received.message.id: "unacknowledged" for one in held}

    def _result(self) -> Result:
        world, ledger = self.world, self.world.ledger
        known = world.database.known.values()
        outcomes = Counter(known.state.value for known in known)
        concerned = ledger.records.get(ledger.broken[2]) if ledger.broken else None
        accepted = sum(record.accepted for record in ledger.records.values())
        return Result(
            seed=self._seed,
            timeouts=accepted - len(world.database.rows),
            outcomes=outcomes,
            crashes=world.crashes,
            repeats=ledger.repeats,
            reports=world.reports,
            fired=world.faults.fired,
            broken=ledger.broken,
            events=world.events,
            timeout_id=concerned.timeout_id if concerned else "",
        )


def line(event: Event, names: set[str] | None = None) -> str:
    """Return *event* as a line; *names*, if given, are the only names that it shows."""
    of = event.of if names is None else [name for name in event.of if name in names]
    return f"{event.at / SECOND:.6f} {event.who}: {event.what} {' '.join(of)}"


@contextmanager
def _unlogged() -> Iterator[None]:
    """Suppress the product's log lines about a thousand faults."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
