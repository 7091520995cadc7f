"""``timeoutmgr pipeline forecast``: due messages over time."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import FILE, Command, option
from timeoutmgr.cli.pipeline import shared as jobs
from timeoutmgr.cli.shared import Shared
from timeoutmgr.cli.written_files import require_writable, written_whole
from timeoutmgr.pipeline.options import ForecastOptions


@click.command(cls=Command, within=jobs.WITHIN)
@jobs.of_stores
@jobs.of_job(ForecastOptions)
@option("--out", type=FILE, help="Write the load of every bucket and destination there, as CSV.")
@option("--html", type=FILE, help="Write a page with charts into this file too.")
def forecast(
    shared: Shared, /, store: Sequence[str], out: Path | None, html: Path | None, **options: Any
) -> None:
    """Show how many messages are due over time, the peaks, and the needed rate.

    The stores count the load, so the command needs no Spark. With --capacity it shows how late the
    worst backlog gets.

    Examples:
      timeoutmgr pipeline forecast --bucket 1s --horizon 2d --capacity 500
      timeoutmgr pipeline forecast --store east.toml --store west.toml --html load.html
      timeoutmgr pipeline forecast --bucket 1h --out load.csv
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.forecast import forecast as run
    from timeoutmgr.pipeline.jobs.forecast import forecast_page

    require_writable("--out", out)
    require_writable("--html", html)
    given = jobs.job_options(ForecastOptions, options, stores=jobs.store_names(shared, store))
    report = run(given, clock=SystemClock(), progress=jobs.progress(shared))
    if out is not None:
        with written_whole(out) as file:
            csv.writer(file).writerows(report.lines())
    if html is not None:
        with written_whole(html) as file:
            file.write(forecast_page(report))
    document = report.document()
    shared.show(document, lambda: _print(document))


def _print(document: dict[str, Any]) -> None:
    shown = ("messages", "bytes", "overdue")
    output.print_pairs([(name, document[name]) for name in shown])
    if document["drain"] is not None:
        output.print_pairs([*document["drain"].items()])
    if document["peaks"]:
        click.echo()
        columns = ["begin", "messages", "needs_per_second", "most_for", "share"]
        output.print_documents(columns, document["peaks"])
