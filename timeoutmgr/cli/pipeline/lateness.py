"""``timeoutmgr pipeline lateness``: how late messages were."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, Duration, common, option
from timeoutmgr.cli.pipeline.shared import (
    WITHIN,
    of_stores,
    on_spark,
    progress,
    spark,
    store_names,
    write_page,
)
from timeoutmgr.cli.shared import Shared

_SHOWN = 20


@click.command(cls=Command, within=WITHIN)
@of_stores
@option(
    "--archive",
    type=click.Path(file_okay=False, path_type=Path),
    help="What was archived of these stores counts too.",
)
@option("--by", default="endpoint,destination,day", show_default=True, help="Groups.")
@option("--quantile", default="p99", show_default=True, help="p50, p90, p99 or p999.")
@option("--slo", type=Duration(), default="1m", show_default=True, help="What it is to be at most.")
@option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page there too.")
@on_spark
@common(environment=False)
@click.pass_obj
def lateness(
    shared: Shared,
    /,
    store: Sequence[str],
    archive: Path | None,
    by: str,
    quantile: str,
    slo: timedelta,
    html: Path | None,
    **options: Any,
) -> Exit:
    """Say how late messages were dispatched, per endpoint, destination and day.

    Quantiles are exact. The exit code is 6 if a group breaks the promise that --quantile and --slo
    make.

    Examples:
      timeoutmgr pipeline lateness --quantile p99 --slo 10s --html lateness.html
      timeoutmgr --json pipeline lateness --archive /lake/history --by destination
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.lateness import LatenessOptions
    from timeoutmgr.pipeline.jobs.lateness import lateness as run
    from timeoutmgr.pipeline.pages import lateness_page

    given = LatenessOptions(
        stores=store_names(shared, store),
        archive=archive,
        by=tuple(name.strip() for name in by.split(",") if name.strip()),
        quantile=quantile,
        slo=slo,
    )
    with spark(shared, options, given.stores) as session:
        report = run(session, given, clock=SystemClock(), progress=progress(shared))
    if html is not None:
        write_page(html, lateness_page(report))
    document = report.document()

    def for_people() -> None:
        broken = f"{report.broken} of {report.of_groups} groups break it"
        output.print_pairs([("messages", report.messages), ("promise", document["slo"])])
        click.echo(broken if report.broken else "every group keeps it")
        if report.groups:
            click.echo()
            columns = [*given.by, "messages", "p50", "p90", "p99", "p999", "most"]
            rows = [[one[name] for name in columns] for one in document["groups"][:_SHOWN]]
            output.print_table(columns, rows)

    shared.show(document, for_people)
    return Exit.FINDINGS if report.broken else Exit.OK
