"""``migrate``: pending timeouts from a store to another, or into delay levels, by many tasks.

The second runner of the ledger in ``timeoutmgr.migration``: this process holds the run, plans it
and ends it, as the first runner does; in between, tasks of Spark move its batches. Each runner can
resume, or abort, a run that the other began.
"""

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import functions as f

from timeoutmgr.errors import (
    ConfigurationError,
    MigrationFailed,
    StorageUnavailable,
    TimeoutManagerError,
)
from timeoutmgr.migration import (
    Batch,
    MigrationLedger,
    MigrationRun,
    Participants,
    Report,
    Terms,
    Window,
    begin,
)
from timeoutmgr.migration.audit import MigrationAudit
from timeoutmgr.migration.batch_step import claim_next_batch, move
from timeoutmgr.migration.places import NATIVE, LocationSpec, MigrationContext, MigrationRequest
from timeoutmgr.migration.run import refuse_any_problem, report
from timeoutmgr.pipeline.jobs.run_context import (
    Progress,
    error_called,
    error_of,
    silent,
    worker_errors,
)
from timeoutmgr.pipeline.options import check_declared, option, positive
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.stores import url_of
from timeoutmgr.settings.file import configuration_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# --- A task of ``migrate``: batch after batch, by the steps of ``timeoutmgr.migration`` -------

OUTCOME: Final = "batches BIGINT, timeouts BIGINT, error STRING, says STRING"
"""The answer of a task, as Spark spells its type."""
Outcome: TypeAlias = tuple[int, int, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """From where to where, by names that the workers can open as well.

    *settings* is the endpoint's settings file, or empty for the environment's settings. The ``url``
    of a place is None (the endpoint's own store), ``native``, a settings file, or a word NAME whose
    URL is in TIMEOUTMGR_STORE_NAME.
    """

    settings: str
    source: LocationSpec = field(default_factory=LocationSpec)
    target: LocationSpec = field(default_factory=LocationSpec)
    window: Window = field(default_factory=Window)
    batch: int = 5_000


@dataclass(frozen=True, slots=True)
class TaskMigration:
    """One endpoint's migration, ready."""

    parts: Participants
    terms: Terms
    audit: MigrationAudit


@contextmanager
def opened(
    ends: Ends, endpoints: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Iterator[list[TaskMigration]]:
    """Lend the migration of each of *endpoints*; without any, that of the settings' endpoint."""
    source, target = _resolved(ends.source, environ), _resolved(ends.target, environ)
    if source.is_levels:
        raise ConfigurationError(
            "delay levels are drained by one process, in their order: "
            "`timeoutmgr migrate run --from native`"
        )
    path = Path(ends.settings) if ends.settings else None
    settings = configuration_from(path, environ).settings()
    asked = MigrationRequest(source=source, target=target, window=ends.window, batch=ends.batch)
    with ExitStack() as stack:
        stack.callback(settings.transport.close)
        if settings.persistence is not None:
            stack.callback(settings.persistence.close)
        found = []
        for endpoint in endpoints or (settings.name,):
            site = MigrationContext(settings, asked, endpoint)
            stack.callback(site.close)
            parts = site.parts()
            assert isinstance(parts, Participants), "what drains levels was refused"
            stack.callback(parts.close)
            found.append(TaskMigration(parts, site.terms(parts), site.audit))
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBatches:
    """The work of a task, and the name of the *error* that ended it, with its text *says*."""

    batches: int
    timeouts: int
    error: str | None = None
    says: str | None = None


@dataclass(frozen=True, slots=True)
class Mover:
    """The function of a task: it moves batches of *run* until none is left to be claimed.

    Which task moves which batch is settled in the ledger, not by Spark. So a task that is tried
    again, or runs twice at once, is one more that asks for the next.
    """

    ends: Ends
    run: MigrationRun

    def __call__(self, _task: int) -> Outcome:
        """Return the fields of OUTCOME."""
        found = self.pull()
        return found.batches, found.timeouts, found.error, found.says

    def pull(self) -> MovedBatches:
        """Open connections of the task's own, and move all batches that can be claimed."""
        try:
            with opened(self.ends, (self.run.terms.endpoint,)) as [one]:
                return pull(one.parts, self.run)
        except TimeoutManagerError as error:
            return _ended_by(error, MovedBatches(batches=0, timeouts=0))


def pull(parts: Participants, run: MigrationRun) -> MovedBatches:
    """Move the first batch that is not claimed, again and again, until none is left.

    Our errors are returned, not raised: Spark would repeat the task, and send the messages of its
    batch again.
    """
    so_far = MovedBatches(batches=0, timeouts=0)
    try:
        while (done := move_next(parts, run)) is not None:
            so_far = MovedBatches(
                batches=so_far.batches + 1, timeouts=so_far.timeouts + done.collected
            )
    except TimeoutManagerError as error:
        return _ended_by(error, so_far)
    return so_far


def move_next(parts: Participants, run: MigrationRun) -> Batch | None:
    """Move the first batch that is not claimed; return None if none is left."""
    batch = claim_next_batch(parts, run)
    if batch is None:
        return None
    try:
        return move(parts, run, batch)
    except TimeoutManagerError:
        # Or every other task would try it too. Where the ledger is away they cannot either.
        with suppress(StorageUnavailable):
            parts.ledger.set_aside(run, batch)
        raise


def _ended_by(error: TimeoutManagerError, so_far: MovedBatches) -> MovedBatches:
    return replace(so_far, error=type(error).__name__, says=str(error))


def _resolved(place: LocationSpec, environ: Mapping[str, str]) -> LocationSpec:
    """Return *place* with the URL that its name stands for, here."""
    name = place.url
    if name is None or name == NATIVE or name.endswith(".toml"):
        return place
    return replace(place, url=url_of(name, environ))


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


@in_utc
def migrate(
    spark: "SparkSession", options: MigrateOptions, *, progress: Progress = silent
) -> tuple[Report, ...]:
    """Begin a run for each endpoint, or resume its open run, and move all batches.

    Can be interrupted anywhere, and called again on the same terms. Raises MigrationRefused for
    any problem of any endpoint before anything is moved, and the error that ended a task.
    """
    with opened(options.ends, options.endpoints) as found, ExitStack() as stack:
        works = [stack.enter_context(one.audit.kept("migrate", one.terms)) for one in found]
        progress("looking for problems")
        refuse_any_problem([(one.parts, one.terms) for one in found])
        reports = tuple(_migrate(spark, options, one, progress) for one in found)
        for work, done in zip(works, reports, strict=True):
            work.changed = done.new
        return reports


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
