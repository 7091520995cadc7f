"""The loops around the steps: move all batches of a run, or put them back in an abort."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration.batch_step import (
    claim_batch,
    finish_sending,
    known_as_hidden,
    move,
    put_back,
)
from timeoutmgr.migration.ports import (
    AdoptsSchedules,
    HasSchedules,
    MigrationLedger,
    Source,
    Target,
)
from timeoutmgr.migration.run import Report, report
from timeoutmgr.migration.runs import Batch, BatchState, MigrationRun, MigrationRunState

OnBatch = Callable[[Batch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """Source, target and ledger of one endpoint, and the loops of a run between them.

    *runner* names the process that works; *pause* waits for a number of seconds; *clock* is the
    clock of this host. *is_one_store* says that source and target are the same tables, as far as
    URLs show it.
    """

    source: Source
    target: Target
    ledger: MigrationLedger
    runner: str
    pause: Callable[[float], object] = time.sleep
    clock: Clock = field(default_factory=SystemClock)
    is_one_store: bool = False

    def close(self) -> None:
        """Release the run, then close source and target."""
        with closing(self.target), closing(self.source):
            self.ledger.release(self.runner)

    def migrate(self, run: MigrationRun, on_batch: OnBatch = lambda _batch: None) -> Report:
        """Move every batch that is not done; verify, and save the report.

        The loop can be interrupted at any point, and started again with the same run.
        """
        # After all changes of schedules, but before a recurring timeout arrives at the target.
        self._copy_schedules()
        for batch in self.ledger.batches(run.id):
            if batch.state is not BatchState.DONE:
                on_batch(move(self, run, claim_batch(self, run, batch)))
        made = report(self.ledger, run, MigrationRunState.COMPLETED)
        left = self.source.hidden(run.id)
        if left or not made.verified:
            raise MigrationFailed(
                f"run {run.id}: {left} timeouts are still hidden, and of {made.collected} taken "
                f"{made.new} arrived and {made.known} were known; run again, or abort"
            )
        self._copy_schedules()
        self.target.shut(run.id)
        reach("migration.shut")
        self.ledger.move_run(run.id, MigrationRunState.COMPLETED, report=made.document())
        reach("migration.completed")
        return made

    def abort(self, run: MigrationRun, on_batch: OnBatch = lambda _batch: None) -> Report:
        """Put back the open batches; timeouts at the target stay there.

        The loop can be interrupted at any point, and started again.
        """
        self.ledger.move_run(run.id, MigrationRunState.ABORTING)
        reach("migration.aborting")
        if not self.target.knows_what_it_has:
            for batch in self._claimed_batches(run):
                if batch.state is BatchState.SENDING:
                    on_batch(finish_sending(self, run, batch))
        self.target.shut(run.id)
        reach("migration.shut_for_good")
        for batch in self._claimed_batches(run):
            found = known_as_hidden(self, run, batch)
            if found.state.is_open:
                on_batch(put_back(self, run, found))
        left = self.source.hidden(run.id)
        if left:
            raise MigrationFailed(f"run {run.id}: {left} timeouts are still hidden; abort again")
        made = report(self.ledger, run, MigrationRunState.ABORTED)
        self.ledger.move_run(run.id, MigrationRunState.ABORTED, report=made.document())
        reach("migration.aborted")
        return made

    def _copy_schedules(self) -> None:
        source, target = self.source, self.target
        if isinstance(source, HasSchedules) and isinstance(target, AdoptsSchedules):
            target.adopt(source.schedules())

    def _claimed_batches(self, run: MigrationRun) -> Iterator[Batch]:
        """Yield the run's batches; wait until owners release claimed batches that are open.

        A worker of another runner can claim no further batch.
        """
        held = self.ledger.claimed(run.id)
        for batch in self.ledger.batches(run.id):
            yield (
                claim_batch(self, run, batch) if batch.state.is_open or batch.no in held else batch
            )
