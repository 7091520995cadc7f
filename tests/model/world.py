"""All that a crash leaves behind, as one hashable value, and the port calls that change it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from tests.support.clock import START
from timeoutmgr.contracts import Key, Place, ScheduleRecord, TimeoutState
from timeoutmgr.contracts.sagas import Cleared
from timeoutmgr.message.instants import Micros

K = TypeVar("K")
V = TypeVar("V")

HOUR = 3_600_000_000
BEFORE, DUE, LATER, LAST = (START + n * HOUR for n in range(4))
"""The four instants of the model: the clock only moves to the next of them."""


class Map(dict[K, V]):
    """A dictionary that is changed by making another, and hashes by content."""

    _hash: int | None = None

    def having(self, key: K, value: V) -> Map[K, V]:
        changed = Map(self)
        changed[key] = value
        return changed

    def without(self, key: K) -> Map[K, V]:
        changed = Map(self)
        changed.pop(key, None)
        return changed

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none; this one never changes
        if self._hash is None:
            self._hash = hash(frozenset(self.items()))
        return self._hash


class Row(NamedTuple):
    """A pending timeout; *timeout* numbers its constant content (see ``letters``)."""

    timeout: int
    next_try: Micros = 0
    attempts: int = 0
    maybe_sent: bool = False
    place: Place | None = None


class KeyRow(NamedTuple):
    """The authority on one id."""

    state: TimeoutState
    due: Micros
    maybe_sent: bool = False


class Claim(NamedTuple):
    """A claimed interval; *over* once its owner is dead or its time is up."""

    first: Key
    last: Key
    owner: str
    over: bool = False
    locked: bool = False

    def covers(self, key: Key) -> bool:
        return self.first <= key <= self.last


class Copy(NamedTuple):
    """One copy of a message in a queue; *serial* tells it from its likes."""

    serial: int
    body_number: int
    deliveries: int = 0
    """1 after a delivery by a broker that counts."""


class Held(NamedTuple):
    """A copy that was delivered and not acknowledged."""

    owner: str
    queue: str
    copy: Copy


class Handling(NamedTuple):
    """The observations of handlers, by the id of the handled message."""

    effects: Map[str, int] = Map()
    error_copies: Map[str, int] = Map()
    sent_ids: Map[str, str] = Map()
    interrupted: Map[str, int] = Map()
    """How often a message was in flight when its consumer was killed or cut off."""
    failures: int = 0
    pauses: int = 0
    losses: int = 0


class Run(NamedTuple):
    """A run of a schedule, by its id: sent or cancelled at *closed_at*, otherwise pending."""

    due: Micros
    state: TimeoutState = TimeoutState.PENDING
    closed_at: Micros | None = None


class Recurring(NamedTuple):
    """The row of a schedule, and its runs."""

    record: ScheduleRecord
    runs: Map[str, Run] = Map()
    began: Micros | None = None
    """Until when occurrences are not the schedule's: the time of its first change."""

    def sent(self) -> dict[Micros, Micros]:
        """Return when the runs were sent, by their occurrences."""
        return {run.due: run.closed_at or 0 for run in self.runs.values() if _is_sent(run)}


def _is_sent(run: Run) -> bool:
    return run.state is TimeoutState.DISPATCHED


class _Fields(NamedTuple):
    """The fields of a world."""

    now: Micros
    queues: Map[str, tuple[Copy, ...]]
    held: Map[int, Held] = Map()
    rows: Map[Key, Row] = Map()
    keys: Map[str, KeyRow] = Map()
    claims: Map[str, Claim] = Map()
    cleared: Map[str, Cleared] = Map()
    locks: Map[Hashable, str] = Map()
    high_water: Key = Key(0, "")
    """Used by one mutant."""
    serial: int = 0
    delivered: Map[tuple[str, Micros], int] = Map()
    failed: frozenset[str] = frozenset()
    answers: Map[str, str] = Map()
    polls: int = 0
    crashes: int = 0
    unknowns: int = 0
    lapses: int = 0
    redeliveries: int = 0
    cuts: int = 0
    cut_off: frozenset[str] = frozenset()
    """Actors that have lost their open transaction, and do not know yet."""
    causes: int = 0
    """Interruptions that a repeat may be tied to."""
    handling: Handling = Handling()
    recurring: Recurring = Recurring(ScheduleRecord(name="tick"))


_PLACES = {name: place for place, name in enumerate(_Fields._fields)}


class World(_Fields):
    """The disks of broker and database, their locks, the clock, and the observations."""

    __slots__ = ()

    def _replace(self, **changes: Any) -> Self:
        """Return a copy with *changes*; a named tuple's own method looks each field up by name."""
        values = list(self)
        for name, value in changes.items():
            values[_PLACES[name]] = value
        return tuple.__new__(type(self), values)

    def times_delivered(self, message_id: str) -> int:
        return sum(times for (name, _), times in self.delivered.items() if name == message_id)

    def held_by_other(self, lock: Hashable, who: str) -> bool:
        return self.locks.get(lock, who) != who

    def locking(self, who: str, *locks: Hashable) -> World:
        return self._replace(locks=Map({**self.locks, **dict.fromkeys(locks, who)}))

    def released(self, who: str) -> World:
        """End the open transaction of *who*."""
        if who in self.cut_off:
            self = self._replace(cut_off=self.cut_off - {who})
        if who not in self.locks.values():
            return self
        kept = {lock: owner for lock, owner in self.locks.items() if owner != who}
        return self._replace(locks=Map(kept))

    def requeued(self, *serials: int) -> World:
        """Put delivered copies back to the heads of their queues, in their order."""
        queues, held = self.queues, self.held
        for serial in sorted(serials, reverse=True):
            back = held[serial]
            held = held.without(serial)
            queues = queues.having(back.queue, (back.copy, *queues[back.queue]))
        return self._replace(queues=queues, held=held)

    def over(self, *tokens: str) -> World:
        claims = self.claims
        for token in tokens:
            claims = claims.having(token, claims[token]._replace(over=True))
        return self._replace(claims=claims)


Outcomes = Iterator[tuple[str, World, Hashable]]


@dataclass(frozen=True, slots=True)
class Op:
    """A port call: its possible outcomes in a world (without an outcome it waits).

    The first outcome is healthy. A *quick* op changes nothing, and other actors do not act
    before it.
    """

    name: str
    outcomes: Callable[[World], Outcomes]
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Raised:
    """The result of a port call that raises."""

    kind: type[Exception]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of each fault one run may see."""

    crashes: int = 0
    unknowns: int = 0
    lapses: int = 0
    redeliveries: int = 0
    cuts: int = 0
    """Connections with the database that break while a dispatcher goes on."""
    polls: int = 2
    pauses: int = 0
    """Handlers that take longer than a batch may, some until their neighbours are given back."""
    losses: int = 0
    """Transactions that the database ends without the driver's knowledge."""


def interrupted(world: World, who: str) -> World:
    """Count an unanswered call of *who*: only a dispatcher's can cause a repeat."""
    cause = who.startswith("dispatcher")
    return world._replace(unknowns=world.unknowns + 1, causes=world.causes + cause)
