"""Changes of one locked schedule: store the next run, pause, resume, remove.

A change is one transaction under the schedule's lock. So only one process stores a run, all others
see it, and a crash leaves either the whole change or nothing. The id of a run is made of endpoint,
name and instant: even without the lock, the store's keys refuse a second run of an instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, Protocol

from timeoutmgr.contracts import (
    CancelResult,
    LockedSchedule,
    RunState,
    ScheduleRecord,
    TimeoutState,
    Transaction,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.message.ids import id_of
from timeoutmgr.message.instants import Micros
from timeoutmgr.recurrence.definition import MOST_CAUGHT_UP, CatchUp, RecurringTimeout
from timeoutmgr.recurrence.occurrences import Occurrences, parse

CHANNEL: Final = "recurring"
"""The channel that the history shows for a cancel by a changed schedule."""
_CLOCKS_DIFFER: Final[Micros] = 60_000_000
"""Tolerated difference of two processes' clocks: neither replaces the other's run."""


class StoresRuns(Protocol):
    """Builds the message of a run, and stores it as a timeout."""

    @property
    def endpoint(self) -> str:
        """The endpoint whose timeouts the runs are."""
        ...

    def timeout_id(self, message_id: str) -> str:
        """Return the id of the timeout for the message *message_id*."""
        ...

    def store(
        self,
        definition: RecurringTimeout,
        due: Micros,
        message_id: str,
        transaction: Transaction | None,
    ) -> None:
        """Store a run of *definition* at *due*. Raises InvalidMessage."""
        ...


@dataclass(frozen=True, slots=True)
class Advance:
    """Effect of ``advance``: the record now, the instants of stored runs, and the skipped runs.

    *skipped* says that missed occurrences get no run of their own. *replaced* is the instant of a
    run that was stored by a clock that was ahead, and is now replaced.
    """

    record: ScheduleRecord
    stored: Sequence[Micros] = ()
    skipped: bool = False
    replaced: Micros | None = None


def needs_change(record: ScheduleRecord, definition: RecurringTimeout, now: Micros) -> bool:
    """Return whether ``advance`` may have to change *record*, which was read without the lock."""
    if record.every != definition.occurrences.text or _was_ahead(record, now):
        return True
    is_due = record.run_due is None or record.run_due <= now
    return not record.is_paused and (is_due or _is_ahead(record, definition, now))


def advance(
    locked: LockedSchedule, definition: RecurringTimeout, runs: StoresRuns, started: Micros
) -> Advance:
    """Store the missed runs that the policy asks for, and the next run, unless one is stored.

    *started* is when this process started: if the ``every`` of two processes differs, the process
    that started later wins, and the other process follows it.
    """
    now = locked.now()
    record = _configured(locked, definition, started, now)
    replaced = record.run_due if _is_ahead(record, definition, now) else None
    if replaced is not None:
        run_less = _without_run(locked, CHANNEL)
        record = replace(run_less, configured_at=record.configured_at)
    result = Advance(record)
    if not record.is_paused and (record.run_due is None or record.run_due <= now):
        result = _next(locked, record, definition, runs, now)
    if result.record != locked.record:
        locked.write(result.record)
    return replace(result, replaced=replaced)


def pause(locked: LockedSchedule, channel: str) -> bool:
    """Cancel the stored run, and store none until ``resume``; return False if already paused."""
    if locked.record.is_paused:
        return False
    locked.write(replace(_without_run(locked, channel), is_paused=True))
    locked.audit("pause-recurring", channel)
    return True


def resume(locked: LockedSchedule, channel: str) -> bool:
    """Have ``advance`` store runs again; return False if the schedule is not paused."""
    if not locked.record.is_paused:
        return False
    locked.write(replace(locked.record, is_paused=False))
    locked.audit("resume-recurring", channel)
    return True


def remove(locked: LockedSchedule, channel: str) -> None:
    """Cancel the stored run, and delete the schedule."""
    _without_run(locked, channel)
    locked.delete()
    locked.audit("remove-recurring", channel)


def _configured(
    locked: LockedSchedule, definition: RecurringTimeout, started: Micros, now: Micros
) -> ScheduleRecord:
    """Return the record with the schedule in force. A new or changed schedule begins now."""
    record, occurrences = locked.record, definition.occurrences
    if _was_ahead(record, now):
        # Its process' start is unknown: a process that has just started wins.
        record = replace(record, configured_at=now - _CLOCKS_DIFFER)
    if record.done_until is not None:
        if record.every == occurrences.text or started <= record.configured_at:
            return record
        if record.run_due is not None and record.run_due > now:
            if record.run_due != occurrences.after(now):
                record = _without_run(locked, CHANNEL)
        else:
            record = replace(record, run_due=None, run_id=None)
    return replace(record, every=occurrences.text, configured_at=started, done_until=now)


def _was_ahead(record: ScheduleRecord, now: Micros) -> bool:
    """Return whether the schedule was configured by a clock that was ahead but is now correct."""
    return record.configured_at > now + _CLOCKS_DIFFER


def _in_force(record: ScheduleRecord, definition: RecurringTimeout) -> Occurrences:
    own = definition.occurrences
    return own if record.every == own.text else parse(record.every)


def _is_ahead(record: ScheduleRecord, definition: RecurringTimeout, now: Micros) -> bool:
    """Return whether the stored run is later than the next: its clock was ahead, and set back.

    Until that run is due no other run would be stored.
    """
    latest = now + _CLOCKS_DIFFER
    if record.run_due is None or record.run_due <= latest:
        return False
    following = _in_force(record, definition).after(latest)
    return following is not None and record.run_due > following


def _next(
    locked: LockedSchedule,
    record: ScheduleRecord,
    definition: RecurringTimeout,
    runs: StoresRuns,
    now: Micros,
) -> Advance:
    occurrences = _in_force(record, definition)
    done = max(record.done_until or 0, record.run_due or 0)
    missed, skipped = _missed(locked, record, definition.policy, occurrences, (done, now))
    next_due = occurrences.after(now)
    stored = [*missed, *([] if next_due is None else [next_due])]
    ids = [_stored(locked, definition, runs, due) for due in stored]
    record = replace(
        record, done_until=now, run_due=next_due, run_id=None if next_due is None else ids[-1]
    )
    return Advance(record, stored, skipped)


def _missed(
    locked: LockedSchedule,
    record: ScheduleRecord,
    policy: CatchUp,
    occurrences: Occurrences,
    between: tuple[Micros, Micros],
) -> tuple[list[Micros], bool]:
    """Return the missed occurrences to run now, and whether more are skipped."""
    done, now = between
    limit = MOST_CAUGHT_UP if policy is CatchUp.ALL else 1
    missed, more = occurrences.latest(done, now, limit)
    if not missed or policy is CatchUp.ALL:
        return missed, more
    if policy is CatchUp.NONE:
        return [], True
    if record.run_id is not None:
        first = occurrences.after(done)
        assert first is not None, "it was missed"
        if _runs_late(locked.run_state(record.run_id), first):
            return [], True
    return missed, more


def _runs_late(run: RunState | None, until: Micros) -> bool:
    """Return whether the stored run was sent after *until*, or is still to be sent."""
    if run is None or run.state is TimeoutState.CANCELLED:
        return False
    return run.closed_at is None or run.closed_at >= until


def _stored(
    locked: LockedSchedule, definition: RecurringTimeout, runs: StoresRuns, due: Micros
) -> str:
    """Store the run at *due* unless it is stored, and return the id of its timeout.

    A pause cancels a run and uses up its id. So the id also counts the earlier cancels.
    """
    for number in count():
        message_id = id_of(CHANNEL, runs.endpoint, definition.name, str(due), str(number))
        timeout_id = runs.timeout_id(message_id)
        found = locked.run_state(timeout_id)
        if found is None:
            runs.store(definition, due, message_id, locked.transaction)
            reach("recurring.run_stored")
            return timeout_id
        if found.state is not TimeoutState.CANCELLED:
            return timeout_id
    raise AssertionError("unreachable: the count has no end")


def _without_run(locked: LockedSchedule, channel: str) -> ScheduleRecord:
    """Cancel the run that is stored ahead; its occurrence counts as done only if it was sent."""
    record = locked.record
    if record.run_id is None:
        return record
    run = locked.run_state(record.run_id)
    is_cancelled = (
        run is not None
        and run.state is TimeoutState.PENDING
        and locked.cancel(record.run_id, channel) is not CancelResult.TOO_LATE
    )
    reach("recurring.run_cancelled")
    done = record.done_until if is_cancelled else record.run_due
    return replace(record, done_until=done, run_due=None, run_id=None)
