"""``timeoutmgr pipeline archive``: old history to Parquet, then out of the store."""

from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, common
from timeoutmgr.cli.pipeline.shared import (
    WITHIN,
    job_options,
    of_job,
    of_store,
    on_spark,
    progress,
    spark,
    store_name,
)
from timeoutmgr.cli.shared import Shared
from timeoutmgr.pipeline.options import ArchiveOptions, folder_option


@click.command(cls=Command, within=WITHIN)
@of_job(ArchiveOptions)
@of_store
@on_spark
@common(environment=False)
@click.pass_obj
def archive(shared: Shared, /, store: str | None, **options: Any) -> None:
    """Write old history as Parquet by endpoint and day, prove it is there, then remove it.

    A run that was killed is put right by the next: its files count wholly or not at all, and
    only archived rows are removed. Archive before the endpoints' own history_retention removes it.

    Examples:
      timeoutmgr pipeline archive --to /lake/history --older-than 7d
      timeoutmgr --json pipeline archive --to /lake/history --older-than 7d --keep
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.archive import archive as run
    from timeoutmgr.pipeline.options import ArchiveOptions

    given = job_options(
        ArchiveOptions,
        options,
        store=store_name(shared, store),
        to=folder_option("--to", options["to"]).resolve(),
    )
    with spark(shared, options, [given.store]) as session:
        report = run(session, given, clock=SystemClock(), progress=progress(shared))
    document = report.document()
    shared.show(document, lambda: output.print_pairs([*document.items()]))
