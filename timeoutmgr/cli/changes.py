"""Commands that change stored timeouts: cancel, cancel-saga, reschedule, reroute, send-now."""

from collections import Counter
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.list import TimeoutSelection, label_option, selects_timeouts
from timeoutmgr.cli.options import Command, delay_and_at, option
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.message.routes import CLI

if TYPE_CHECKING:
    from timeoutmgr.contracts import ChangeResult
    from timeoutmgr.message.labels import Labels


@click.command(cls=Command)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@label_option(help="Label of the timeouts; only one label.")
def cancel(shared: Shared, ids: tuple[str, ...], labels: "Labels") -> Exit:
    """Cancel timeouts by id or by one label, and print a result for each.

    An ID is the id of a timeout or of its message. cancelled: the timeout will not be delivered.
    will_be_cancelled: no such timeout is stored; if its message arrives, it is dropped. too_late:
    the timeout was sent, or is being sent now. maybe_sent: it will not be sent again, but may have
    been sent. unknown: no such timeout is stored, and the store cannot remember the cancel. The
    exit code is 0 if timeouts were found and every timeout is or will be cancelled, otherwise 3. A
    cancel by label also drops messages with the label that are already sent but not stored yet.

    Examples:
      timeoutmgr cancel 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55
      timeoutmgr cancel --label tenant=acme
    """
    from timeoutmgr.contracts import CancelResult

    if bool(ids) == bool(labels):
        raise click.UsageError("give either ids or --label")
    with opened(shared, with_queues=False) as endpoint:
        timeouts = endpoint.timeouts
        results = {each: timeouts.cancel(each, channel=CLI) for each in ids}
        if labels:
            found = timeouts.cancel_where(labels=labels, channel=CLI)
            results = {one.timeout.id: one.result for one in found}
    document = {"results": {each: result.value for each, result in results.items()}}
    pairs = list(document["results"].items()) or [("0", CancelResult.CANCELLED.value)]
    shared.show(document, lambda: output.print_pairs(pairs))
    done = {CancelResult.CANCELLED, CancelResult.WILL_BE_CANCELLED}
    return Exit.OK if results and done.issuperset(results.values()) else Exit.NOT_FOUND


@click.command("cancel-saga", cls=Command)
@click.argument("saga")
def cancel_saga(shared: Shared, saga: str) -> Exit:
    """Cancel all stored timeouts of SAGA that are not being sent right now.

    --json lists the ids of the cancelled timeouts. The exit code is 0 if there were any, otherwise
    3.

    Examples:
      timeoutmgr cancel-saga order-7
    """
    with opened(shared, with_queues=False) as endpoint:
        ids = endpoint.timeouts.cancel_saga(saga, channel=CLI)
    document = {"saga": saga, "cancelled": len(ids), "ids": list(ids)}
    shared.show(document, lambda: click.echo(f"{len(ids)} cancelled"))
    return Exit.OK if ids else Exit.NOT_FOUND


@click.command(cls=Command)
@click.argument("timeout_id", metavar="ID")
@delay_and_at
def reschedule(
    shared: Shared, timeout_id: str, delay: timedelta | None, at: datetime | None
) -> Exit:
    """Move the timeout ID to another due time; its id and its message stay the same.

    The results are changed, too_late, maybe_sent (it is moved, but may have been sent before)
    and unknown. The exit code is 0 for changed, otherwise 3.

    Examples:
      timeoutmgr reschedule 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55 --at 2030-02-01T09:00+01:00
    """
    if (delay is None) == (at is None):
        raise click.UsageError("give either --delay or --at")
    with opened(shared, with_queues=False) as endpoint:
        timeouts = endpoint.timeouts
        result = timeouts.reschedule(timeout_id, deliver_at=at, delay=delay, channel=CLI)
    return say(shared, timeout_id, result)


@click.command("send-now", cls=Command)
@click.argument("timeout_id", metavar="ID")
def send_now(shared: Shared, timeout_id: str) -> Exit:
    """Make the running endpoint dispatch the timeout ID at once.

    Results and exit codes are the same as for reschedule.

    Examples:
      timeoutmgr send-now 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55
    """
    with opened(shared, with_queues=False) as endpoint:
        result = endpoint.timeouts.send_now(timeout_id, channel=CLI)
    return say(shared, timeout_id, result)


@click.command(cls=Command)
@click.argument("queue")
@selects_timeouts
@option("--all", "everything", is_flag=True, help="All pending timeouts.")
@option("--dry-run", is_flag=True, help="Print the result without changing anything.")
def reroute(
    shared: Shared, queue: str, selection: TimeoutSelection, everything: bool, dry_run: bool
) -> Exit:
    """Send the selected pending timeouts to QUEUE, each when it is due.

    Their ids, messages and due times stay. Timeouts that are being dispatched now still go to their
    former destination. maybe_sent counts timeouts that may already have been sent there. After an
    interruption, run the command again: it reroutes the rest. The exit code is 0 if any timeout is
    rerouted, otherwise 3.

    Examples:
      timeoutmgr reroute billing-eu --destination billing --dry-run
      timeoutmgr reroute billing-eu --destination billing --from 2030-01-01T00:00Z
    """
    which = {name: value for name, value in asdict(selection).items() if value not in (None, {})}
    if everything == bool(which):
        raise click.UsageError(
            "select timeouts: either --all, or --saga, --destination, --label, --type, "
            "--id-prefix, --from or --to"
        )
    sums, after = Counter[str](), None
    with opened(shared) as endpoint:
        while True:
            done = endpoint.timeouts.reroute(
                queue, **which, dry_run=dry_run, after=after, channel=CLI
            )
            sums.update(
                rerouted=len(done.rerouted), left=len(done.left), maybe_sent=len(done.maybe_sent)
            )
            after = done.searched_to
            if after is None:
                break
    document = {"to": queue, "dry_run": dry_run, **sums}
    shared.show(document, lambda: output.print_pairs([(k, str(v)) for k, v in document.items()]))
    return Exit.OK if sums["rerouted"] else Exit.NOT_FOUND


def say(shared: Shared, timeout_id: str, result: "ChangeResult") -> Exit:
    """Print *result*; return 0 if the timeout was changed and cannot have been sent."""
    from timeoutmgr.contracts import ChangeResult

    document = {"id": timeout_id, "result": result.value}
    shared.show(document, lambda: output.print_pairs([(timeout_id, result.value)]))
    return Exit.OK if result is ChangeResult.CHANGED else Exit.NOT_FOUND
