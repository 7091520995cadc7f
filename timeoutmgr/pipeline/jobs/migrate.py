"""``migrate``: pending timeouts from a store to another, or into delay levels, by many tasks.

The second runner of the ledger in ``timeoutmgr.migration``: this process holds the run, plans it
and ends it, as the first one does; in between tasks of Spark move its batches. A run that one of
them began the other can go on with, or abort.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import functions as f

from timeoutmgr.errors import ConfigurationError, MigrationFailed, StorageUnavailable
from timeoutmgr.migration import Ledger, Report, Run, begin
from timeoutmgr.migration import migrate as move_the_rest
from timeoutmgr.migration.report import report
from timeoutmgr.migration.starting import refuse_any_problem
from timeoutmgr.pipeline.jobs.running import Progress, error_called, silent, told, told_by_workers
from timeoutmgr.pipeline.moving import OUTCOME, Ends, Mover, Opened, Outcome, Pulled, opened
from timeoutmgr.pipeline.session import in_utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task: TypeAlias = Callable[[int], Outcome]

_TELL_EVERY: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateOptions:
    """What to move: the timeouts of *endpoints* (none: of the settings' own) between *ends*.

    *tasks* is how many move batches side by side, as far as Spark has room for them.
    """

    ends: Ends
    endpoints: tuple[str, ...] = ()
    tasks: int = 8

    def __post_init__(self) -> None:
        """Check every value."""
        if self.tasks < 1:
            raise ConfigurationError(f"tasks must be positive, got {self.tasks}")


def migrate(
    spark: "SparkSession", options: MigrateOptions, *, progress: Progress = silent
) -> tuple[Report, ...]:
    """Begin a run for each endpoint, or go on with the open one, and move all of it.

    Can be interrupted anywhere, and called again on the same terms. Raises MigrationRefused for
    any problem of any endpoint before anything is moved, and what ended a task as what it was.
    """
    in_utc(spark)
    with opened(options.ends, options.endpoints) as found:
        progress("looking for problems")
        refuse_any_problem([(one.parts, one.terms) for one in found])
        return tuple(_migrate(spark, options, one, progress) for one in found)


def _migrate(
    spark: "SparkSession", options: MigrateOptions, one: Opened, progress: Progress
) -> Report:
    run = begin(one.parts, one.terms, lambda: uuid.uuid4().hex[:12])
    so_far = report(one.parts.ledger, run, run.state)
    tasks = min(options.tasks, so_far.batches - so_far.batches_done)
    if tasks:
        progress(f"run {run.id}: {so_far.planned} timeouts in {so_far.batches} batches")
        with _telling(one.parts.ledger, run, progress):
            refuse_errors(run, in_tasks(spark, Mover(options.ends, run), tasks))
    progress("verifying")
    # Also what a worker of a runner before this one had in hand.
    return move_the_rest(one.parts, run)


def in_tasks(spark: "SparkSession", task: Task, tasks: int) -> list[Pulled]:
    """Return what each of *tasks* tasks moved."""
    # One row is one task. Spark may not think that it can leave a call out, or make it twice.
    work = f.udf(task, OUTCOME, useArrow=False).asNondeterministic()
    with told_by_workers():
        rows = spark.range(0, tasks, 1, tasks).select(work("id").alias("outcome")).collect()
    return [Pulled(**row["outcome"].asDict()) for row in rows]


def refuse_errors(run: Run, found: Sequence[Pulled]) -> None:
    """Raise what ended a task, of several the first; the others' batches are done all the same."""
    ended = [one for one in found if one.error is not None]
    if not ended:
        return
    kind = error_called(str(ended[0].error)) or MigrationFailed
    many = f"{len(ended)} of {len(found)} tasks of run {run.id} ended"
    raise told(kind, f"{many}: {ended[0].says}")


@contextmanager
def _telling(ledger: Ledger, run: Run, progress: Progress) -> Iterator[None]:
    """Tell how far the run is, from the ledger, while others move it."""
    stop = threading.Event()
    thread = threading.Thread(target=_tell, args=(ledger, run, progress, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _tell(ledger: Ledger, run: Run, progress: Progress, stop: threading.Event) -> None:
    while not stop.wait(_TELL_EVERY):
        try:
            now = report(ledger, run, run.state)
        except StorageUnavailable as error:
            progress(f"the ledger does not answer: {error}")
        else:
            progress(f"{now.batches_done} of {now.batches} batches, {now.taken} timeouts")
