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

    *every* is the text of the schedule in force, and *configured_at* the start of the process that
    configured it. Occurrences up to *done_until* have been stored or skipped; None before the
    first. *run_due* and *run_id* name the next run if it is stored.
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
    """A schedule, locked against every other process until its change ends.

    All its effects are one transaction.
    """

    @property
    def record(self) -> ScheduleRecord:
        """The record as it is stored now; an empty record with the name if none is stored."""
        ...

    @property
    def transaction(self) -> Transaction | None:
        """The transaction, for ``store_many``; None if the store takes part in none."""
        ...

    def now(self) -> Micros:
        """Return the time with which due times are compared."""
        ...

    def run_state(self, timeout_id: str) -> RunState | None:
        """Return the state of a run; None if the store never had it, or no longer has it."""
        ...

    def cancel(self, timeout_id: str, channel: str) -> CancelResult:
        """Cancel a run, as the store cancels any timeout."""
        ...

    def audit(self, action: str, channel: str) -> None:
        """Record *action* in the audit together with the change, if the store keeps an audit."""
        ...

    def write(self, record: ScheduleRecord) -> None:
        """Replace the stored record with *record*."""
        ...

    def delete(self) -> None:
        """Delete the record of the schedule."""
        ...


@runtime_checkable
class KeepsSchedules(Protocol):
    """A store that keeps the schedules of recurring timeouts; no store needs to."""

    def schedules(self) -> Sequence[ScheduleRecord]:
        """Return the records of all schedules of the endpoint, by name, without a lock."""
        ...

    def change_schedule(self, name: str, change: Callable[[LockedSchedule], Changed]) -> Changed:
        """Call *change* with the schedule *name*, locked, and return its result.

        Concurrent changes of a schedule run one after the other. After a conflict of transactions
        *change* is called again, so it must have no effect outside of the transaction. Raises
        StorageUnavailable.
        """
        ...
