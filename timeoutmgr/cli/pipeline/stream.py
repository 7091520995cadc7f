"""``timeoutmgr pipeline stream``: history to Parquet as it happens."""

import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
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

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(cls=Command, within=WITHIN)
@option("--to", required=True, type=_FOLDER, help="Folder for the Parquet files.")
@option("--checkpoint", required=True, type=_FOLDER, help="Folder that remembers how far it is.")
@option("--every", type=Duration(), default="10s", show_default=True, help="How often to look.")
@option("--once", is_flag=True, help="End when all is written that is there now.")
@option(
    "--any-timeline",
    is_flag=True,
    help="Go on after a failover in which no transaction was lost (synchronous replication).",
)
@option("--abort", "aborts", is_flag=True, help="Give the stream up; needs no Spark.")
@of_store
@on_spark
@common(environment=False)
@click.pass_obj
def stream(
    shared: Shared,
    /,
    to: Path,
    checkpoint: Path,
    every: timedelta,
    once: bool,
    any_timeline: bool,
    aborts: bool,
    store: str | None,
    **options: Any,
) -> Exit:
    """Write history as it happens, until SIGTERM or SIGINT, each event once.

    Started again with the same checkpoint it goes on where it was. PostgreSQL only: elsewhere an
    event that is committed late would be missed. It creates an index on the history's transactions.

    Archive removes nothing from the store that a stream has not read yet. A stream that is not gone
    on with has to be given up by --abort; where there is no such stream the exit code is 3.

    Examples:
      timeoutmgr pipeline stream --to /lake/live --checkpoint /lake/live.checkpoint
      timeoutmgr pipeline stream --to /lake/live --checkpoint /lake/live.checkpoint --once
      timeoutmgr pipeline stream --to /lake/live --checkpoint /lake/live.checkpoint --abort
    """
    from timeoutmgr.pipeline.jobs.stream import StreamOptions, give_up
    from timeoutmgr.pipeline.jobs.stream import stream as run

    given = StreamOptions(
        store=store_name(shared, store),
        to=to,
        checkpoint=checkpoint,
        every=every,
        once=once,
        any_timeline=any_timeline,
    )
    if aborts:
        return Exit.OK if give_up(given) else Exit.NOT_FOUND
    stop = threading.Event()
    with spark(shared, options, [given.store]) as session:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: stop.set())
        report = run(session, given, stopped=stop.is_set, progress=progress(shared))
    document = report.document()
    shared.show(document, lambda: output.print_pairs([*document.items()]))
    return Exit.OK
