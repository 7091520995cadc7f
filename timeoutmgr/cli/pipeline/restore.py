"""``timeoutmgr pipeline restore``: restore a store from a lake."""

from typing import Any

import click

from timeoutmgr.cli.options import Command
from timeoutmgr.cli.pipeline.shared import WITHIN, of_job, of_store, progress, store_job
from timeoutmgr.cli.shared import Shared
from timeoutmgr.pipeline.lake_options import RestoreOptions


@click.command(cls=Command, within=WITHIN)
@of_job(RestoreOptions)
@of_store
def restore(shared: Shared, /, store: str | None, **options: Any) -> None:
    """Write archived history, used ids and pending messages into a store.

    The store may be empty or partly filled: only missing rows are written, so after an interruption
    run the command again. A message that was sent or cancelled after the snapshot is not stored
    again. Install the store first, and stop the endpoints of the archived store. It needs no Spark.

    Examples:
      timeoutmgr pipeline restore --lake delta:s3://lake/history --store new.toml --dry-run
      timeoutmgr pipeline restore --lake /lake/history --no-history
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.restore import restore as run

    given = store_job(shared, RestoreOptions, options, store)
    report = run(given, clock=SystemClock(), progress=progress(shared))
    shared.show(report.document())
