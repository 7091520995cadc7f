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
    """Merge the small files of a history table, so that readers open fewer files.

    Only past days change. Writers and readers continue meanwhile: a compaction is complete or does
    not count, and readers of older versions keep their files for a week. It needs no Spark.

    Examples:
      timeoutmgr pipeline compact --lake delta:s3://lake/history
      timeoutmgr --json pipeline compact --lake /lake/history --dry-run
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.compact import compact as run

    given = job_options(CompactOptions, options)
    report = run(given, clock=SystemClock(), progress=progress(shared))
    shared.show(report.document())
