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
    """Write history into a table of a lake, verify it there, then remove old events.

    The table is Delta, Iceberg or plain Parquet. A killed run leaves nothing to repair: a commit is
    complete or does not count, and only events that were read back from the table are removed.
    Archive before history_retention removes events. With --with-pending the table `pending` beside
    it gets the pending messages, from which `restore` can fill a store.

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
