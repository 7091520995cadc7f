"""The store on SQLite: one writer at a time, without row locks; a dispatcher fences its claim."""

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
    Repeat,
    SagaClear,
    Timeout,
    Transaction,
)
from timeoutmgr.message.instants import Micros

from . import tables
from .store import LockedRows, Rows, SimStore, as_simulated, cancel_by, change_by, in_order
from .tables import ClaimedKeys
from .world import Claim, World

Read = Callable[[World], Any]
Change = Callable[[World, Any], World]


class FencedStore(SimStore):
    """Every transaction is one step, since SQLite admits a single writer at a time."""

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        batch = in_order(timeouts)
        self._run(
            "store",
            lambda world: (
                tuple(one.id for one in batch if one.id not in world.keys),
                tables.reached(world, batch),
            ),
            lambda world, found: tables.inserted(world, batch, *found),
            transaction,
        )
        return ()

    def await_clears(self, transaction: Transaction) -> None:
        return

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        self._run(
            "clear",
            lambda world: None,
            lambda world, _: tables.cleared(world, order),
            transaction,
        )
        return ()

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
        given: ClaimedKeys = self._run(
            "claim",
            lambda world: self._claim_keys(world, now, limit),
            lambda world, given: tables.claimed_by(world, given, owner),
            transaction,
        )
        return Chunk(given.token, given.keys, None)

    def lock_for_dispatch(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[LockedTimeouts]:
        if transaction is not None:
            return self._lock_in(transaction, token, keys)
        return self._locked_timeouts(token, keys)

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        def change(world: World, _: object) -> World:
            claim = world.claims.get(token)
            locked = claim is not None and claim.locked
            return world if locked and maybe_sent else tables.forgotten(world, token)

        self._run("release", lambda world: None, change)

    def cancel(self, timeout_id: str) -> CancelResult:
        def read(world: World) -> tuple[CancelResult, Key | None]:
            known = world.keys.get(timeout_id)
            by_key = cancel_by(known)
            if by_key is not None or known is None:
                return by_key or CancelResult.WILL_BE_CANCELLED, None
            key, maybe = Key(known.due, timeout_id), self._maybe_sent(world, timeout_id)
            if maybe is None:
                return CancelResult.TOO_LATE, None
            return CancelResult.MAYBE_SENT if maybe else CancelResult.CANCELLED, key

        def change(world: World, found: tuple[CancelResult, Key | None]) -> World:
            answer, key = found
            if answer is CancelResult.WILL_BE_CANCELLED:
                return tables.barred(world, timeout_id)
            if key is None:
                return world
            return tables.cancelled(world, key, answer is CancelResult.MAYBE_SENT)

        answer: CancelResult = self._run("cancel", read, change)[0]
        return answer

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        def read(world: World) -> tuple[ChangeResult, Key | None]:
            known = world.keys.get(timeout_id)
            by_key = change_by(known)
            if by_key is not None or known is None:
                return by_key or ChangeResult.UNKNOWN, None
            maybe = self._maybe_sent(world, timeout_id)
            if maybe is None:
                return ChangeResult.TOO_LATE, None
            key = Key(known.due, timeout_id)
            return ChangeResult.MAYBE_SENT if maybe else ChangeResult.CHANGED, key

        def change(world: World, found: tuple[ChangeResult, Key | None]) -> World:
            answer, key = found
            if key is None:
                return world
            return tables.moved(world, key, due, answer is ChangeResult.MAYBE_SENT)

        answer: ChangeResult = self._run("reschedule", read, change)[0]
        return answer

    @contextmanager
    def _lock_in(
        self, transaction: Transaction, token: str, keys: Sequence[Key]
    ) -> Iterator[LockedTimeouts]:
        rows: Rows = self._run(
            "take", lambda world: self._rows(world, keys), lambda world, _: world, transaction
        )
        joined = as_simulated(transaction)
        assert joined is not None
        yield LockedRows(
            rows,
            lambda outcomes: joined.changes.append(
                lambda world: tables.forgotten(tables.closed(world, outcomes), token)
            ),
        )

    @contextmanager
    def _locked_timeouts(self, token: str, keys: Sequence[Key]) -> Iterator[LockedTimeouts]:
        fenced, rows = self._run(
            "take", lambda world: self._fenced_rows(world, token, keys), self._lock_claim
        )
        locked = LockedRows(rows, lambda outcomes: self._close(fenced, outcomes))
        try:
            yield locked
        finally:
            if not locked.recorded and fenced:
                self._give_back(fenced, [key for key, _ in rows])

    def _close(self, token: str, outcomes: Sequence[Outcome]) -> None:
        self._run(
            "close",
            lambda world: None,
            lambda world, _: tables.forgotten(tables.closed(world, outcomes), token),
        )

    def _give_back(self, token: str, keys: Sequence[Key]) -> None:
        self._ask(
            "give back", lambda world: (tables.forgotten(tables.marked(world, keys), token), None)
        )

    def _fenced_rows(self, world: World, token: str, keys: Sequence[Key]) -> tuple[str, Rows]:
        """Return the token to close and the rows; the claim is ours if it was nobody's yet."""
        if token:
            claim = world.claims.get(token)
            if claim is None or claim.locked:
                return "", ()
            return token, self._rows(world, keys)
        free = [k for k in keys if not any(claim.covers(k) for claim in world.claims.values())]
        rows = self._rows(world, free[:1])
        return (f"{self._who}-{world.serial}", rows) if rows else ("", ())

    def _lock_claim(self, world: World, found: tuple[str, Rows]) -> World:
        token, rows = found
        if not token:
            return world
        claim = world.claims.get(token)
        if claim is None:
            claim = Claim(rows[0][0], rows[-1][0], self._who)
            world = world._replace(serial=world.serial + 1)
        claim = claim._replace(owner=self._who, over=False, locked=True)
        return world._replace(claims=world.claims.having(token, claim))

    def _rows(self, world: World, keys: Sequence[Key]) -> Rows:
        due = (k for k in sorted(set(keys)) if k in world.rows)
        return tuple((k, world.rows[k]) for k in due if tables.is_due(world, k, world.now))

    def _claim_keys(self, world: World, now: Micros, limit: int) -> ClaimedKeys:
        over = [(token, claim) for token, claim in world.claims.items() if claim.over]
        dropped = tuple(sorted(token for token, _ in over))
        sent = [claim for _, claim in over if self._may_have_sent(claim)]
        marked = tuple(sorted(k for k in world.rows if any(claim.covers(k) for claim in sent)))
        keys = tables.free_keys(world, now, limit, dropped)
        return ClaimedKeys(dropped, marked, keys, f"{self._who}-{world.serial}" if keys else "")

    def _may_have_sent(self, claim: Claim) -> bool:
        return claim.locked

    def _maybe_sent(self, world: World, timeout_id: str) -> bool | None:
        """Return whether a pending timeout is maybe sent; None while it is being sent."""
        key = Key(world.keys[timeout_id].due, timeout_id)
        claims = [c for c in world.claims.values() if c.covers(key) and self._may_have_sent(c)]
        if any(not claim.over for claim in claims):
            return None
        return world.rows[key].maybe_sent or bool(claims)

    def _run(
        self, name: str, read: Read, change: Change, transaction: Transaction | None = None
    ) -> Any:
        """Run a transaction of a read and the change that follows, or join *transaction*."""
        joined = as_simulated(transaction)
        if joined is not None:
            see = joined.seen()
            result = self._ask(name, lambda world: (world, read(see(world))))
            joined.changes.append(lambda world: change(world, result))
            return result

        def work(world: World) -> tuple[World, Any] | None:
            if world.held_by_other("writer", self._who):
                return None
            found = read(world)
            return change(world, found), found

        return self._commit(name, work)
