"""``timeoutmgr pipeline reconcile``: a verdict on every message."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command
from timeoutmgr.cli.pipeline import shared as jobs
from timeoutmgr.cli.shared import Shared
from timeoutmgr.pipeline.options import ReconcileOptions

if TYPE_CHECKING:
    from timeoutmgr.pipeline.jobs.reconcile import ReconcileReport

_WITHOUT_ACCEPTED = (
    'lost: not decidable for messages never stored; keep history = "full", or give --accepted'
)
_WITHOUT_AS_OF = "lost: not decidable for accepted messages without a due time; give --as-of"


@click.command(cls=Command, within=jobs.WITHIN)
@jobs.of_stores
@jobs.of_job(ReconcileOptions)
@jobs.on_spark
def reconcile(shared: Shared, /, store: Sequence[str], **options: Any) -> Exit:
    """Give a verdict on every message: ok, late, pending, lost, or another.

    Each store is read at one moment. A lost message is always detected if it was stored; otherwise
    only with history = "full" or --accepted. The exit code is 6 if any message is lost, or was sent
    and is still pending, and 7 if a loss could not have been detected.

    Examples:
      timeoutmgr pipeline reconcile --store sales.toml --archive /lake/history
      timeoutmgr --json pipeline reconcile --accepted sent.csv --endpoint sales --out verdicts/
      timeoutmgr pipeline reconcile --accepted sent.csv --as-of 2030-01-31T09:00Z
      timeoutmgr pipeline reconcile --accepted table:lake.sent --remote sc://spark:15002
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.reconcile import reconcile as run

    more: dict[str, Any] = {"stores": jobs.store_names(shared, store)}
    if options["accepted"] is not None and options["endpoint"] is None:
        more["accepted_for"] = shared.configuration().name
    given = jobs.job_options(ReconcileOptions, options, **more)
    with jobs.spark(shared, options, given.stores, [given.archive, given.accepted]) as session:
        report = run(session, given, clock=SystemClock(), progress=jobs.progress(shared))
    shared.show(report.document(), lambda: _print(report, has_list=given.accepted is not None))
    if report.is_broken:
        return Exit.FINDINGS
    return Exit.OK if report.is_decidable else Exit.UNDECIDABLE


def _print(report: "ReconcileReport", *, has_list: bool) -> None:
    output.print_pairs([("messages", report.messages), *report.document()["verdicts"].items()])
    if report.examples:
        click.echo()
        output.print_documents(["id", "verdict", "due", "dispatches"], report.examples)
    if not report.is_decidable:
        click.echo()
        click.echo(_WITHOUT_AS_OF if has_list else _WITHOUT_ACCEPTED)
