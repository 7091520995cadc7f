"""What a migration asks of its source, its target and its ledger.

The order of one batch is always the same: hide in the source, write ``sending`` into the ledger,
deliver to the target, remove from the source. Each may be done again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from timeoutmgr.contracts import Clock, Transaction
from timeoutmgr.instants import Micros
from timeoutmgr.migration.runs import Batch, Delivered, Item, Problem, Range, Run, Survey, Terms
from timeoutmgr.migration.states import RunState
from timeoutmgr.migration.window import Window

Also: TypeAlias = Callable[[Transaction | None, int], None]
"""Writes to the ledger within the source's transaction, or after it (None) where they are apart.

It is told how many timeouts the change concerned.
"""


class Origin(Protocol):
    """What is to be moved, as far as a plan needs it."""

    def describe(self) -> str:
        """Return what it is, without secrets: a run is resumed on the very same."""
        ...

    def now(self) -> Micros:
        """Return the time that its due times are compared with."""
        ...

    def survey(self, window: Window) -> Survey:
        """Return what a run would take now; changes nothing."""
        ...

    def ranges(self, window: Window, size: int) -> Iterator[Range]:
        """Yield ranges of at most *size* timeouts, nearest due first; changes nothing."""
        ...

    def is_where_it_arrives(self, run_id: str) -> bool:
        """Return whether the target, which is open for the run, is this very place.

        By whatever name it goes: there each timeout would be found as known, and removed.
        """
        ...

    def prepare(self, run_id: str) -> None:
        """Make what hiding needs (a table, say), if anything; twice is fine."""
        ...

    def close(self) -> None:
        """Let go of connections and scratch files."""
        ...


class Source(Origin, Protocol):
    """Where timeouts are taken from. Every method raises StorageUnavailable (or the broker's)."""

    @property
    def hides_with_the_ledger(self) -> bool:
        """Whether hiding and writing that down is one transaction.

        Where not, a batch may be hidden of which the ledger does not know yet.
        """
        ...

    def hide(self, run_id: str, batch: Batch, window: Window, also: Also) -> None:
        """Hide what is in the batch's range, and still within *window*, from the source's poller.

        What is in other hands, was sent or cancelled meanwhile is left alone.
        """
        ...

    def read(self, run_id: str, batch: Batch) -> Sequence[Item]:
        """Return what is hidden of the batch, the same each time until it is removed."""
        ...

    def remove(self, run_id: str, batch: Batch, items: Sequence[Item], also: Also) -> None:
        """Remove *items*, which is all of the batch, with tombstones: the target has them."""
        ...

    def restore(
        self, run_id: str, batch: Batch, items: Sequence[Item], there: Collection[str], also: Also
    ) -> None:
        """Remove those of *items* whose ids are *there*, at the target, and unhide the others."""
        ...

    def hidden(self, run_id: str) -> int:
        """Return how many the run holds hidden now; none after its end."""
        ...


class Target(Protocol):
    """Where timeouts are taken to."""

    @property
    def knows_what_it_has(self) -> bool:
        """Whether an id is taken once, and ``present`` can tell; no queue can."""
        ...

    def describe(self) -> str:
        """Return what it is, without secrets."""
        ...

    def now(self) -> Micros | None:
        """Return the time by which it delivers; None where it counts delays, as a queue does."""
        ...

    def problems(self, survey: Survey) -> Sequence[Problem]:
        """Return why it could not take what *survey* found; changes nothing."""
        ...

    def open(self, run_id: str) -> None:
        """Let the run deliver; twice is fine."""
        ...

    def deliver(self, run_id: str, batch: Batch, items: Sequence[Item]) -> Delivered:
        """Take *items* durably, all or none where it can, and count what it then has.

        Absolute due times count, whenever this happens. Raises MigrationFailed once the run is
        shut, or where one is refused.
        """
        ...

    def present(self, ids: Sequence[str]) -> set[str]:
        """Return those of *ids* that it has or ever had; only where ``knows_what_it_has``."""
        ...

    def shut(self, run_id: str) -> None:
        """Take nothing more of this run, from whatever process: what ``present`` says is final."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Ledger(Protocol):
    """The runs of one endpoint, and what became of each batch. Plain rows, for any runner."""

    def now(self) -> Micros:
        """Return the time of the store that keeps it."""
        ...

    def create(self, run_id: str, terms: Terms, ranges: Iterable[Range], runner: str) -> Run:
        """Write run and plan in one transaction; MigrationRefused while another run is open."""
        ...

    def take(self, run_id: str, runner: str) -> Run:
        """Make *runner* the one that works at the run.

        Raises MigrationRefused while the process that did so before lives.
        """
        ...

    def give_up(self, runner: str) -> None:
        """Say that *runner* works no more, so that another may go on."""
        ...

    def claim(self, run: Run, no: int, runner: str) -> Batch | None:
        """Put batch *no* into the hands of *runner*, and return it as it is now.

        One that is over is returned and not claimed; None while another that lives has it. Raises
        MigrationRefused once somebody else works at the run than *run* says.
        """
        ...

    def claim_next(self, run: Run, runner: str) -> Batch | None:
        """Claim the first batch that is not over and in nobody's hands; None where there is none.

        Raises as ``claim`` does.
        """
        ...

    def set_aside(self, run: Run, batch: Batch) -> None:
        """Hand a claimed *batch* to who works at the run: others leave what failed alone then."""
        ...

    def in_hand(self, run_id: str) -> Collection[int]:
        """Return the numbers of the batches that somebody has claimed, also if that one died."""
        ...

    def open_run(self) -> Run | None:
        """Return the run that is not over, if there is one."""
        ...

    def runs(self) -> Sequence[Run]:
        """Return all runs, the latest first."""
        ...

    def batches(self, run_id: str) -> Iterator[Batch]:
        """Yield the run's batches in order, read page by page."""
        ...

    def totals(self, run_id: str) -> Mapping[str, int]:
        """Return ``batches_<state>`` for each state there is, and the sums of the counts."""
        ...

    def move_run(
        self, run_id: str, state: RunState, *, report: Mapping[str, Any] | None = None
    ) -> None:
        """Set a run's state; MigrationFailed where that cannot follow."""
        ...

    def move_batch(self, run_id: str, batch: Batch, transaction: Transaction | None = None) -> None:
        """Write *batch* as it is now; one that is over is in nobody's hands any more.

        MigrationFailed where its state cannot follow, or where another has claimed it.
        """
        ...


class Planned(Protocol):
    """Who takes part in a run, as far as its beginning needs them."""

    @property
    def source(self) -> Origin:
        """Where from."""
        ...

    @property
    def target(self) -> Target:
        """Where to."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Where it is written down."""
        ...

    @property
    def runner(self) -> str:
        """The process that works."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of the host that it works on."""
        ...


@runtime_checkable
class MigrationPlaces(Protocol):
    """A persistence that timeouts can be moved out of and into, and that keeps a ledger."""

    def migration_source(self, endpoint: str, clock: Clock) -> Source:
        """Return what is pending of *endpoint*, as a source."""
        ...

    def migration_target(self, endpoint: str, clock: Clock) -> Target:
        """Return the store of *endpoint*, as a target."""
        ...

    def migration_ledger(self, endpoint: str, clock: Clock) -> Ledger:
        """Return the ledger of the runs of *endpoint*."""
        ...
