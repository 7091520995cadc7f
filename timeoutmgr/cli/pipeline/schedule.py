"""``timeoutmgr pipeline schedule``: store a data set as timeouts."""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command
from timeoutmgr.cli.pipeline import shared as jobs
from timeoutmgr.cli.shared import Shared
from timeoutmgr.pipeline.options import ScheduleOptions

if TYPE_CHECKING:
    from timeoutmgr.pipeline.jobs.schedule import ScheduleReport


@click.command(cls=Command, within=jobs.WITHIN)
@click.argument("paths", nargs=-1, required=True)
@jobs.of_job(ScheduleOptions)
@jobs.of_store
@jobs.on_spark
def schedule(shared: Shared, /, paths: Sequence[str], store: str | None, **options: Any) -> None:
    """Store the rows of files as timeouts, each once; a repeat stores the missing rows.

    A repeat with the same files and options uses the instant of the first run as its now.

    Columns: destination, body, due (with a zone, or a count since 1970) or delay (seconds); key,
    saga_id, message_type, content_type, body_encoding and headers are optional. The message id of a
    row is its data set and its key. Rows that cannot be scheduled go to --rejects with their
    reasons; if they are more than allowed, nothing is stored, and the exit code is 2.

    Examples:
      timeoutmgr pipeline schedule spring.parquet --dataset spring --type Reminder --dry-run
      timeoutmgr pipeline schedule trial-ends.csv --format csv --dataset trials --rejects bad/
      timeoutmgr pipeline schedule crm.parquet --dataset crm --map due=send_at --ignore-extra
    """
    from timeoutmgr.pipeline.jobs.schedule import require_known
    from timeoutmgr.pipeline.jobs.schedule import schedule as run

    settings = shared.configuration().settings()
    given = jobs.job_options(
        ScheduleOptions,
        options,
        store=jobs.store_name(shared, store),
        paths=tuple(paths),
        endpoint=options["endpoint"] or settings.name,
        limits=settings.limits,
    )
    if given.endpoint != settings.name:
        require_known(given.store, given.endpoint, settings.clock)
    with jobs.spark(shared, options, [given.store], given.paths) as session:
        report = run(
            session,
            given,
            clock=settings.clock,
            missing_queues=_missing(shared) if settings.check_destinations else None,
            progress=jobs.progress(shared),
        )
    if report.new and report.first_due is not None and given.endpoint == settings.name:
        _wake(shared, report.first_due)
    shared.show(report.document(), lambda: _print(report))


def _print(report: "ScheduleReport") -> None:
    lists = ("reasons", "busiest_minutes")
    document = report.document()
    output.print_pairs([(name, value) for name, value in document.items() if name not in lists])
    for reason, count in report.reasons.items():
        click.echo(f"rejected {count}: {reason}")
    if report.curve:
        click.echo()
        rows = [(output.shown_time(at), count) for at, count in report.curve]
        output.print_table(["busiest minutes", "messages"], rows)


def _missing(shared: Shared) -> Any:
    from timeoutmgr.cli.shared import assembled

    def missing(destinations: Sequence[str]) -> Sequence[str]:
        with assembled(shared) as parts, closing(parts.settings.transport.session()) as session:
            return list(session.missing_queues(list(destinations)))

    return missing


def _wake(shared: Shared, due: int) -> None:
    """Wake the running endpoint; if no process hears it, the endpoint polls within one interval."""
    from timeoutmgr.cli.shared import assembled
    from timeoutmgr.sender.in_transaction import wake_or_wait

    with assembled(shared) as parts:
        if parts.features.manager_address is not None:
            wake_or_wait(parts.outlet, due)
