"""``timeoutmgr cancel-saga``: all timeouts of a saga."""

import click

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common
from timeoutmgr.cli.shared import Shared, opened


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
        count = endpoint.timeouts.cancel_saga(saga)
    shared.show({"saga": saga, "cancelled": count}, lambda: click.echo(f"{count} cancelled"))
    return Exit.OK if count else Exit.NOT_FOUND
