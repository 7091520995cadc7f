"""The group of the pipeline's commands."""

from typing import Any

import click

from timeoutmgr.cli.options import with_examples
from timeoutmgr.cli.pipeline.archive import archive
from timeoutmgr.cli.pipeline.doctor import doctor
from timeoutmgr.cli.pipeline.forecast import forecast
from timeoutmgr.cli.pipeline.lateness import lateness
from timeoutmgr.cli.pipeline.migrate import migrate
from timeoutmgr.cli.pipeline.reconcile import reconcile
from timeoutmgr.cli.pipeline.schedule import schedule
from timeoutmgr.cli.pipeline.stream import stream

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
