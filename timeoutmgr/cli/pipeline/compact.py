"""``timeoutmgr pipeline compact``: merge small files of a history table."""

from typing import Any

import click

from timeoutmgr.cli.options import Command
from timeoutmgr.cli.pipeline.shared import WITHIN, job_options, of_job, progress
from timeoutmgr.cli.shared import Shared
from timeoutmgr.pipeline.lake_options import CompactOptions


@click.command(cls=Command, within=WITHIN)
@of_job(CompactOptions)
def compact(shared: Shared, /, **options: Any) -> None:
    """Put the small files of a history table together, for readers to open fewer.

    Past days alone are touched. Writers and readers go on meanwhile: a compaction counts wholly or
    not at all, and readers of older versions keep their files for a week. It needs no Spark.

    Examples:
      timeoutmgr pipeline compact --lake delta:s3://lake/history
      timeoutmgr --json pipeline compact --lake /lake/history --dry-run
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.compact import compact as run

    given = job_options(CompactOptions, options)
    report = run(given, clock=SystemClock(), progress=progress(shared))
    shared.show(report.document())
