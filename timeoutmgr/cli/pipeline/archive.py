"""``timeoutmgr pipeline archive``: old history to Parquet, then out of the store."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, Duration, common, option
from timeoutmgr.cli.pipeline.shared import (
    WITHIN,
    of_store,
    on_spark,
    progress,
    spark,
    store_name,
)
from timeoutmgr.cli.shared import Shared


@click.command(cls=Command, within=WITHIN)
@option("--to", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder.")
@option("--older-than", required=True, type=Duration(), help="Archive what is older: 30d.")
@option("--keep", is_flag=True, help="Leave it in the store, until a run without this.")
@option("--batch", type=int, default=5_000, show_default=True, help="Rows removed at once.")
@option("--run-id", help="Name of the run. Without it, a new one.")
@of_store
@on_spark
@common(environment=False)
@click.pass_obj
def archive(
    shared: Shared,
    /,
    to: Path,
    older_than: timedelta,
    keep: bool,
    batch: int,
    run_id: str | None,
    store: str | None,
    **options: Any,
) -> None:
    """Write old history as Parquet by endpoint and day, prove it is there, then remove it.

    A run that was killed is put right by the next: what it wrote counts wholly or not at all, and
    only what counts is removed. Archive before the endpoints' own history_retention removes it.

    Examples:
      timeoutmgr pipeline archive --to /lake/history --older-than 7d
      timeoutmgr --json pipeline archive --to /lake/history --older-than 7d --keep
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.folders import folder_option
    from timeoutmgr.pipeline.jobs.archive import ArchiveOptions
    from timeoutmgr.pipeline.jobs.archive import archive as run

    given = ArchiveOptions(
        store=store_name(shared, store),
        to=folder_option("--to", to).resolve(),
        older_than=older_than,
        purge=not keep,
        batch=batch,
        run_id=run_id,
    )
    with spark(shared, options, [given.store]) as session:
        report = run(session, given, clock=SystemClock(), progress=progress(shared))
    document = report.document()
    shared.show(document, lambda: output.print_pairs([*document.items()]))
