"""The store as one actor's port: each call is a commit that may fail, or not say that it did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Chunk,
    Key,
    LockedTimeouts,
    Repeat,
    Timeout,
    TimeoutState,
    TimeoutStore,
    Transaction,
)
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros

from .database import Known
from .process import Calls
from .taking import taking
from .timeline import Killed
from .world import World

Result = TypeVar("Result")


class SimStore:
    """A session of one actor with the storage, with the methods that steps and actors use."""

    endpoint = "sales"

    def __init__(self, world: World, calls: Calls) -> None:
        self.world = world
        self.calls = calls
        self.database = world.database

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        self.reach()
        return self.world.timeline.now

    def ping(self) -> None:
        self.calls.before()
        self.reach()

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        def work() -> None:
            fresh = self.database.insert(timeouts)
            self.calls.note("stores", *fresh)

        self.commit(work)
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
        def work() -> Chunk:
            at = self.world.timeline.now
            self.database.drop_ended(at)
            keys, next_due = self.database.free_keys(at + ahead, limit)
            if not keys:
                return Chunk("", (), next_due)
            token = self.database.claim(keys, self.calls.process, at, locked=False)
            self.calls.note(f"claims {token}", *(key.id for key in keys))
            return Chunk(token, tuple(keys), next_due)

        return self.commit(work)

    def lock_for_dispatch(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[LockedTimeouts]:
        return taking(self, token, keys, ahead)

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        def work() -> None:
            claim = self.database.claims.get(token)
            if claim is None:
                return
            if maybe_sent and self.database.row_locks:
                rows = self.database.inside(claim)
                if any(row.holder is not None for row in rows):
                    return  # it was handed on after all
                self.database.flag_maybe_sent([row.timeout.key for row in rows])
            elif maybe_sent and claim.locked:
                return
            self.calls.note(f"releases {token}")
            del self.database.claims[token]

        self.commit(work)

    def notify_stored(self, due: Micros) -> None:
        return

    def next_due(self) -> Micros | None:
        self.reach()
        return self.database.order[0].due if self.database.order else None

    def key_of(self, timeout_id: str) -> Key | None:
        self.calls.before()
        self.reach()
        known = self.database.known.get(timeout_id)
        if known is None or known.state is not TimeoutState.PENDING:
            return None
        return Key(known.due, timeout_id)

    def find(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        self.calls.before()
        self.reach()
        known = self.database.known.get(timeout_id)
        if known is None:
            return None
        row = self.database.rows.get(Key(known.due, timeout_id))
        return known.state, None if row is None else row.timeout

    def cancel(self, timeout_id: str) -> CancelResult:
        return self.commit(lambda: self._cancel(timeout_id))

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
    ) -> Sequence[str]:
        def work() -> list[str]:
            ids = [
                row.timeout.id
                for row in self.database.rows.values()
                if row.timeout.saga_id == saga_id
                and (sent_until is None or row.timeout.created <= sent_until)
                and row.timeout.id not in keeping
            ]
            return [one for one in ids if self._cancel(one) is not CancelResult.TOO_LATE]

        return self.commit(work)

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        def work() -> ChangeResult:
            known = self.database.known.get(timeout_id)
            if known is None or known.state is TimeoutState.CANCELLED:
                return ChangeResult.UNKNOWN
            maybe = self._maybe_sent(known, timeout_id)
            if maybe is None:
                return ChangeResult.TOO_LATE
            self.database.move(Key(known.due, timeout_id), due, maybe_sent=maybe)
            self.calls.note(f"moves to {due}", timeout_id)
            self.world.ledger.moves(timeout_id)
            return ChangeResult.MAYBE_SENT if maybe else ChangeResult.CHANGED

        return self.commit(work)

    def heartbeat(self, owner: str, state: Mapping[str, str]) -> None:
        self.commit(lambda: None)

    def purge(self) -> int:
        return 0

    def run_maintenance(self) -> bool:
        return False

    def _cancel(self, timeout_id: str) -> CancelResult:
        known = self.database.known.get(timeout_id)
        self.calls.note("cancels", timeout_id)
        if known is None:
            self.database.known[timeout_id] = Known(TimeoutState.CANCELLED, 0)
            return CancelResult.WILL_BE_CANCELLED
        if known.state is TimeoutState.CANCELLED:
            return CancelResult.MAYBE_SENT if known.maybe_sent else CancelResult.CANCELLED
        maybe = self._maybe_sent(known, timeout_id)
        if maybe is None:
            return CancelResult.TOO_LATE
        self.database.cancel(Key(known.due, timeout_id), maybe_sent=maybe)
        return CancelResult.MAYBE_SENT if maybe else CancelResult.CANCELLED

    def _maybe_sent(self, known: Known, timeout_id: str) -> bool | None:
        """Return whether a pending timeout is maybe sent; None during its dispatch or after it."""
        if known.state is not TimeoutState.PENDING:
            return None
        key = Key(known.due, timeout_id)
        row = self.database.rows[key]
        using = [c for c in self.database.covering(key) if self.database.may_have_sent(c)]
        now = self.world.timeline.now
        if row.holder is not None:
            return None
        if not self.database.row_locks and any(not claim.is_over(now) for claim in using):
            self.world.ledger.is_fenced(timeout_id)
            return None
        return row.maybe_sent or bool(using)

    def reach(self) -> None:
        """Raise where this process is dead, or the storage is away."""
        if self.calls.process.dead:
            raise Killed
        if self.database.away:
            raise StorageUnavailable("the storage does not answer")

    def commit(self, work: Callable[[], Result]) -> Result:
        """Run *work* as one transaction, or not; and perhaps do not say which."""
        faults = self.world.faults
        self.calls.before()
        self.calls.slow("store.slow")
        self.reach()
        if faults.fires("store.undone"):
            raise StorageUnavailable("no answer to the commit")
        result = work()
        if faults.fires("store.unknown"):
            self.calls.note("does not hear of its commit")
            raise StorageUnavailable("no answer to the commit")
        self.calls.after()
        return result


def as_store(store: SimStore) -> TimeoutStore:
    """Return *store* as the port: it has all methods that are called."""
    return cast(TimeoutStore, cast(Any, store))
