"""The store on a database with row locks: held over the publish, passed by and not waited for.

Each statement that takes or meets a lock is a step of its own. Other actors cannot see a write
before its commit, so both are the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Chunk,
    Key,
    LockedTimeouts,
    Outcome,
    OutcomeKind,
    Repeat,
    SagaClear,
    Timeout,
    Transaction,
)
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros

from . import tables
from .store import AWAY, LockedRows, Rows, SimStore, as_simulated, cancel_by, change_by, in_order
from .tables import ClaimedKeys
from .world import Claim, Op, Outcomes, World

ENDPOINT, CLEARS = "endpoint", "clears"


class RowLockStore(SimStore):
    """As PostgreSQL and MySQL do it at READ COMMITTED."""

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        batch = in_order(timeouts)
        joined = as_simulated(transaction)
        see = joined.seen() if joined is not None else _as_it_is

        def insert_keys(world: World) -> tuple[World, tuple[tuple[str, ...], Any]] | None:
            fresh = tuple(one.id for one in batch if one.id not in see(world).keys)
            if any(world.held_by_other(("key", one), self._who) for one in fresh):
                return None  # another inserts it now: whether it is there depends on its commit
            if world.held_by_other(CLEARS, self._who):
                return None
            locks = [("key", one) for one in fresh]
            storing = [self._storing] if any(one.place for one in batch) else []
            return world.locking(self._who, *locks, *storing), (
                fresh,
                tables.reached(see(world), batch),
            )

        fresh, reached = self._ask("insert the keys", insert_keys)
        if joined is not None:
            joined.changes.append(lambda world: tables.inserted(world, batch, fresh, reached))
        elif fresh:
            self._commit(
                "insert the rows",
                lambda world: (
                    tables.inserted(world, batch, fresh, reached).released(self._who),
                    None,
                ),
            )
        elif any(one.place for one in batch):
            self._ask("end", lambda world: (world.released(self._who), None))
        return ()

    @property
    def _storing(self) -> tuple[str, str]:
        """The lock of a transaction that stores a saga's timeouts; it excludes clears alone."""
        return ("storing", self._who)

    def await_clears(self, transaction: Transaction) -> None:
        self._ask("wait for those that store", self._lock_clears)

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        joined = as_simulated(transaction)
        if joined is not None:
            joined.changes.append(lambda world: tables.cleared(world, order))
            return ()
        self._ask("wait for those that store", self._lock_clears)
        self._commit(
            "clear", lambda world: (tables.cleared(world, order).released(self._who), None)
        )
        return ()

    def _lock_clears(self, world: World) -> tuple[World, None] | None:
        others = [lock for lock in world.locks if isinstance(lock, tuple) and lock[0] == "storing"]
        if any(world.held_by_other(lock, self._who) for lock in (CLEARS, *others)):
            return None
        return world.locking(self._who, CLEARS), None

    def claim(
        self,
        now: Micros,
        limit: int,
        owner: str,
        *,
        chunks: int = 1,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> Chunk:
        joined = as_simulated(transaction)
        see = joined.seen() if joined is not None else _as_it_is

        def begin(world: World) -> Outcomes:
            if world.held_by_other(ENDPOINT, self._who):
                return
            dropped, marked = self._ended(world)
            locks = (ENDPOINT, *(("row", key) for key in marked))
            if marked or joined is not None:
                yield "", world.locking(self._who, *locks), (dropped, marked)
            else:
                given = self._claim_keys(see(world), now, limit, dropped, marked)
                yield from self.committing(world, (tables.claimed_by(world, given, owner), given))

        found: tuple[Any, ...] = self._ask_all("claim", begin)
        if isinstance(found, ClaimedKeys):
            return Chunk(found.token, found.keys, None)
        dropped, marked = found

        if joined is not None:
            given: ClaimedKeys = self._ask(
                "hand out",
                lambda world: (world, self._claim_keys(see(world), now, limit, dropped, marked)),
            )
            joined.changes.append(lambda world: tables.claimed_by(world, given, owner))
        else:

            def claim_keys(world: World) -> tuple[World, ClaimedKeys]:
                given = self._claim_keys(world, now, limit, dropped, marked)
                return tables.claimed_by(world, given, owner).released(self._who), given

            given = self._commit("hand out", claim_keys)
        return Chunk(given.token, given.keys, None)

    def lock_for_dispatch(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[LockedTimeouts]:
        return self._locked_timeouts(token, keys, transaction)

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        def work(world: World) -> tuple[World, None] | None:
            claim = world.claims.get(token)
            if claim is None or not maybe_sent:
                return tables.forgotten(world, token), None
            if world.held_by_other(ENDPOINT, self._who):
                return None
            inside = [key for key in world.rows if claim.covers(key)]
            if any(world.held_by_other(("row", key), self._who) for key in inside):
                return world, None  # it was handed on after all
            return tables.forgotten(self._marked(world, inside), token), None

        self._commit("release", work)

    def cancel(self, timeout_id: str) -> CancelResult:
        def by_key(world: World) -> CancelResult | None:
            return cancel_by(world.keys.get(timeout_id))

        while True:
            answer = self._lock_key(timeout_id, by_key)
            if isinstance(answer, CancelResult):
                return answer
            if answer == "locked":
                break
            if self._commit("leave a tombstone", lambda world: self._bar(world, timeout_id)):
                return CancelResult.WILL_BE_CANCELLED
        held = self._lock_row(timeout_id)
        if held is None:
            return CancelResult.TOO_LATE
        key, maybe = held
        self._commit(
            "cancel", lambda world: (tables.cancelled(world, key, maybe).released(self._who), None)
        )
        return CancelResult.MAYBE_SENT if maybe else CancelResult.CANCELLED

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        def by_key(world: World) -> ChangeResult | None:
            return change_by(world.keys.get(timeout_id))

        answer = self._lock_key(timeout_id, by_key)
        if isinstance(answer, ChangeResult):
            return answer
        held = self._lock_row(timeout_id)
        if held is None:
            return ChangeResult.TOO_LATE
        key, maybe = held
        self._commit(
            "reschedule",
            lambda world: (tables.moved(world, key, due, maybe).released(self._who), None),
        )
        return ChangeResult.MAYBE_SENT if maybe else ChangeResult.CHANGED

    @contextmanager
    def _locked_timeouts(
        self, token: str, keys: Sequence[Key], transaction: Transaction | None
    ) -> Iterator[LockedTimeouts]:
        joined = as_simulated(transaction)
        see = joined.seen() if joined is not None else _as_it_is
        rows, claimed, others = self._ask("lock the rows", self._lock_rows(see, token, keys))
        if rows and not claimed and not self._atomic:
            token, others = self._claim_before_publish(rows), ()

        def close(outcomes: Sequence[Outcome]) -> None:
            ended = [o.key.id for o in outcomes if o.kind is not OutcomeKind.RETRY]
            if ended:
                self._ask("set the tombstones", self._lock_keys(ended))
            if joined is not None:
                joined.changes.append(
                    lambda world: self._end(tables.closed(world, outcomes), token, others)
                )
                return

            def work(world: World) -> tuple[World, Any]:
                if self._who in world.cut_off:
                    return self.undone(world), AWAY
                after = self._end(tables.closed(world, outcomes), token, others)
                return after.released(self._who), None

            self._commit("remove the rows", work)

        locked = LockedRows(rows, close)
        try:
            yield locked
        finally:
            if joined is None and not locked.recorded:
                if not locked.ended:
                    self._ask("roll back", lambda world: (self.undone(world), None))
                if token:
                    self._give_back(token, [key for key, _ in rows], others)

    def _claim_before_publish(self, rows: Rows) -> str:
        def add(world: World) -> tuple[World, str]:
            token = f"{self._who}-{world.serial}"
            claims = world.claims.having(token, Claim(rows[0][0], rows[-1][0], self._who))
            return world._replace(claims=claims, serial=world.serial + 1), token

        try:
            token: str = self._commit("claim before the publish", add)
        except StorageUnavailable:
            self._ask("roll back", lambda world: (self.undone(world), None))
            raise
        return token

    def _end(self, world: World, token: str, others: Sequence[Key]) -> World:
        """End a claim, unless another dispatcher has locked its other rows: then it lapses."""
        if any(key in world.rows for key in others):
            return tables.lapsed(world, token)
        return tables.forgotten(world, token)

    def _give_back(self, token: str, keys: Sequence[Key], others: Sequence[Key]) -> None:
        def work(world: World) -> tuple[World, None] | None:
            if any(world.held_by_other(("row", key), self._who) for key in keys):
                return None
            return self._end(self._marked(world, keys), token, others), None

        self._ask("give back", work)

    def _marked(self, world: World, keys: Sequence[Key]) -> World:
        return world if self._atomic else tables.marked(world, keys)

    def _lock_rows(
        self, see: Callable[[World], World], token: str, keys: Sequence[Key]
    ) -> Callable[[World], tuple[World, tuple[Rows, bool, tuple[Key, ...]]]]:
        def lock(world: World) -> tuple[World, tuple[Rows, bool, tuple[Key, ...]]]:
            seen = see(world)
            there = [key for key in sorted(set(keys)) if key in seen.rows]
            free = [key for key in there if not world.held_by_other(("row", key), self._who)]
            due = [key for key in free if tables.is_due(seen, key, world.now)]
            locked = world.locking(self._who, *(("row", key) for key in due))
            others = tuple(key for key in there if key not in due)
            rows = tuple((key, seen.rows[key]) for key in due)
            return locked, (rows, token in seen.claims, others)

        return lock

    def _lock_keys(self, ids: Sequence[str]) -> Callable[[World], tuple[World, Any] | None]:
        def lock(world: World) -> tuple[World, Any] | None:
            if self._who in world.cut_off:
                return self.undone(world), AWAY
            if any(world.held_by_other(("key", one), self._who) for one in ids):
                return None
            return world.locking(self._who, *(("key", one) for one in ids)), None

        return lock

    def _lock_key(self, timeout_id: str, by_key: Callable[[World], Any]) -> Any:
        """Lock a pending id; otherwise return the answer by its state, or "free"."""

        def lock(world: World) -> tuple[World, Any] | None:
            if timeout_id not in world.keys:
                return world, by_key(world) or "free"
            if world.held_by_other(("key", timeout_id), self._who):
                return None
            answer = by_key(world)
            return (
                (world, answer)
                if answer
                else (world.locking(self._who, ("key", timeout_id)), "locked")
            )

        return self._ask("lock the key", lock)

    def _bar(self, world: World, timeout_id: str) -> tuple[World, bool] | None:
        if world.held_by_other(("key", timeout_id), self._who):
            return None
        if timeout_id in world.keys:
            return world, False
        return tables.barred(world, timeout_id), True

    def _lock_row(self, timeout_id: str) -> tuple[Key, bool] | None:
        """Lock the row of a locked key; None, and rolled back, while a dispatcher holds it."""

        def read(world: World) -> tuple[World, Any]:
            key = Key(world.keys[timeout_id].due, timeout_id)
            if world.held_by_other(("row", key), self._who):
                return world, None
            covered = any(claim.covers(key) for claim in world.claims.values())
            maybe = world.rows[key].maybe_sent or (covered and not self._atomic)
            return world.locking(self._who, ("row", key)), (key, maybe)

        def lock_endpoint(world: World) -> tuple[World, None] | None:
            if world.held_by_other(ENDPOINT, self._who):
                return None
            return world.locking(self._who, ENDPOINT), None

        def read_again(world: World) -> tuple[World, Any]:
            after, held = read(world)
            return (self.undone(world), None) if held is None else (after, held)

        held: tuple[Key, bool] | None = self._ask("lock the row", read)
        if held is None:
            self._ask("lock the endpoint", lock_endpoint)
            held = self._ask("lock the row again", read_again)
        return held

    def _ended(self, world: World) -> tuple[tuple[str, ...], tuple[Key, ...]]:
        """Return the claims that may be dropped, and their rows, which must be marked."""
        dropped, marked = [], set()
        for token, claim in sorted(world.claims.items()):
            inside = [key for key in world.rows if claim.covers(key)]
            if not claim.over:
                continue
            if self._atomic:
                dropped.append(token)
            elif not any(world.held_by_other(("row", key), self._who) for key in inside):
                dropped.append(token)
                marked.update(inside)
        return tuple(dropped), tuple(sorted(marked))

    def _claim_keys(
        self,
        world: World,
        now: Micros,
        limit: int,
        dropped: tuple[str, ...],
        marked: tuple[Key, ...],
    ) -> ClaimedKeys:
        keys = tables.free_keys(world, now, limit, dropped)
        return ClaimedKeys(dropped, marked, keys, f"{self._who}-{world.serial}" if keys else "")

    def _ask_all(self, name: str, outcomes: Callable[[World], Outcomes]) -> Any:
        return self._player.ask(Op(name, outcomes))


def _as_it_is(world: World) -> World:
    return world
