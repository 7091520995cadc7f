"""``timeoutmgr pipeline forecast``: what is due when."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, Duration, common, option
from timeoutmgr.cli.pipeline.shared import (
    WITHIN,
    of_stores,
    progress,
    store_names,
    write_page,
    write_table,
)
from timeoutmgr.cli.shared import Shared


@click.command(cls=Command, within=WITHIN)
@of_stores
@option("--bucket", type=Duration(), default="1m", show_default=True, help="Width: 1s, 1m, 1h.")
@option("--horizon", type=Duration(), default="7d", show_default=True, help="How far ahead.")
@option("--capacity", type=float, help="Messages a second that can be sent.")
@option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the load of every bucket and destination there, as CSV.",
)
@option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page there too.")
@common(environment=False)
@click.pass_obj
def forecast(
    shared: Shared,
    store: Sequence[str],
    bucket: timedelta,
    horizon: timedelta,
    capacity: float | None,
    out: Path | None,
    html: Path | None,
) -> None:
    """Say how much is due when, where it is most, and what rate that needs.

    The stores count, so it needs no Spark. With --capacity it says how late the worst backlog
    gets.

    Examples:
      timeoutmgr pipeline forecast --bucket 1s --horizon 2d --capacity 500
      timeoutmgr pipeline forecast --store east.toml --store west.toml --html load.html
      timeoutmgr pipeline forecast --bucket 1h --out load.csv
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.forecast import ForecastOptions
    from timeoutmgr.pipeline.jobs.forecast import forecast as run
    from timeoutmgr.pipeline.pages import forecast_page

    given = ForecastOptions(
        stores=store_names(shared, store), bucket=bucket, horizon=horizon, capacity=capacity
    )
    report = run(given, clock=SystemClock(), progress=progress(shared))
    if out is not None:
        write_table(out, report.lines())
    if html is not None:
        write_page(html, forecast_page(report))
    document = report.document()

    def for_people() -> None:
        shown = ("messages", "bytes", "overdue")
        output.print_pairs([(name, document[name]) for name in shown])
        if document["drain"] is not None:
            output.print_pairs([*document["drain"].items()])
        if report.peaks:
            click.echo()
            columns = ["begin", "messages", "needs_per_second", "most_for", "share"]
            rows = [[one[name] for name in columns] for one in document["peaks"]]
            output.print_table(columns, rows)

    shared.show(document, for_people)
