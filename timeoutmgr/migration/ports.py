"""Ports of a migration: its source, its target and its ledger.

The steps of a batch always have the same order: hide in the source, write ``sending`` into the
ledger, deliver to the target, remove from the source. Each can be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from timeoutmgr.contracts import Clock, Persistence, ScheduleRecord, Timeout, Transaction
from timeoutmgr.message.instants import Micros
from timeoutmgr.migration.runs import (
    Batch,
    Delivered,
    Item,
    KeyRange,
    MigrationRun,
    MigrationRunState,
    Problem,
    Survey,
    Terms,
    Window,
)

LedgerWrite: TypeAlias = Callable[[Transaction | None, int], None]
"""Writes to the ledger in the source's transaction, or after it (None) if they are separate.

It gets the number of timeouts that the change concerned.
"""


class Origin(Protocol):
    """The origin of the timeouts to be moved, as far as a plan needs it."""

    def describe(self) -> str:
        """Return a description without secrets; a resumed run must have the same description."""
        ...

    def now(self) -> Micros:
        """Return the time that its due times are compared with."""
        ...

    def survey(self, window: Window) -> Survey:
        """Return the survey of a run that would begin now; change nothing."""
        ...

    def ranges(self, window: Window, size: int) -> Iterator[KeyRange]:
        """Yield ranges of at most *size* timeouts, nearest due first; changes nothing."""
        ...

    def is_same_store_as_target(self, run_id: str) -> bool:
        """Return whether the target, which is open for the run, is this same place.

        Two names may mean one store: then each timeout would be known there, and be removed.
        """
        return False

    def prepare(self, run_id: str) -> None:
        """Create the resources that hiding needs (a table, say), if any; idempotent."""
        return

    def close(self) -> None:
        """Close own connections, and remove scratch files."""
        return


class Source(Origin, Protocol):
    """The source of a move. Every method raises StorageUnavailable (or the broker's error)."""

    @property
    def hides_atomically(self) -> bool:
        """Whether hiding and recording that is one transaction.

        If not, a batch may be hidden before the ledger knows.
        """
        return False

    def hide(self, run_id: str, batch: Batch, window: Window, write: LedgerWrite) -> None:
        """Hide the batch's range, as far as it is still within *window*, from the source's poller.

        Timeouts that were claimed, sent or cancelled meanwhile are skipped.
        """
        ...

    def read(self, run_id: str, batch: Batch) -> Sequence[Item]:
        """Return the hidden timeouts of the batch: always the same until they are removed."""
        ...

    def remove(self, run_id: str, batch: Batch, items: Sequence[Item], write: LedgerWrite) -> None:
        """Remove *items*, the whole batch, with tombstones: the target has them."""
        ...

    def restore(
        self,
        run_id: str,
        batch: Batch,
        items: Sequence[Item],
        there: Collection[str],
        write: LedgerWrite,
    ) -> None:
        """Remove the *items* whose ids are *there* (at the target), and unhide the rest."""
        ...

    def hidden(self, run_id: str) -> int:
        """Return how many timeouts the run hides now; 0 after its end."""
        return 0


class Target(Protocol):
    """The target of a move."""

    @property
    def knows_what_it_has(self) -> bool:
        """Whether each id is accepted only once, and ``present`` can tell; no queue can."""
        return False

    def describe(self) -> str:
        """Return a description without secrets."""
        ...

    def now(self) -> Micros | None:
        """Return the time by which it delivers; None if it counts delays, like a queue."""
        return None

    def problems(self, survey: Survey) -> Sequence[Problem]:
        """Return why the target could not accept the timeouts of *survey*; change nothing."""
        ...

    def open(self, run_id: str) -> None:
        """Let the run deliver; idempotent. No-op without a fencing token."""
        return

    def deliver(self, run_id: str, batch: Batch, items: Sequence[Item]) -> Delivered:
        """Accept *items* durably, all or none if possible, and count them.

        Absolute due times count, whenever this happens. Raises MigrationFailed once the run is
        shut, or if an item is refused.
        """
        ...

    def present(self, ids: Sequence[str]) -> set[str]:
        """Return the *ids* that the target has or had; only if ``knows_what_it_has``."""
        raise TypeError("a queue cannot be asked for an id")

    def conflicts(self, timeouts: Sequence[Timeout]) -> set[int]:
        """Return the positions of *timeouts* whose ids are used, here or by an earlier timeout."""
        raise TypeError("a queue cannot be asked for a message")

    def shut(self, run_id: str) -> None:
        """Refuse further deliveries of the run by any process: after that, ``present`` is final."""
        return

    def close(self) -> None:
        """Close own connections."""
        return


@runtime_checkable
class HasSchedules(Protocol):
    """A source with recurring timeouts."""

    def schedules(self) -> Sequence[ScheduleRecord]:
        """Return the records of the schedules, which stay here."""
        ...


@runtime_checkable
class AdoptsSchedules(Protocol):
    """A target that can continue the recurring timeouts of a source."""

    def adopt(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Keep copies of *schedules*, unless a record here is newer; idempotent."""
        ...


class MigrationLedger(Protocol):
    """The runs of one endpoint and the state of each batch: plain rows that any runner can use."""

    def now(self) -> Micros:
        """Return the time of the ledger's store."""
        ...

    def create(
        self, run_id: str, terms: Terms, ranges: Iterable[KeyRange], runner: str
    ) -> MigrationRun:
        """Write run and plan in one transaction; MigrationRefused while another run is open."""
        ...

    def acquire(self, run_id: str, runner: str) -> MigrationRun:
        """Make *runner* the runner of the run.

        Raises MigrationRefused while the previous runner lives.
        """
        ...

    def release(self, runner: str) -> None:
        """Release the session lock of *runner*, so that another runner may go on."""
        ...

    def claim(self, run: MigrationRun, no: int, runner: str) -> Batch | None:
        """Claim batch *no* for *runner*, and return it as it is now.

        A batch that is over is returned unclaimed; None while another living owner has a claim.
        Raises MigrationRefused once another runner than that of *run* works on the run.
        """
        ...

    def claim_next(self, run: MigrationRun, runner: str) -> Batch | None:
        """Claim the first batch that is neither over nor claimed; None if no such batch is left.

        Raises as ``claim`` does.
        """
        ...

    def set_aside(self, run: MigrationRun, batch: Batch) -> None:
        """Reassign the claim on *batch* to the runner: other workers leave a failed batch alone."""
        ...

    def claimed(self, run_id: str) -> Collection[int]:
        """Return the numbers of the claimed batches, also of dead owners."""
        ...

    def open_run(self) -> MigrationRun | None:
        """Return the open run, or None."""
        ...

    def runs(self) -> Sequence[MigrationRun]:
        """Return all runs, the latest first."""
        ...

    def batches(self, run_id: str) -> Iterator[Batch]:
        """Yield the run's batches in order, read page by page."""
        ...

    def totals(self, run_id: str) -> Mapping[str, int]:
        """Return ``batches_<state>`` for each present state, and the sums of the counts."""
        ...

    def move_run(
        self, run_id: str, state: MigrationRunState, *, report: Mapping[str, Any] | None = None
    ) -> None:
        """Set a run's state; MigrationFailed if the transition is not allowed."""
        ...

    def move_batch(self, run_id: str, batch: Batch, transaction: Transaction | None = None) -> None:
        """Write *batch* as it is now; a batch that is over loses its claim.

        MigrationFailed if the transition is not allowed, or another owner has claimed the batch.
        """
        ...


class PlanInputs(Protocol):
    """The participants of a run that are needed to begin it."""

    @property
    def source(self) -> Origin:
        """The source."""
        ...

    @property
    def target(self) -> Target:
        """The target."""
        ...

    @property
    def ledger(self) -> MigrationLedger:
        """The ledger of the run."""
        ...

    @property
    def runner(self) -> str:
        """The owner name of the process that works."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of its host."""
        ...

    @property
    def is_one_store(self) -> bool:
        """Whether source and target are obviously the same tables, before anything is opened."""
        ...


class StepInputs(PlanInputs, Protocol):
    """The participants that the steps of a run need, if the run hides batches."""

    @property
    def source(self) -> Source:
        """Source whose batches are hidden, read and removed."""
        ...

    @property
    def pause(self) -> Callable[[float], object]:
        """Function that waits for a number of seconds."""
        ...


@runtime_checkable
class MigrationPlaces(Persistence, Protocol):
    """A persistence that can be source and target of migrations, and that keeps a ledger."""

    def migration_source(self, endpoint: str, clock: Clock, *, queues_only: bool = False) -> Source:
        """Return the pending timeouts of *endpoint*, as a source.

        With *queues_only*, messages that are sent by a route (of other programs) stay.
        """
        ...

    def migration_target(self, endpoint: str, clock: Clock) -> Target:
        """Return the store of *endpoint*, as a target."""
        ...

    def migration_ledger(self, endpoint: str, clock: Clock) -> MigrationLedger:
        """Return the ledger of the runs of *endpoint*."""
        ...
