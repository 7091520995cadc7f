"""The group of the pipeline's commands."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, option, with_examples
from timeoutmgr.cli.pipeline.archive import archive
from timeoutmgr.cli.pipeline.compact import compact
from timeoutmgr.cli.pipeline.erase import erase
from timeoutmgr.cli.pipeline.forecast import forecast
from timeoutmgr.cli.pipeline.lateness import lateness
from timeoutmgr.cli.pipeline.reconcile import reconcile
from timeoutmgr.cli.pipeline.report import report
from timeoutmgr.cli.pipeline.restore import restore
from timeoutmgr.cli.pipeline.schedule import schedule
from timeoutmgr.cli.pipeline.shared import (
    FOLDER,
    WITHIN,
    of_store,
    on_spark,
    progress,
    session_options,
    spark,
    store_name,
)
from timeoutmgr.cli.pipeline.stream import stream
from timeoutmgr.cli.shared import Shared, show_findings
from timeoutmgr.errors import ConfigurationError

# --- Spark on this machine: a check, the time of a start, and a faster start ------------------


@click.command(cls=Command, within=WITHIN)
@of_store
@on_spark
def doctor(shared: Shared, /, store: str | None, **options: Any) -> Exit:
    """Show which Java, Spark and drivers are found, start Spark, and read through a worker.

    With --store (or a settings file) the worker reads from that store. Every line is ok, warn or
    fail; the exit code is 1 if any line is fail.

    Examples:
      timeoutmgr pipeline doctor
      timeoutmgr --json pipeline doctor --store sales.toml
    """
    from timeoutmgr.pipeline.doctor import examine

    has_store = store is not None or shared.config is not None
    name = store_name(shared, store) if has_store else None
    return show_findings(shared, list(examine(session_options(shared, options), name)), {})


@click.command(cls=Command, within=WITHIN)
@option("--java-home", type=FOLDER, help="The Java to run Spark with, 17 or later.")
def prepare(shared: Shared, /, java_home: Path | None) -> None:
    """Save Spark's classes in a file, with which Spark starts in half the time.

    Run it once on each machine on which Spark runs in the machine's own Java, or when you build an
    image; run it again after you install another Java or pyspark. The file has 190 MB and is in the
    folder timeoutmgr of XDG_CACHE_HOME, or of ~/.cache; without it, jobs work as before.

    Examples:
      timeoutmgr pipeline prepare
      timeoutmgr --json pipeline prepare --java-home /usr/lib/jvm/java-21
    """
    from timeoutmgr.pipeline.preparation import prepare as run

    shared.show(run(java_home, progress=progress(shared)).document())


@click.command(cls=Command, within=WITHIN)
@click.argument("jobs", nargs=-1, required=True)
@on_spark
def run(shared: Shared, /, jobs: Sequence[str], **options: Any) -> Exit:
    """Run several jobs one after the other, with one start of Spark.

    Each job is one argument: its name and its options, quoted. The options of all jobs are read
    before the first job begins. Give the options that say where Spark runs once. The exit code is
    the code of the first job that did not end with 0; a job that fails ends the run. With --json
    the documents of the jobs are one list, and each is printed when its job ends.

    Examples:
      timeoutmgr pipeline run "reconcile --store sales.toml" "lateness --quantile p99 --slo 10s"
    """
    context = click.get_current_context()
    if options["remote"] is not None:
        raise ConfigurationError(
            "jobs on a Spark Connect server share its session in any case; give --remote to each"
        )
    documents: list[Mapping[str, Any]] = []
    of_jobs = _Listed(**vars(shared), documents=documents) if shared.json else shared
    chosen = [_job_in(context, text, of_jobs) for text in jobs]
    try:
        with spark(shared, options):
            ended = [_result(job) for job in chosen]
    finally:
        if documents:
            click.echo("]")
            shared.json = False  # an error would be a second document; standard error has it
    return next((Exit(code) for code in ended if code), Exit.OK)


@dataclass(kw_only=True)
class _Listed(Shared):
    """Prints documents as parts of a list, each as soon as it is complete.

    A certificate must be printed before its run counts as completed.
    """

    documents: list[Mapping[str, Any]]

    def show(
        self, document: Mapping[str, Any], for_people: Callable[[], None] | None = None
    ) -> None:
        click.echo("," if self.documents else "[")
        self.documents.append(document)
        output.print_json(document)


def _job_in(context: click.Context, text: str, shared: Shared) -> click.Context:
    """Return the context of the job in *text*; raise errors before any job has begun."""
    try:
        name, *args = shlex.split(text) or [""]
    except ValueError as error:
        raise click.UsageError(f"job {text!r}: {error}") from error
    command = pipeline.get_command(context, name)
    if command is None or command is run:
        raise ConfigurationError(
            f"{text!r} names no job of the pipeline; expected one of "
            f"{', '.join(sorted({*pipeline.commands} - {'run'}))}, with its options, in quotes"
        )
    try:
        # Options such as --config belong to one job: keep them in a copy.
        return command.make_context(name, args, context.parent, obj=replace(shared))
    except click.ClickException as error:
        of_job = error.ctx if isinstance(error, click.UsageError) else None
        raise click.UsageError(f"job {text!r}: {error.format_message()}", of_job) from error


def _result(job: click.Context) -> Any:
    with job:
        return job.command.invoke(job)


_HELP = """
    Run jobs on many timeouts, on Spark: pip install 'timeoutmgr[spark]'.

    Spark runs on this machine unless --master or --remote name a cluster. A store is named by its
    settings file, or by a word NAME whose URL is in TIMEOUTMGR_STORE_NAME.

    Examples:
      timeoutmgr pipeline doctor
      timeoutmgr pipeline schedule reminders.parquet --dataset spring --type Reminder --dry-run
    """


_WITHOUT_SPARK: Final = (archive, stream, compact, restore, erase)


class PipelineGroup(click.Group):
    """The commands of the pipeline; most of them need an extra, forecast does not."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; raise PipelineUnavailable if a package of its extra is missing."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            from timeoutmgr.pipeline.errors import require_extra
            from timeoutmgr.pipeline.spark.session import require_spark

            name = ctx.invoked_subcommand or ""
            if self.commands[name] in _WITHOUT_SPARK:
                require_extra("lake", f"pipeline {name}", "pyarrow", "adbc_driver_manager")
            else:
                require_spark()
            raise error


pipeline: Final = PipelineGroup(
    "pipeline",
    commands=[
        *(schedule, forecast, reconcile, lateness, report, run, doctor, prepare),
        *_WITHOUT_SPARK,
    ],
    help=with_examples(_HELP),
)
