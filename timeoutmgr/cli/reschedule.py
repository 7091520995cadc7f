"""``timeoutmgr reschedule``: another due time for one timeout."""

from datetime import datetime, timedelta

import click

from timeoutmgr.cli.changed import say
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common, delay_and_at
from timeoutmgr.cli.shared import Shared, opened


@click.command(cls=Command)
@click.argument("timeout_id", metavar="ID")
@delay_and_at
@common(environment=False)
@click.pass_obj
def reschedule(
    shared: Shared, timeout_id: str, delay: timedelta | None, at: datetime | None
) -> Exit:
    """Move the timeout ID to another due time; its id and its message stay.

    The answers are changed, too_late, maybe_sent (it is moved, but may have been sent before)
    and unknown. The exit code is 0 for changed, else 3.

    Examples:
      timeoutmgr reschedule 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55 --at 2030-02-01T09:00+01:00
    """
    if (delay is None) == (at is None):
        raise click.UsageError("give one of --delay and --at")
    with opened(shared, with_queues=False) as endpoint:
        result = endpoint.timeouts.reschedule(timeout_id, deliver_at=at, delay=delay)
    return say(shared, timeout_id, result)
