"""``timeoutmgr pipeline reconcile``: a verdict on every message."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, Duration, Instant, common, option
from timeoutmgr.cli.pipeline.shared import WITHIN, of_stores, on_spark, progress, spark, store_names
from timeoutmgr.cli.shared import Shared

_WITHOUT_ACCEPTED = (
    'lost: not decidable for what was never stored; keep history = "full", or give --accepted'
)
_WITHOUT_AS_OF = "lost: not decidable for accepted messages without a due time; give --as-of"
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(cls=Command, within=WITHIN)
@of_stores
@option("--archive", type=_FOLDER, help="What was archived of these stores counts too.")
@option(
    "--accepted",
    metavar="FILE|table:NAME",
    help="The message ids that senders know to be accepted; a table is of Spark's catalog.",
)
@option(
    "--as-of",
    type=Instant(),
    help="All of --accepted was accepted before this time. Without it, a message there that has no "
    "due time and that no store has seen is undecided.",
)
@option("--endpoint", help="Whose manager accepted them. Without it, that of the settings.")
@option("--grace", type=Duration(), default="5m", show_default=True, help="Time to end after due.")
@option("--late", type=Duration(), default="1m", show_default=True, help="Later than this is late.")
@option("--out", type=_FOLDER, help="Folder for all verdicts, as Parquet.")
@on_spark
@common(environment=False)
@click.pass_obj
def reconcile(
    shared: Shared,
    /,
    store: Sequence[str],
    archive: Path | None,
    accepted: str | None,
    as_of: datetime | None,
    endpoint: str | None,
    grace: timedelta,
    late: timedelta,
    out: Path | None,
    **options: Any,
) -> Exit:
    """Say of every message what became of it: ok, late, pending, lost, or something else.

    All is read at one moment of each store. What was stored is never missed; what vanished before
    that is seen with history = "full", or with --accepted. The exit code is 6 if anything is lost
    or was sent and still pends, and 7 if nothing is but a loss could not have been seen.

    Examples:
      timeoutmgr pipeline reconcile --store sales.toml --archive /lake/history
      timeoutmgr --json pipeline reconcile --accepted sent.csv --endpoint sales --out verdicts/
      timeoutmgr pipeline reconcile --accepted sent.csv --as-of 2030-01-31T09:00Z
      timeoutmgr pipeline reconcile --accepted table:lake.sent --remote sc://spark:15002
    """
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.reconcile import ReconcileOptions
    from timeoutmgr.pipeline.jobs.reconcile import reconcile as run

    if accepted is not None and endpoint is None:
        endpoint = shared.configuration().name
    given = ReconcileOptions(
        stores=store_names(shared, store),
        archive=archive,
        accepted=accepted,
        as_of=as_of,
        endpoint=endpoint,
        grace=grace,
        late=late,
        out=out,
    )
    with spark(shared, options, given.stores) as session:
        report = run(session, given, clock=SystemClock(), progress=progress(shared))
    document = report.document()

    def for_people() -> None:
        output.print_pairs([("messages", report.messages), *document["verdicts"].items()])
        if report.examples:
            click.echo()
            columns = ["id", "verdict", "due", "dispatches"]
            output.print_table(
                columns, [[one[name] for name in columns] for one in report.examples]
            )
        if not report.is_decidable:
            click.echo()
            click.echo(_WITHOUT_ACCEPTED if accepted is None else _WITHOUT_AS_OF)

    shared.show(document, for_people)
    if report.is_broken:
        return Exit.FINDINGS
    return Exit.OK if report.is_decidable else Exit.UNDECIDABLE
