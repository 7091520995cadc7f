"""The base of both kinds of store: transactions, and the rules of cancel and reschedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Key,
    Outcome,
    Timeout,
    TimeoutState,
    TimeoutStore,
    Transaction,
)
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros

from . import letters
from .broker import SimTransaction
from .explorer import Player
from .world import Bounds, KeyRow, Op, Outcomes, Raised, Row, World, interrupted

Result = TypeVar("Result")
Rows = tuple[tuple[Key, Row], ...]
AWAY = Raised(StorageUnavailable, "no answer from the database")


class LockedRows:
    """Timeouts in hand; ``close`` is the given function."""

    def __init__(self, rows: Rows, close: Callable[[Sequence[Outcome]], None]) -> None:
        self.timeouts: Sequence[Timeout] = [timeout_of(key, row) for key, row in rows]
        self._close = close
        self.ended = False
        self.recorded = False

    def close(self, outcomes: Sequence[Outcome]) -> None:
        self.ended = True
        self._close(outcomes)
        self.recorded = True


class SimStore:
    """A session of one actor with the database. *atomic*: sending is part of closing."""

    endpoint = "sales"

    def __init__(self, player: Player, who: str, bounds: Bounds, *, atomic: bool = False) -> None:
        self._player = player
        self._who = who
        self._bounds = bounds
        self._atomic = atomic

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        return cast(Micros, self._read("clock", lambda world: world.now))

    def notify_stored(self, due: Micros) -> None:
        return

    def next_due(self) -> Micros | None:
        due = self._read("first due", lambda w: min((key.due for key in w.rows), default=None))
        return cast("Micros | None", due)

    def key_of(self, timeout_id: str) -> Key | None:
        def read(world: World) -> Key | None:
            known = world.keys.get(timeout_id)
            if known is None or known.state is not TimeoutState.PENDING:
                return None
            return Key(known.due, timeout_id)

        return cast("Key | None", self._ask("find the key", lambda world: (world, read(world))))

    def _read(self, name: str, read: Callable[[World], Any]) -> Any:
        def outcomes(world: World) -> Outcomes:
            yield "", world, read(world)

        return self._player.ask(Op(name, outcomes, quick=True))

    def _ask(self, name: str, statement: Callable[[World], tuple[World, Any] | None]) -> Any:
        """Run a statement that commits nothing; None of it means that it waits."""

        def outcomes(world: World) -> Outcomes:
            done = statement(world)
            if done is not None:
                yield "", *done

        return self._player.ask(Op(name, outcomes))

    def _commit(self, name: str, work: Callable[[World], tuple[World, Any] | None]) -> Any:
        """Run a last statement and commit; the result may stay unknown."""
        return self._player.ask(Op(name, lambda world: self.committing(world, work(world))))

    def committing(self, world: World, done: tuple[World, Any] | None) -> Outcomes:
        """Yield the outcomes of a commit: *done*, *world* unchanged, or unknown."""
        if done is None:
            return
        after, result = done
        yield "", after, result
        if after != world and world.unknowns < self._bounds.unknowns:
            yield ", committed, answer lost", interrupted(after, self._who), AWAY
            yield ", undone, answer lost", interrupted(self.undone(world), self._who), AWAY

    def undone(self, world: World) -> World:
        """Return *world* after this actor's open transaction was rolled back."""
        return world.released(self._who)


def cancel_by(known: KeyRow | None) -> CancelResult | None:
    """Return the answer of a cancel by the key alone, or None if the row decides."""
    if known is None or known.state is TimeoutState.PENDING:
        return None
    if known.state is TimeoutState.CANCELLED:
        return CancelResult.MAYBE_SENT if known.maybe_sent else CancelResult.CANCELLED
    return CancelResult.TOO_LATE


def change_by(known: KeyRow | None) -> ChangeResult | None:
    """Return the answer of a reschedule by the key alone, or None if the row decides."""
    if known is None or known.state is TimeoutState.CANCELLED:
        return ChangeResult.UNKNOWN
    return None if known.state is TimeoutState.PENDING else ChangeResult.TOO_LATE


def timeout_of(key: Key, row: Row) -> Timeout:
    fixed = letters.timeout(row.timeout)
    return Timeout(
        id=key.id,
        due=key.due,
        destination=fixed.destination,
        message=fixed.message,
        created=fixed.created,
        attempts=row.attempts,
    )


def in_order(timeouts: Sequence[Timeout]) -> list[Timeout]:
    unique = {timeout.id: timeout for timeout in reversed(timeouts)}
    return sorted(unique.values(), key=lambda timeout: timeout.id)


def as_store(store: SimStore) -> TimeoutStore:
    """Return *store* as the port: it has all methods that the steps call."""
    return cast(TimeoutStore, store)


def as_simulated(transaction: Transaction | None) -> SimTransaction | None:
    return cast("SimTransaction | None", transaction)
