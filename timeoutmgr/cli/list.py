"""``timeoutmgr list``: the pending timeouts."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, Instant, common, option
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.routing import TIMEOUTS
from timeoutmgr.waiting import waiting_text

if TYPE_CHECKING:
    from timeoutmgr.timeouts import TimeoutView


class _Which(TypedDict):
    saga_id: str | None
    destination: str | None
    due_from: datetime | None
    due_before: datetime | None


@click.command("list", cls=Command)
@option("--saga", help="Only those of this saga.")
@option("--destination", help="Only those for this queue.")
@option("--from", "due_from", type=Instant(), help="Due at this time or later.")
@option("--to", "due_before", type=Instant(), help="Due before this time.")
@option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most.")
@common(environment=False)
@click.pass_obj
def list_timeouts(
    shared: Shared,
    saga: str | None,
    destination: str | None,
    due_from: datetime | None,
    due_before: datetime | None,
    limit: int,
) -> None:
    """List pending timeouts by due time.

    Examples:
      timeoutmgr list --saga order-7
      timeoutmgr --json list --destination billing --from 2030-01-01T00:00Z --limit 1000
    """
    which: _Which = {
        "saga_id": saga,
        "destination": destination,
        "due_from": due_from,
        "due_before": due_before,
    }
    with opened(shared, with_queues=False) as endpoint:
        found = [*endpoint.timeouts.list(**which, limit=limit)]
        total = endpoint.timeouts.count(**which)
        waiting, queue = endpoint.timeouts.waiting(), endpoint.name + TIMEOUTS

    def for_people() -> None:
        if found:
            output.print_table(
                ["id", "due", "destination", "type", "saga", "attempts", "bytes"],
                [
                    (
                        each.id,
                        output.shown_time(each.due),
                        each.destination,
                        each.message_type,
                        each.saga_id,
                        each.attempts,
                        each.size,
                    )
                    for each in found
                ],
            )
        shown = "" if len(found) == total else f", {len(found)} shown (--limit)"
        click.echo(f"{total} pending{shown}")
        click.echo(output.plain(waiting_text(waiting, queue)))

    document = {
        "total": total,
        "waiting": waiting,
        "timeouts": [_document(each) for each in found],
    }
    shared.show(document, for_people)


def _document(view: "TimeoutView") -> dict[str, Any]:
    return {
        "id": view.id,
        "due": output.shown_time(view.due),
        "destination": view.destination,
        "type": view.message_type,
        "saga": view.saga_id,
        "message_id": view.message_id,
        "attempts": view.attempts,
        "bytes": view.size,
    }
