"""One endpoint's timeouts in memory; claims are sets of keys, all under one lock."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import uuid4

from timeoutmgr.contracts import (
    Cancelled,
    CancelResult,
    ChangeResult,
    Chunk,
    Clock,
    HistoryEntry,
    Key,
    LockedSchedule,
    LockedTimeouts,
    OnConflict,
    Outcome,
    OutcomeKind,
    ProcessRecord,
    Repeat,
    RepeatKind,
    Rerouted,
    RunState,
    ScheduleRecord,
    StoreStatistics,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    Transaction,
)
from timeoutmgr.contracts.reports import DAY, RECENT, percentile
from timeoutmgr.contracts.sagas import (
    REMEMBERED,
    Cleared,
    SagaClear,
    memory_of,
    reaching,
    remembered,
    remembered_from,
)
from timeoutmgr.contracts.stores import refuse
from timeoutmgr.contracts.timeouts import content_of
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.message.routes import EARLY_CANCEL

from .memory_insight import MemoryClaim, MemoryContents, MemoryInsight, MemoryKnown, MemoryRow
from .remembered import AWAITED, Remembered, kind_of, memory_of_new, unpack, with_first

_CLOSED: Final = {
    OutcomeKind.DISPATCHED: TimeoutState.DISPATCHED,
    OutcomeKind.FAILED: TimeoutState.FAILED,
}
_AGAIN: Final = 50_000
Changed = TypeVar("Changed")


class MemoryTimeoutStore(MemoryInsight):
    """See :class:`timeoutmgr.contracts.TimeoutStore`. It takes part in no transaction."""

    def __init__(
        self, endpoint: str, clock: Clock, contents: MemoryContents, claim_time: int, retention: int
    ) -> None:
        MemoryInsight.__init__(self, clock, contents)
        self._endpoint = endpoint
        self._claim_time = claim_time
        self._retention = retention

    @property
    def endpoint(self) -> str:
        """The endpoint whose timeouts these are."""
        return self._endpoint

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        """Return the given clock's time."""
        return self._clock.now()

    def ping(self) -> None:
        """Return; memory is always there."""

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        """Store the timeouts whose id is new; return the others."""
        _refuse(transaction)
        with self._in.lock:
            self._refuse_conflicts(timeouts)
            kinds = [(timeout, self._stored(timeout)) for timeout in timeouts]
            return [Repeat(timeout, kind) for timeout, kind in kinds if kind is not None]

    def _refuse_conflicts(self, timeouts: Sequence[Timeout]) -> None:
        """Raise IdInUse before anything is stored."""
        contents: dict[str, bytes] = {}
        for timeout in timeouts:
            known, content = self._in.known.get(timeout.id), content_of(timeout)
            before = contents.setdefault(timeout.id, content) if known is None else known.content
            refuse([Repeat(timeout, kind_of(before, timeout, content))])

    def _stored(self, timeout: Timeout) -> RepeatKind | None:
        """Store *timeout* if its id is new; otherwise return the repeat."""
        known, content = self._in.known.get(timeout.id), content_of(timeout)
        cleared = reaching(timeout, self._in.cleared) if known is None else None
        if known is None and cleared is not None:
            return self._cancelled_on_arrival(timeout, content, cleared.channel)
        if known is None:
            memory = memory_of_new(timeout, content)
            made = MemoryKnown(TimeoutState.PENDING, timeout.due, content=memory)
            self._in.known[timeout.id] = made
            self._in.rows[timeout.key] = MemoryRow(timeout)
            return None
        kind = self._kind(known, timeout, content)
        if kind is RepeatKind.REPLACED:
            self._replace(known, timeout, content)
        elif kind is RepeatKind.CANCELLED:
            at = self._clock.now()
            known.due, known.closed_at = timeout.due, at
            known.content = memory_of_new(timeout, content)
            self._record_event("cancelled", at, timeout, EARLY_CANCEL)
        elif kind is RepeatKind.SUPERSEDED:
            known.content = with_first(known.content, timeout, content) or known.content
        return kind

    def _cancelled_on_arrival(
        self, timeout: Timeout, content: bytes, channel: str | None
    ) -> RepeatKind:
        at = self._clock.now()
        memory = memory_of_new(timeout, content)
        closed = MemoryKnown(TimeoutState.CANCELLED, timeout.due, at, content=memory)
        self._in.known[timeout.id] = closed
        self._record_event("cancelled", at, timeout, channel or EARLY_CANCEL)
        return RepeatKind.CANCELLED

    def _kind(self, known: MemoryKnown, timeout: Timeout, content: bytes) -> RepeatKind:
        row = self._replaceable(known, timeout)
        if row and timeout.created != row.timeout.created:
            is_older = timeout.created < row.timeout.created
            return RepeatKind.SUPERSEDED if is_older else RepeatKind.REPLACED
        return kind_of(known.content, timeout, content)

    def _replaceable(self, known: MemoryKnown, timeout: Timeout) -> MemoryRow | None:
        key = Key(known.due, timeout.id)
        is_free = timeout.on_conflict is OnConflict.REPLACE and key not in self._in.locked
        return self._in.rows.get(key) if is_free else None

    def _replace(self, known: MemoryKnown, timeout: Timeout, content: bytes) -> None:
        row = self._in.rows.pop(Key(known.due, timeout.id))
        remembered = unpack(known.content) or Remembered(content)
        known.content = remembered.replaced_by(timeout, content).pack()
        known.due = timeout.due
        self._in.rows[timeout.key] = MemoryRow(timeout, maybe_sent=row.maybe_sent)

    def examine(self, timeouts: Sequence[Timeout], *, transaction: Transaction) -> Sequence[Repeat]:
        """Return the repeats among *timeouts*, which any transaction sees alike."""
        with self._in.lock:
            found = [(each, self._in.known.get(each.id)) for each in timeouts]
            return [Repeat(each, self._examined(k, each)) for each, k in found if k is not None]

    def _examined(self, known: MemoryKnown, timeout: Timeout) -> RepeatKind:
        if self._replaceable(known, timeout):
            return RepeatKind.REPLACED
        return kind_of(known.content, timeout, content_of(timeout))

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
        """Claim at most *limit* keys for *owner*; owners live as long as the process."""
        _refuse(transaction)
        until = now + ahead
        with self._in.lock:
            self._drop_lapsed(now)
            claimed: set[Key] = set()
            claimed.update(*(claim.keys for claim in self._in.claims.values()))
            free, later, covered = [], [], False
            for key in self._in.rows:
                if key.due > until:
                    later.append(key.due)
                elif key in claimed or key in self._in.locked:
                    covered = True
                else:
                    free.append(key)
            free.sort()
            most = limit * chunks
            if covered:
                later.append(now + _AGAIN)
            next_due = free[most].due if len(free) > most else min(later, default=None)
            claimed_now = [
                self._claimed(free[start : min(start + limit, most)], owner, now, next_due)
                for start in range(0, min(len(free), most), limit)
            ]
            if not claimed_now:
                return Chunk("", (), next_due)
            return replace(claimed_now[0], others=tuple(claimed_now[1:]))

    def _claimed(
        self, keys: Sequence[Key], owner: str, now: Micros, next_due: Micros | None
    ) -> Chunk:
        token = uuid4().hex
        self._in.claims[token] = MemoryClaim(frozenset(keys), owner, now + self._claim_time)
        return Chunk(token, tuple(keys), next_due)

    def lock_for_dispatch(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[LockedTimeouts]:
        """Lock *keys*; another dispatcher gets none of them meanwhile."""
        _refuse(transaction)
        return self._lock(token, keys, ahead)

    @contextmanager
    def _lock(self, token: str, keys: Sequence[Key], ahead: Micros) -> Iterator[LockedTimeouts]:
        with self._in.lock:
            until = self._clock.now() + ahead
            mine = [
                key
                for key in sorted(set(keys))
                if key in self._in.rows and key not in self._in.locked and key.due <= until
            ]
            self._in.locked.update(mine)
            timeouts = [self._in.rows[key].timeout for key in mine]
            locked = _MemoryLockedTimeouts(self, token, timeouts, self._clock.now)
        try:
            yield locked
        finally:
            with self._in.lock:
                self._in.locked.difference_update(mine)
                if not locked.closed:
                    self._flag_maybe_sent(mine)
                    self._in.claims.pop(token, None)

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        """Forget the claim of *token*, unless a dispatcher may be at work under it."""
        with self._in.lock:
            claim = self._in.claims.get(token)
            if claim is None:
                return
            if maybe_sent:
                if claim.keys & self._in.locked:
                    return
                self._flag_maybe_sent(claim.keys)
            del self._in.claims[token]

    def notify_stored(self, due: Micros) -> None:
        """No-op: each claim reads everything."""

    def next_due(self) -> Micros | None:
        """Return the earliest due instant stored, or None."""
        with self._in.lock:
            return min(self._in.rows, default=Key(0, "")).due if self._in.rows else None

    def key_of(self, timeout_id: str) -> Key | None:
        """Return the key of a pending timeout."""
        with self._in.lock:
            known = self._in.known.get(timeout_id)
            pending = known is not None and known.state is TimeoutState.PENDING
            return Key(known.due, timeout_id) if known is not None and pending else None

    def cancel(self, timeout_id: str, *, channel: str | None = None) -> CancelResult:
        """Cancel a timeout."""
        with self._in.lock:
            known = self._in.known.get(timeout_id)
            if known is None:
                closed = MemoryKnown(TimeoutState.CANCELLED, 0, self._clock.now())
                self._in.known[timeout_id] = closed
                return CancelResult.WILL_BE_CANCELLED
            if known.content == AWAITED:
                return CancelResult.WILL_BE_CANCELLED
            key = Key(known.due, timeout_id)
            if known.state is TimeoutState.PENDING:
                if key in self._in.locked:
                    return CancelResult.TOO_LATE
                known.maybe_sent = self._in.rows[key].maybe_sent
                self._close(key, "cancelled", TimeoutState.CANCELLED, self._clock.now(), channel)
            elif known.state is not TimeoutState.CANCELLED:
                return CancelResult.TOO_LATE
            return CancelResult.MAYBE_SENT if known.maybe_sent else CancelResult.CANCELLED

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
        channel: str | None = None,
    ) -> Sequence[str]:
        """Cancel the timeouts of a saga that no dispatcher has locked; return their ids."""
        until = LATEST if sent_until is None else sent_until
        _refuse(transaction)
        return self._cancel_reached(
            SagaClear(
                saga_id=saga_id, order_id="", sent=until, kept=frozenset(keeping), channel=channel
            )
        )

    def _cancel_reached(self, order: SagaClear) -> Sequence[str]:
        with self._in.lock:
            timeouts = [row.timeout for row in self._in.rows.values()]
            return [
                each.id
                for each in timeouts
                if each.saga_id == order.saga_id
                and order.reaches(each.id, each.created, each.place)
                and self.cancel(each.id, channel=order.channel) is not CancelResult.TOO_LATE
            ]

    def cancel_where(
        self, which: TimeoutFilter, *, sent_until: Micros, channel: str | None = None
    ) -> Sequence[Cancelled]:
        """Cancel the timeouts of a label or saga; return all that were found."""
        name = memory_of(which)
        with self._in.lock:
            before = self._in.cleared.get(name)
            until = sent_until if before is None else max(sent_until, before.sent)
            self._in.cleared[name] = Cleared(
                order_id=None, at=remembered_from(self._clock.now()), sent=until, channel=channel
            )
            found = self.list(which, limit=len(self._in.rows))
            return [
                Cancelled(
                    replace(each, message=replace(each.message, body=b"")),
                    self.cancel(each.id, channel=channel),
                )
                for each in found
            ]

    def await_clears(self, transaction: Transaction) -> None:
        """No-op: each clear is one step."""

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        """Cancel the timeouts that *order* affects, and remember it; return their ids."""
        _refuse(transaction)
        with self._in.lock:
            before = self._in.cleared.get(order.saga_id)
            if before is not None and before.order_id == order.order_id:
                return []
            at = self._clock.now()
            self._in.cleared[order.saga_id] = remembered(before, order, at, is_complete=True)
            return self._cancel_reached(order)

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        """Move a timeout to another due time."""
        with self._in.lock:
            known = self._in.known.get(timeout_id)
            if known is None or known.state is TimeoutState.CANCELLED:
                return ChangeResult.UNKNOWN
            key = Key(known.due, timeout_id)
            if known.state is not TimeoutState.PENDING or key in self._in.locked:
                return ChangeResult.TOO_LATE
            row = self._in.rows.pop(key)
            known.due = due
            moved = replace(row.timeout, due=due, next_try=0)
            self._in.rows[moved.key] = MemoryRow(moved, maybe_sent=row.maybe_sent)
            return ChangeResult.MAYBE_SENT if row.maybe_sent else ChangeResult.CHANGED

    def reroute(
        self, keys: Sequence[Key], destination: str, *, channel: str | None = None
    ) -> Rerouted:
        """Change the destination of *keys* to *destination*, unless a dispatcher has them."""
        with self._in.lock:
            chosen = [
                k for k in dict.fromkeys(keys) if k in self._in.rows and k not in self._in.locked
            ]
            for key in chosen:
                row = self._in.rows[key]
                row.timeout = replace(row.timeout, destination=destination)
            return Rerouted(chosen, [key for key in chosen if self._in.rows[key].maybe_sent])

    def schedules(self) -> Sequence[ScheduleRecord]:
        """Return the records of the endpoint's recurring timeouts, by name."""
        with self._in.lock:
            return [self._in.schedules[name] for name in sorted(self._in.schedules)]

    def change_schedule(self, name: str, change: Callable[[LockedSchedule], Changed]) -> Changed:
        """Call *change* with the schedule *name*, under the one lock."""
        with self._in.lock:
            return change(_MemoryLockedSchedule(self, self._in, name))

    def statistics(self) -> StoreStatistics:
        """Return the figures of ``timeoutmgr status``."""
        with self._in.lock:
            now = self._clock.now()
            sent = [each.at - each.due for each in self._in.history if each.event == "dispatched"]
            late = sorted(sent[-RECENT:])
            events = [each.event for each in self._in.history if each.at > now - DAY]
            return StoreStatistics(
                pending=len(self._in.rows),
                due=sum(row.timeout.due <= now for row in self._in.rows.values()),
                oldest_due=min((row.timeout.due for row in self._in.rows.values()), default=None),
                claimed=sum(len(claim.keys) for claim in self._in.claims.values()),
                outcomes={event: events.count(event) for event in set(events)},
                lateness_p50=percentile(late, 50),
                lateness_p99=percentile(late, 99),
                lateness_max=late[-1] if late else None,
            )

    def purge(self) -> int:
        """Remove tombstones and history past retention; return how many."""
        with self._in.lock:
            before = self._clock.now() - self._retention
            old = [
                one
                for one, known in self._in.known.items()
                if known.closed_at is not None and known.closed_at < before
            ]
            for one in old:
                del self._in.known[one]
            since = self._clock.now() - REMEMBERED
            self._in.cleared = {s: c for s, c in self._in.cleared.items() if c.at >= since}
            kept = [entry for entry in self._in.history if entry.at >= before]
            removed = len(old) + len(self._in.history) - len(kept)
            self._in.history = kept
            return removed

    def purge_lag(self) -> Micros:
        """Return for how long the oldest row past retention has been overdue for removal."""
        with self._in.lock:
            closed = (known.closed_at for known in self._in.known.values())
            since = [at for at in closed if at is not None]
            since += [entry.at for entry in self._in.history]
            before = self._clock.now() - self._retention
            return max(0, before - min(since, default=before))

    def run_maintenance(self) -> bool:
        """No-op."""
        return False

    def heartbeat(self, owner: str, state: Mapping[str, str]) -> None:
        """Write a heartbeat of this process; the clock is the host's."""
        with self._in.lock:
            now, before = self._clock.now(), self._in.processes.get(owner)
            self._in.processes[owner] = ProcessRecord(
                owner=owner,
                endpoint=self.endpoint,
                host=socket.gethostname(),
                pid=os.getpid(),
                started=before.started if before else now,
                heartbeat=now,
                state=dict(state),
            )

    def unregister_process(self, owner: str) -> None:
        """Remove the heartbeat of a process that stopped cleanly."""
        with self._in.lock:
            self._in.processes.pop(owner, None)

    def processes(self) -> Sequence[ProcessRecord]:
        """Return the latest heartbeats, the newest first."""
        with self._in.lock:
            records = self._in.processes.values()
            return sorted(records, key=lambda record: record.heartbeat, reverse=True)

    def record(self, token: str, mine: Sequence[Timeout], outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes of *mine*, which ``lock_for_dispatch`` returned."""
        keys = {timeout.key for timeout in mine}
        with self._in.lock:
            for outcome in outcomes:
                if outcome.key not in keys:
                    continue
                if outcome.kind is OutcomeKind.RETRY:
                    self._put_off(outcome)
                else:
                    state = _CLOSED[outcome.kind]
                    self._close(outcome.key, state.value, state, outcome.at)
            self._in.claims.pop(token, None)

    def _put_off(self, outcome: Outcome) -> None:
        row = self._in.rows.pop(outcome.key)
        attempts, next_try = row.timeout.attempts + 1, max(outcome.next_try, outcome.key.due)
        row.timeout = replace(row.timeout, attempts=attempts, next_try=next_try)
        row.maybe_sent |= outcome.maybe_sent
        self._in.rows[row.timeout.key] = row
        self._in.known[outcome.key.id].due = row.timeout.key.due

    def _close(
        self, key: Key, event: str, state: TimeoutState, at: Micros, channel: str | None = None
    ) -> None:
        known = self._in.known[key.id]
        known.state, known.closed_at = state, at
        row = self._in.rows.pop(key)
        self._record_event(event, at, row.timeout, channel)

    def _record_event(self, event: str, at: Micros, timeout: Timeout, channel: str | None) -> None:
        event_entry = HistoryEntry(
            id=timeout.id,
            event=event,
            at=at,
            due=timeout.due,
            destination=timeout.destination,
            attempt=timeout.attempts,
            node=socket.gethostname(),
            channel=channel,
        )
        self._in.history.append(event_entry)

    def _drop_lapsed(self, now: Micros) -> None:
        for token, claim in list(self._in.claims.items()):
            if claim.until <= now and not claim.keys & self._in.locked:
                self._flag_maybe_sent(claim.keys)
                del self._in.claims[token]

    def _flag_maybe_sent(self, keys: Sequence[Key] | frozenset[Key]) -> None:
        for key in keys:
            if key in self._in.rows:
                self._in.rows[key].maybe_sent = True


@dataclass(slots=True)
class _MemoryLockedTimeouts:
    """Timeouts that a dispatcher has locked."""

    store: MemoryTimeoutStore
    token: str
    timeouts: Sequence[Timeout]
    now: Callable[[], Micros]
    closed: bool = False

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes*."""
        if self.closed:
            raise RuntimeError("these timeouts were closed already")
        self.store.record(self.token, self.timeouts, outcomes)
        self.closed = True


def _refuse(transaction: Transaction | None) -> None:
    if transaction is not None:
        raise CombinationRefused(
            "a transaction with an in-memory store",
            "memory cannot be rolled back with a database",
            "Use a SQL persistence.",
        )


class _MemoryLockedSchedule:
    """See :class:`timeoutmgr.contracts.LockedSchedule`; its owner holds the contents' lock."""

    transaction: Final = None
    """No transaction: the lock alone makes the change atomic."""

    def __init__(self, store: MemoryTimeoutStore, contents: MemoryContents, name: str) -> None:
        self._store = store
        self._in = contents
        self.record = contents.schedules.get(name) or ScheduleRecord(name=name)
        """The record of the schedule."""

    def now(self) -> Micros:
        """Return the time that due times are compared with."""
        return self._store.now()

    def run_state(self, timeout_id: str) -> RunState | None:
        """Return the state of a run."""
        known = self._in.known.get(timeout_id)
        return None if known is None else RunState(known.state, known.closed_at)

    def cancel(self, timeout_id: str, channel: str) -> CancelResult:
        """Cancel a run."""
        return self._store.cancel(timeout_id, channel=channel)

    def audit(self, action: str, channel: str) -> None:
        """No-op: a store in memory has no audit."""

    def write(self, record: ScheduleRecord) -> None:
        """Store *record*."""
        self._in.schedules[record.name] = self.record = record

    def delete(self) -> None:
        """Forget the schedule."""
        self._in.schedules.pop(self.record.name, None)
