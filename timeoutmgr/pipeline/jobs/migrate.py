"""``migrate``: pending timeouts from a store to another, or into delay levels, by many tasks.

The second runner of the ledger in ``timeoutmgr.migration``: this process holds the run, plans it
and ends it, as the first runner does; in between, tasks of Spark move its batches. Each runner can
resume, or abort, a run that the other began.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import functions as f

from timeoutmgr.errors import MigrationFailed, StorageUnavailable
from timeoutmgr.migration import MigrationLedger, MigrationRun, Report, begin
from timeoutmgr.migration.report import report
from timeoutmgr.migration.run import refuse_any_problem
from timeoutmgr.pipeline.jobs.run_context import (
    Progress,
    error_called,
    error_of,
    silent,
    worker_errors,
)
from timeoutmgr.pipeline.migration_task import (
    OUTCOME,
    Ends,
    MovedBatches,
    Mover,
    Outcome,
    TaskMigration,
    opened,
)
from timeoutmgr.pipeline.options import check_declared, option, positive
from timeoutmgr.pipeline.spark.session import in_utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task: TypeAlias = Callable[[int], Outcome]

_PROGRESS_EVERY: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateOptions:
    """What to move: the timeouts of *endpoints* (none: of the settings' own) between *ends*.

    *tasks* is how many move batches side by side, as far as Spark has room for them.
    """

    ends: Ends
    endpoints: tuple[str, ...] = ()
    tasks: int = field(
        default=8,
        metadata=option(
            "--tasks", "How many move batches side by side, as far as Spark has room.", positive
        ),
    )

    def __post_init__(self) -> None:
        """Check every value."""
        check_declared(self)


def migrate(
    spark: "SparkSession", options: MigrateOptions, *, progress: Progress = silent
) -> tuple[Report, ...]:
    """Begin a run for each endpoint, or resume its open run, and move all batches.

    Can be interrupted anywhere, and called again on the same terms. Raises MigrationRefused for
    any problem of any endpoint before anything is moved, and the error that ended a task.
    """
    in_utc(spark)
    with opened(options.ends, options.endpoints) as found:
        progress("looking for problems")
        refuse_any_problem([(one.parts, one.terms) for one in found])
        return tuple(_migrate(spark, options, one, progress) for one in found)


def _migrate(
    spark: "SparkSession", options: MigrateOptions, one: TaskMigration, progress: Progress
) -> Report:
    run = begin(one.parts, one.terms, lambda: uuid.uuid4().hex[:12])
    so_far = report(one.parts.ledger, run, run.state)
    tasks = min(options.tasks, so_far.batches - so_far.batches_done)
    if tasks:
        progress(f"run {run.id}: {so_far.planned} timeouts in {so_far.batches} batches")
        with _progress_shown(one.parts.ledger, run, progress):
            refuse_errors(run, in_tasks(spark, Mover(options.ends, run), tasks))
    progress("verifying")
    # Also the batch that a worker of an earlier runner had claimed.
    return one.parts.migrate(run)


def in_tasks(spark: "SparkSession", task: Task, tasks: int) -> list[MovedBatches]:
    """Return the batches that each of *tasks* tasks moved."""
    # One row is one task. Spark may not think that it can leave a call out, or make it twice.
    work = f.udf(task, OUTCOME, useArrow=False).asNondeterministic()
    with worker_errors():
        rows = spark.range(0, tasks, 1, tasks).select(work("id").alias("outcome")).collect()
    return [MovedBatches(**row["outcome"].asDict()) for row in rows]


def refuse_errors(run: MigrationRun, found: Sequence[MovedBatches]) -> None:
    """Raise the first error that ended a task; the batches of the other tasks are done."""
    ended = [one for one in found if one.error is not None]
    if not ended:
        return
    kind = error_called(str(ended[0].error)) or MigrationFailed
    many = f"{len(ended)} of {len(found)} tasks of run {run.id} ended"
    raise error_of(kind, f"{many}: {ended[0].says}")


@contextmanager
def _progress_shown(
    ledger: MigrationLedger, run: MigrationRun, progress: Progress
) -> Iterator[None]:
    """Show the progress of the run, from the ledger, while tasks move its batches."""
    stop = threading.Event()
    thread = threading.Thread(
        target=_show_progress, args=(ledger, run, progress, stop), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _show_progress(
    ledger: MigrationLedger, run: MigrationRun, progress: Progress, stop: threading.Event
) -> None:
    while not stop.wait(_PROGRESS_EVERY):
        try:
            now = report(ledger, run, run.state)
        except StorageUnavailable as error:
            progress(f"the ledger does not answer: {error}")
        else:
            progress(f"{now.batches_done} of {now.batches} batches, {now.collected} timeouts")
