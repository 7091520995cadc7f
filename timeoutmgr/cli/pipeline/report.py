"""``timeoutmgr pipeline report``: all stores on one page."""

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
from timeoutmgr.pipeline.options import ReportOptions

if TYPE_CHECKING:
    from timeoutmgr.pipeline.jobs.report import StoresReport


@click.command(cls=Command, within=jobs.WITHIN)
@jobs.of_stores
@jobs.of_job(ReportOptions)
@option("--html", type=FILE, help="Write a page with charts into this file too.")
@jobs.on_spark
def report(shared: Shared, /, store: Sequence[str], html: Path | None, **options: Any) -> Exit:
    """Report on all stores: load, lateness, verdicts, growth, and unusual days.

    The page has charts, runs no script and contacts no server; it needs the extra 'report'. The
    exit code is 6 if any message is lost, or was sent and is still pending.

    Examples:
      timeoutmgr pipeline report --store eu.toml --store us.toml --promise 1s --html report.html
      timeoutmgr --json pipeline report --archive delta:s3://lake/history --days 90
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.report import report as run
    from timeoutmgr.pipeline.jobs.report_page import report_page, require_charts

    if html is not None:
        require_charts()
    require_writable("--html", html)
    given = jobs.job_options(ReportOptions, options, stores=jobs.store_names(shared, store))
    with jobs.spark(shared, options, given.stores, [given.archive]) as session:
        found = run(session, given, clock=SystemClock(), progress=jobs.progress(shared))
    if html is not None:
        with written_whole(html) as file:
            file.write(report_page(found))
    shared.show(found.document(), lambda: _print(found))
    return Exit.FINDINGS if found.verdicts.is_broken else Exit.OK


def _print(found: "StoresReport") -> None:
    growth, kept = found.growth(), found.kept("store")
    rows = []
    for store, load in found.loads.items():
        share = kept.get((store,))
        shown = "-" if share is None else f"{share.share:.3%}"
        rows.append((store, load.messages, load.overdue, shown, round(growth[store][0], 1)))
    output.print_table(["store", "due", "overdue", "promise kept", "rows a day"], rows)
    counts = sorted(found.verdicts.counts.items(), key=lambda one: -one[1])
    output.print_pairs([(str(verdict), many) for verdict, many in counts])
    output.print_pairs([("unusual days", len(found.anomalies()))])
    for note in found.notes().values():
        output.print_error(note)
