"""Schedules of recurring timeouts in a store, and the change of a schedule under its lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from timeoutmgr.contracts.stores import CancelResult
from timeoutmgr.contracts.timeouts import TimeoutState
from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.message.instants import Micros

Changed = TypeVar("Changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecord:
    """What a store keeps of the schedule *name* of an endpoint.

    *every* is the text of the schedule in force, *configured_at* the start of the process whose
    configuration it is. Occurrences up to *done_until* have been stored or skipped; None before
    the first. *run_due* and *run_id* name the run that is stored ahead, if there is one.
    """

    name: str
    every: str = ""
    configured_at: Micros = 0
    done_until: Micros | None = None
    run_due: Micros | None = None
    run_id: str | None = None
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a stored run; *closed_at* is the instant of its outcome, None while pending."""

    state: TimeoutState
    closed_at: Micros | None


class LockedSchedule(Protocol):
    """One schedule, locked against every other process until the change of it ends.

    Everything that it does is one transaction: all of it happens, or nothing.
    """

    @property
    def record(self) -> ScheduleRecord:
        """The record as it is kept now; an empty record of the name if none is."""
        ...

    @property
    def transaction(self) -> Transaction | None:
        """The transaction, for ``store_many``; None if the store takes part in none."""
        ...

    def now(self) -> Micros:
        """Return the time that due times are compared with."""
        ...

    def run_state(self, timeout_id: str) -> RunState | None:
        """Return the state of a run; None if the store has never seen it, or forgot it."""
        ...

    def cancel(self, timeout_id: str, channel: str) -> CancelResult:
        """Cancel a run, as the store cancels any timeout."""
        ...

    def audit(self, action: str, channel: str) -> None:
        """Have the audit keep *action* with the change, if the store keeps an audit."""
        ...

    def write(self, record: ScheduleRecord) -> None:
        """Keep *record* in place of the record."""
        ...

    def delete(self) -> None:
        """Forget the schedule."""
        ...


@runtime_checkable
class KeepsSchedules(Protocol):
    """A store that keeps the schedules of recurring timeouts; no store needs to."""

    def schedules(self) -> Sequence[ScheduleRecord]:
        """Return the records of all schedules of the endpoint, by name, without a lock."""
        ...

    def change_schedule(self, name: str, change: Callable[[LockedSchedule], Changed]) -> Changed:
        """Call *change* with the schedule *name*, locked, and return its result.

        Of concurrent changes of one schedule each sees the effects of the change before it. After a
        conflict of transactions *change* is called again: its effects are the transaction's alone.
        Raises StorageUnavailable.
        """
        ...
