"""``timeoutmgr pipeline schedule``: a data set into the store."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import ColumnPair, Command, Duration, common, option
from timeoutmgr.cli.pipeline.shared import (
    WITHIN,
    of_store,
    on_spark,
    progress,
    spark,
    store_name,
)
from timeoutmgr.cli.shared import Shared


@click.command(cls=Command, within=WITHIN)
@click.argument("paths", nargs=-1, required=True)
@option("--dataset", required=True, help="What the rows are of; part of their message ids.")
@option("--format", "format_", default="parquet", show_default=True, help="parquet, csv or json.")
@option("--multi-line", is_flag=True, help="Values of CSV may hold line ends; one task a file.")
@option(
    "--map",
    "columns",
    type=ColumnPair(),
    multiple=True,
    metavar="NAME=COLUMN",
    help="A column that has another name in the files: due=send_at; many times.",
)
@option("--ignore-extra", is_flag=True, help="Leave columns out that schedule does not know.")
@option("--endpoint", help="Whose timeouts they are. Without it, the endpoint of the settings.")
@option("--type", "message_type", help="Message type of rows that have none of their own.")
@option("--past", default="reject", show_default=True, help="reject, dispatch or shift to now.")
@option("--rejects", type=click.Path(file_okay=False, path_type=Path), help="Folder for rejects.")
@option("--max-reject-ratio", type=float, default=0.0, show_default=True, help="More: nothing.")
@option("--max-per-second", type=int, help="Smear seconds in which more are due; see --jitter.")
@option("--jitter", type=Duration(), help="How much later smeared rows may be.")
@option("--on-conflict", default="ignore", show_default=True, help="ignore, verify or error.")
@option("--run-id", help="Name of the run. Without it, that of the same run before, or a new one.")
@option("--dry-run", is_flag=True, help="Only say what would be stored.")
@of_store
@on_spark
@common(environment=False)
@click.pass_obj
def schedule(
    shared: Shared,
    /,
    paths: Sequence[str],
    dataset: str,
    format_: str,
    multi_line: bool,
    columns: Sequence[tuple[str, str]],
    ignore_extra: bool,
    endpoint: str | None,
    message_type: str | None,
    past: str,
    rejects: Path | None,
    max_reject_ratio: float,
    max_per_second: int | None,
    jitter: timedelta | None,
    on_conflict: str,
    run_id: str | None,
    dry_run: bool,
    store: str | None,
    **options: Any,
) -> None:
    """Store the rows of files as timeouts, each once; run again, it stores what is missing.

    Run again, with the same files and options, it takes for now what the first run took.

    Columns: destination, body, due (with a zone, or a count since 1970) or delay (seconds); key,
    saga_id, message_type, content_type, body_encoding and headers if wanted. A row's message id is
    the data set and its key. Rows that cannot be scheduled go to --rejects with their reasons;
    where they are more than allowed nothing is stored, and the exit code is 2.

    Examples:
      timeoutmgr pipeline schedule spring.parquet --dataset spring --type Reminder --dry-run
      timeoutmgr pipeline schedule trial-ends.csv --format csv --dataset trials --rejects bad/
      timeoutmgr pipeline schedule crm.parquet --dataset crm --map due=send_at --ignore-extra
    """
    from timeoutmgr.pipeline.jobs.schedule import ScheduleOptions, require_known
    from timeoutmgr.pipeline.jobs.schedule import schedule as run

    settings = shared.configuration().settings()
    given = ScheduleOptions(
        store=store_name(shared, store),
        endpoint=endpoint or settings.name,
        dataset=dataset,
        paths=tuple(paths),
        format=format_,
        multi_line=multi_line,
        columns=dict(columns),
        ignore_extra=ignore_extra,
        message_type=message_type,
        past=past,
        limits=settings.limits,
        rejects=rejects,
        max_reject_ratio=max_reject_ratio,
        max_per_second=max_per_second,
        jitter=jitter,
        on_conflict=on_conflict,
        dry_run=dry_run,
        run_id=run_id,
    )
    if given.endpoint != settings.name:
        require_known(given.store, given.endpoint, settings.clock)
    with spark(shared, options, [given.store]) as session:
        report = run(
            session,
            given,
            clock=settings.clock,
            missing_queues=_missing(shared) if settings.check_destinations else None,
            progress=progress(shared),
        )
    if report.new and report.first_due is not None and given.endpoint == settings.name:
        _wake(shared, report.first_due)
    document = report.document()

    def for_people() -> None:
        lists = ("reasons", "busiest_minutes")
        output.print_pairs([(name, value) for name, value in document.items() if name not in lists])
        for reason, count in report.reasons.items():
            click.echo(f"rejected {count}: {reason}")
        if report.curve:
            click.echo()
            rows = [(output.shown_time(at), count) for at, count in report.curve]
            output.print_table(["busiest minutes", "messages"], rows)

    shared.show(document, for_people)


def _missing(shared: Shared) -> Any:
    from timeoutmgr.cli.shared import assembled

    def missing(destinations: Sequence[str]) -> Sequence[str]:
        with assembled(shared) as parts:
            session = parts.settings.transport.session()
            try:
                return list(session.missing_queues(list(destinations)))
            finally:
                session.close()

    return missing


def _wake(shared: Shared, due: int) -> None:
    """Tell the running endpoint; if nobody hears it, it looks within one interval."""
    from timeoutmgr.cli.shared import assembled
    from timeoutmgr.inside import wake_or_wait

    with assembled(shared) as parts:
        if parts.context.manager_address is not None:
            wake_or_wait(parts, due)
