"""``timeoutmgr doctor``: check that the endpoint has all parts and can keep its promises."""

import click

from timeoutmgr.cli.doctor.alerts import Thresholds, thresholds
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command
from timeoutmgr.cli.shared import Shared, assembled, show_findings


@click.command(cls=Command)
@thresholds
def doctor(shared: Shared, limits: Thresholds) -> Exit:
    """Connect to every part of the endpoint, and report findings without changing anything.

    Every line is ok, warn or fail; a warn or fail line has a remedy. The exit code
    is 1 if any line is fail. Lines fail for a wrong installation, and also for overdue timeouts,
    messages in the error queue, messages that no process stores, triggered breakers, a missing
    process, and timeouts in the same tables of other endpoints without a process.

    Examples:
      timeoutmgr doctor
      timeoutmgr doctor --max-overdue 5m --max-errors 10 --min-processes 2
      timeoutmgr --json doctor
    """
    from timeoutmgr.cli.doctor.checks import examine

    with assembled(shared) as parts:
        # Two parts in one database yield the same findings about the database.
        findings = list(dict.fromkeys(examine(parts, limits)))
    return show_findings(shared, findings, {"endpoint": parts.settings.name})
