"""Commands that change stored timeouts: cancel, cancel-saga, reschedule, send-now."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common, delay_and_at
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.message.routes import CLI

if TYPE_CHECKING:
    from timeoutmgr.contracts import ChangeResult


@click.command(cls=Command)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@common(environment=False)
@click.pass_obj
def cancel(shared: Shared, ids: tuple[str, ...]) -> Exit:
    """Cancel timeouts by id, and print a result for each.

    cancelled: the timeout will not be delivered. will_be_cancelled: no such timeout is stored; if
    its message arrives, it is dropped. too_late: the timeout was sent, or is being sent now.
    maybe_sent: it will not be sent again, but may have been sent. unknown: no such timeout is
    stored, and the store cannot remember the cancel. The exit code is 0 if every timeout is or
    will be cancelled, otherwise 3.

    Examples:
      timeoutmgr cancel 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55
    """
    from timeoutmgr.contracts import CancelResult

    with opened(shared, with_queues=False) as endpoint:
        results = {each: endpoint.timeouts.cancel(each, channel=CLI) for each in ids}
    document = {"results": {each: result.value for each, result in results.items()}}
    shared.show(document, lambda: output.print_pairs(list(document["results"].items())))
    done = {CancelResult.CANCELLED, CancelResult.WILL_BE_CANCELLED}
    return Exit.OK if done.issuperset(results.values()) else Exit.NOT_FOUND


@click.command("cancel-saga", cls=Command)
@click.argument("saga")
@common(environment=False)
@click.pass_obj
def cancel_saga(shared: Shared, saga: str) -> Exit:
    """Cancel all stored timeouts of SAGA that are not being sent right now.

    The exit code is 0 if there were any, else 3.

    Examples:
      timeoutmgr cancel-saga order-7
    """
    with opened(shared, with_queues=False) as endpoint:
        count = endpoint.timeouts.cancel_saga(saga, channel=CLI)
    shared.show({"saga": saga, "cancelled": count}, lambda: click.echo(f"{count} cancelled"))
    return Exit.OK if count else Exit.NOT_FOUND


@click.command(cls=Command)
@click.argument("timeout_id", metavar="ID")
@delay_and_at
@common(environment=False)
@click.pass_obj
def reschedule(
    shared: Shared, timeout_id: str, delay: timedelta | None, at: datetime | None
) -> Exit:
    """Move the timeout ID to another due time; its id and its message stay.

    The results are changed, too_late, maybe_sent (it is moved, but may have been sent before)
    and unknown. The exit code is 0 for changed, else 3.

    Examples:
      timeoutmgr reschedule 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55 --at 2030-02-01T09:00+01:00
    """
    if (delay is None) == (at is None):
        raise click.UsageError("give either --delay or --at")
    with opened(shared, with_queues=False) as endpoint:
        result = endpoint.timeouts.reschedule(timeout_id, deliver_at=at, delay=delay)
    return say(shared, timeout_id, result)


@click.command("send-now", cls=Command)
@click.argument("timeout_id", metavar="ID")
@common(environment=False)
@click.pass_obj
def send_now(shared: Shared, timeout_id: str) -> Exit:
    """Have the running endpoint dispatch the timeout ID at once.

    Results and exit codes are the same as for reschedule.

    Examples:
      timeoutmgr send-now 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55
    """
    with opened(shared, with_queues=False) as endpoint:
        result = endpoint.timeouts.send_now(timeout_id)
    return say(shared, timeout_id, result)


def say(shared: Shared, timeout_id: str, result: "ChangeResult") -> Exit:
    """Print *result*; return 0 if the timeout was changed and cannot have been sent."""
    from timeoutmgr.contracts import ChangeResult

    document = {"id": timeout_id, "result": result.value}
    shared.show(document, lambda: output.print_pairs([(timeout_id, result.value)]))
    return Exit.OK if result is ChangeResult.CHANGED else Exit.NOT_FOUND
