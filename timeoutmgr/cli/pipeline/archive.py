"""``timeoutmgr pipeline archive``: move history from a store into a lake's table."""

from typing import Any

import click

from timeoutmgr.cli.options import Command
from timeoutmgr.cli.pipeline.shared import WITHIN, of_job, of_store, progress, store_job
from timeoutmgr.cli.shared import Shared
from timeoutmgr.pipeline.options import ArchiveOptions


@click.command(cls=Command, within=WITHIN)
@of_job(ArchiveOptions)
@of_store
def archive(shared: Shared, /, store: str | None, **options: Any) -> None:
    """Write history into a table of a lake, prove what is there, then remove old events.

    The table is Delta, Iceberg or plain Parquet. A run that was killed leaves nothing to repair: a
    commit counts wholly or not at all, and only events are removed that were read in the table.
    Archive before the endpoints' own history_retention removes them. With --with-pending the table
    `pending` beside it gets the pending messages, from which `restore` can fill a store.

    Examples:
      timeoutmgr pipeline archive --to delta:s3://lake/history --older-than 7d
      timeoutmgr pipeline archive --to iceberg:main.timeouts.history --older-than 7d
      timeoutmgr --json pipeline archive --to /lake/history --older-than 7d --keep
      timeoutmgr pipeline archive --to /lake/history --older-than 7d --with-pending
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.archive import archive as run

    given = store_job(shared, ArchiveOptions, options, store)
    report = run(given, clock=SystemClock(), progress=progress(shared))
    shared.show(report.document())
