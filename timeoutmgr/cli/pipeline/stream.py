"""``timeoutmgr pipeline stream``: write history into a lake's table as it happens."""

import threading
from typing import Any

import click

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, option
from timeoutmgr.cli.pipeline.shared import WITHIN, of_job, of_store, progress, store_job
from timeoutmgr.cli.run import stop_signals
from timeoutmgr.cli.shared import Shared
from timeoutmgr.pipeline.options import StreamOptions


@click.command(cls=Command, within=WITHIN)
@of_job(StreamOptions)
@option("--abort", "aborts", is_flag=True, help="Give up the stream.")
@of_store
def stream(shared: Shared, /, aborts: bool, store: str | None, **options: Any) -> Exit:
    """Write history as it happens, until SIGTERM or SIGINT, each event once.

    A restart continues where the table ends. PostgreSQL only: on other databases, an event that is
    committed late would be missed. It creates an index on the history's transactions.

    `archive` leaves events in the store that a stream has not read yet. So give up a stream that
    you do not continue, with --abort; if there is no such stream, the exit code is 3.

    Examples:
      timeoutmgr pipeline stream --to delta:s3://lake/history
      timeoutmgr pipeline stream --to /lake/history --once
      timeoutmgr pipeline stream --to /lake/history --abort
    """
    from timeoutmgr.pipeline.jobs.stream import give_up
    from timeoutmgr.pipeline.jobs.stream import stream as run

    given = store_job(shared, StreamOptions, options, store)
    if aborts:
        ended = {"given_up": give_up(given)}
        shared.show(ended)
        return Exit.OK if ended["given_up"] else Exit.NOT_FOUND
    stop = threading.Event()
    with stop_signals(stop.set):
        report = run(given, stop=stop, progress=progress(shared))
    shared.show(report.document())
    return Exit.OK
