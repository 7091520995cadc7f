"""``timeoutmgr retry``: messages of the error queue, back to where they failed."""

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common, option
from timeoutmgr.cli.shared import Shared, assembled, require_installed


@click.command(cls=Command)
@option("--all", "everything", is_flag=True, help="All that are there.")
@option("--id", "ids", multiple=True, help="The message of this id; many times.")
@option("--limit", type=click.IntRange(min=1), help="At most so many, the oldest first.")
@option("--dry-run", is_flag=True, help="Only say what would be done.")
@common(environment=False)
@click.pass_obj
def retry(
    shared: Shared, everything: bool, ids: tuple[str, ...], limit: int | None, dry_run: bool
) -> Exit:
    """Send messages of the error queue back to the queue where each failed.

    A message leaves the error queue only when its queue has taken it. A crash between the two
    repeats it under the same id; on the SQL queue both are one transaction. What is not chosen,
    or names no queue, or a queue outside limits.allowed_destinations, stays; a message of a
    satellite is retried by its own endpoint. The exit code is 0 if every chosen message was sent,
    3 if there was none, else 1.

    Examples:
      timeoutmgr retry --all --dry-run
      timeoutmgr retry --id 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11
      timeoutmgr retry --limit 100
    """
    from timeoutmgr.cli.retrying import Choice, error_queue_of, retry_from

    if everything and ids:
        raise click.UsageError("--all and --id exclude each other")
    if not (everything or ids or limit or dry_run):
        raise click.UsageError("say which: --all, --id or --limit; or look first with --dry-run")
    choice = Choice(ids=frozenset(ids), limit=limit, dry_run=dry_run)
    with assembled(shared) as parts:
        settings = parts.settings
        require_installed(settings.transport)
        results = retry_from(settings.transport, error_queue_of(settings), choice)
    chosen = [result for result in results if result.what != "left"]
    failed = [result for result in chosen if result.what not in ("retried", "would_retry")]
    document = {"error_queue": settings.error_queue, "messages": [r.document() for r in chosen]}

    def for_people() -> None:
        if chosen:
            output.print_table(
                ["message id", "queue", "result", "failed with"],
                [(r.message_id, r.queue, r.what, r.reason) for r in chosen],
            )
        sent = len(chosen) - len(failed)
        verb = "would be retried" if dry_run else "retried"
        click.echo(f"{sent} {verb}, {len(results) - sent} stay in {settings.error_queue}")

    shared.show(document, for_people)
    if not chosen:
        return Exit.NOT_FOUND
    return Exit.FAILED if failed else Exit.OK
