"""Stores that are wrong in one way each; the machine has to notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import pytest

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Chunk,
    Key,
    LockedTimeouts,
    Outcome,
    OutcomeKind,
    Repeat,
    Timeout,
    TimeoutState,
    TimeoutStore,
    Transaction,
)
from timeoutmgr.database.session_locks import Liveness
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.memory_insight import MemoryContents
from timeoutmgr.persistence.memory_store import MemoryTimeoutStore
from timeoutmgr.persistence.sql.batch_writes import BatchWrites
from timeoutmgr.persistence.sql.claim import claimer as claiming
from timeoutmgr.persistence.sql.claim.rows import DueKeys
from timeoutmgr.persistence.sql.insert import TimeoutInsert
from timeoutmgr.persistence.sql.labels import LabelRows


class Wrong(MemoryTimeoutStore):
    """A store in memory; each fault below overrides a method."""

    @property
    def inside(self) -> MemoryContents:
        return self._in


class ResurrectsTombstones(Wrong):
    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        for one in timeouts:
            known = self.inside.known.get(one.id)
            if known is not None and known.state is TimeoutState.DISPATCHED:
                del self.inside.known[one.id]
        return super().store_many(timeouts)


class UnreschedulesOnRedelivery(Wrong):
    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        repeats = super().store_many(timeouts)
        for one in timeouts:
            known = self.inside.known[one.id]
            if known.state is TimeoutState.PENDING and known.due != one.due:
                self.reschedule(one.id, one.due)
        return repeats


class HandsOutEarly(Wrong):
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
        return super().claim(now + 1, limit, owner)


class HandsOutTwice(Wrong):
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
        self.inside.claims.clear()
        return super().claim(now, limit, owner)


class LetsNoClaimLapse(Wrong):
    def _drop_lapsed(self, now: Micros) -> None:
        return


class PassesTheOldestBy(Wrong):
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
        chunk = super().claim(now, limit + 1, owner)
        return replace(chunk, keys=chunk.keys[-limit:])


class SleepsPastARetry(Wrong):
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
        chunk = super().claim(now, limit, owner)
        future = min((key.due for key in self.inside.rows if key.due > now), default=None)
        return replace(chunk, next_due=future)


class LocksLockedRows(Wrong):
    def lock_for_dispatch(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[LockedTimeouts]:
        self.inside.locked.clear()
        return super().lock_for_dispatch(token, keys)


class ForgetsTheDoubt(Wrong):
    def _flag_maybe_sent(self, keys: Sequence[Key] | frozenset[Key]) -> None:
        return


class CancelsLockedRows(Wrong):
    def cancel(self, timeout_id: str, *, channel: str | None = None) -> CancelResult:
        held, self.inside.locked = self.inside.locked, set()
        try:
            return super().cancel(timeout_id, channel=channel)
        finally:
            self.inside.locked = held


class KeepsTheOldDue(Wrong):
    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        result = super().reschedule(timeout_id, due)
        known = self.inside.known.get(timeout_id)
        if known is not None and result is ChangeResult.CHANGED:
            row = self.inside.rows.pop(Key(due, timeout_id))
            row.timeout = replace(row.timeout, next_try=due + 1)
            self.inside.rows[row.timeout.key] = row
            known.due = due + 1
        return result


class PurgesPending(Wrong):
    def purge(self) -> int:
        removed = super().purge()
        before = self._clock.now() - self._retention
        for key in [key for key in self.inside.rows if key.due < before]:
            del self.inside.rows[key]
            del self.inside.known[key.id]
        return removed


class CountsNoAttempts(Wrong):
    def record(self, token: str, mine: Sequence[Timeout], outcomes: Sequence[Outcome]) -> None:
        super().record(token, mine, outcomes)
        for outcome in outcomes:
            if outcome.kind is OutcomeKind.RETRY:
                key = Key(self.inside.known[outcome.key.id].due, outcome.key.id)
                row = self.inside.rows[key]
                row.timeout = replace(row.timeout, attempts=0)


class SkipsTheBackOff(Wrong):
    def record(self, token: str, mine: Sequence[Timeout], outcomes: Sequence[Outcome]) -> None:
        super().record(token, mine, [replace(outcome, next_try=0) for outcome in outcomes])


class LosesWhatHasNoOutcome(Wrong):
    def record(self, token: str, mine: Sequence[Timeout], outcomes: Sequence[Outcome]) -> None:
        super().record(token, mine, outcomes)
        for key in {one.key for one in mine} - {outcome.key for outcome in outcomes}:
            self._close(key, "dispatched", TimeoutState.DISPATCHED, self._clock.now())


IN_MEMORY: Final = tuple(Wrong.__subclasses__())


def made_wrong(store: TimeoutStore, kind: type[Wrong]) -> TimeoutStore:
    """Return *store*, a sound store in memory, with the fault of *kind*."""
    assert isinstance(store, MemoryTimeoutStore)
    store.__class__ = kind
    return store


# --- faults of the SQL stores -----------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def no_tombstone_is_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchWrites, "close_keys", lambda *_: None)


def dead_owners_keep_their_claims(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "dead_owners", lambda *_: set())


def all_owners_seem_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "dead_owners", lambda _, names: set(names))


def claims_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    with_first = DueKeys.claims_and_first
    patch.setattr(claiming, "claims_of", lambda *_: [])
    patch.setattr(DueKeys, "claims_and_first", lambda *given: ([], with_first(*given)[1]))


def a_batch_with_an_old_id_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimeoutInsert, "_one_by_one", lambda *_: ())


def labels_outlive_their_timeouts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LabelRows, "remove", lambda *_: None)


def labels_stay_where_they_were_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LabelRows, "move", lambda *_: None)


IN_SQL: Final[tuple[Patch, ...]] = (
    no_tombstone_is_set,
    dead_owners_keep_their_claims,
    all_owners_seem_dead,
    claims_are_not_looked_at,
    a_batch_with_an_old_id_is_dropped,
    labels_outlive_their_timeouts,
    labels_stay_where_they_were_stored,
)
