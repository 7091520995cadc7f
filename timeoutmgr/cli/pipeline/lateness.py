"""``timeoutmgr pipeline lateness``: how late messages were."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import FILE, Command, option
from timeoutmgr.cli.pipeline import shared as jobs
from timeoutmgr.cli.shared import Shared
from timeoutmgr.cli.written_files import require_writable, written_whole
from timeoutmgr.pipeline.options import LatenessOptions

if TYPE_CHECKING:
    from timeoutmgr.pipeline.jobs.lateness import LatenessReport

_SHOWN = 20


@click.command(cls=Command, within=jobs.WITHIN)
@jobs.of_stores
@jobs.of_job(LatenessOptions)
@option("--html", type=FILE, help="Write a page with charts into this file too.")
@jobs.on_spark
def lateness(shared: Shared, /, store: Sequence[str], html: Path | None, **options: Any) -> Exit:
    """Show how late messages were dispatched, by endpoint, destination and day.

    Quantiles are exact. The exit code is 6 if a group breaks the promise that --quantile and --slo
    make.

    Examples:
      timeoutmgr pipeline lateness --quantile p99 --slo 10s --html lateness.html
      timeoutmgr --json pipeline lateness --archive /lake/history --by destination
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.lateness import lateness as run
    from timeoutmgr.pipeline.jobs.lateness import lateness_page

    require_writable("--html", html)
    given = jobs.job_options(LatenessOptions, options, stores=jobs.store_names(shared, store))
    with jobs.spark(shared, options, given.stores, [given.archive]) as session:
        report = run(session, given, clock=SystemClock(), progress=jobs.progress(shared))
    if html is not None:
        with written_whole(html) as file:
            file.write(lateness_page(report))
    shared.show(report.document(), lambda: _print(report))
    return Exit.FINDINGS if report.broken else Exit.OK


def _print(report: "LatenessReport") -> None:
    document = report.document()
    broken = f"{report.broken} of {report.of_groups} groups break the promise"
    output.print_pairs([("messages", report.messages), ("promise", document["slo"])])
    click.echo(broken if report.broken else "every group keeps the promise")
    if report.groups:
        click.echo()
        columns = [*report.options.by, "messages", "p50", "p90", "p99", "p999", "most"]
        output.print_documents(columns, document["groups"][:_SHOWN])
