"""The group of the pipeline's commands."""

from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common, with_examples
from timeoutmgr.cli.pipeline.archive import archive
from timeoutmgr.cli.pipeline.forecast import forecast
from timeoutmgr.cli.pipeline.lateness import lateness
from timeoutmgr.cli.pipeline.migrate import migrate
from timeoutmgr.cli.pipeline.reconcile import reconcile
from timeoutmgr.cli.pipeline.schedule import schedule
from timeoutmgr.cli.pipeline.shared import WITHIN, of_store, on_spark, session_options, store_name
from timeoutmgr.cli.pipeline.stream import stream
from timeoutmgr.cli.shared import Shared
from timeoutmgr.message.redaction import masked

# --- ``timeoutmgr pipeline doctor``: can Spark run here, and how fast does it start -----------


@click.command(cls=Command, within=WITHIN)
@of_store
@on_spark
@common(environment=False)
@click.pass_obj
def doctor(shared: Shared, /, store: str | None, **options: Any) -> Exit:
    """Say which Java, Spark and drivers there are, start Spark, and read through a worker.

    With --store (or a settings file) the worker reads from that store. Every line is ok, warn or
    fail; the exit code is 1 if any is fail.

    Examples:
      timeoutmgr pipeline doctor
      timeoutmgr --json pipeline doctor --store sales.toml
    """
    from timeoutmgr.contracts.reports import Level
    from timeoutmgr.pipeline.doctor import examine

    has_store = store is not None or shared.config is not None
    name = store_name(shared, store) if has_store else None
    findings = list(examine(session_options(shared, options), name))
    failed = any(finding.level is Level.FAIL for finding in findings)
    document = {"healthy": not failed, "findings": [one.document() for one in findings]}

    def for_people() -> None:
        for one in findings:
            remedy = f" -> {one.remedy}" if one.remedy else ""
            text = f"{one.level.value:<4}  {one.check}: {one.text}{remedy}"
            click.echo(output.plain(masked(text)))

    shared.show(document, for_people)
    return Exit.FAILED if failed else Exit.OK


_HELP = """
    Jobs on many timeouts, on Spark: pip install 'timeoutmgr[spark]'.

    Spark runs on this machine unless --master or --remote name a cluster. A store is named by its
    settings file, or by a word NAME whose URL is in TIMEOUTMGR_STORE_NAME.

    Examples:
      timeoutmgr pipeline doctor
      timeoutmgr pipeline schedule reminders.parquet --dataset spring --type Reminder --dry-run
    """


class PipelineGroup(click.Group):
    """Commands of which most need the extra; forecast does without."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; raise PipelineUnavailable where a package of the extra is missing."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            from timeoutmgr.pipeline.spark.session import require_spark

            require_spark()
            raise error


@click.group("pipeline", cls=PipelineGroup, help=with_examples(_HELP))
def pipeline() -> None:
    """Hold the commands."""


for command in (schedule, forecast, reconcile, lateness, archive, migrate, stream, doctor):
    pipeline.add_command(command)
