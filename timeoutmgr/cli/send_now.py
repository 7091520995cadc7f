"""``timeoutmgr send-now``: do not wait any longer."""

import click

from timeoutmgr.cli.changed import say
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common
from timeoutmgr.cli.shared import Shared, opened


@click.command("send-now", cls=Command)
@click.argument("timeout_id", metavar="ID")
@common(environment=False)
@click.pass_obj
def send_now(shared: Shared, timeout_id: str) -> Exit:
    """Have the timeout ID dispatched at once, by the endpoint that runs.

    The answers and exit codes are those of reschedule.

    Examples:
      timeoutmgr send-now 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55
    """
    with opened(shared, with_queues=False) as endpoint:
        result = endpoint.timeouts.send_now(timeout_id)
    return say(shared, timeout_id, result)
