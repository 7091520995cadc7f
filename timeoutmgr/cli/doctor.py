"""``timeoutmgr doctor``: is everything there that the endpoint needs, and will it keep promises."""

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common
from timeoutmgr.cli.shared import Shared, assembled


@click.command(cls=Command)
@common(environment=False)
@click.pass_obj
def doctor(shared: Shared) -> Exit:
    """Connect to everything, and say what is well, what is doubtful and what is wrong.

    It changes nothing. Every line is ok, warn or fail, the last two with a remedy. The exit code
    is 1 if any line is fail.

    Examples:
      timeoutmgr doctor
      timeoutmgr --json doctor
    """
    from timeoutmgr.cli.checks import examine
    from timeoutmgr.cli.findings import Level

    with assembled(shared) as parts:
        findings = list(examine(parts))
    failed = any(finding.level is Level.FAIL for finding in findings)
    document = {
        "endpoint": parts.settings.name,
        "healthy": not failed,
        "findings": [finding.document() for finding in findings],
    }

    def for_people() -> None:
        for finding in findings:
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            text = f"{finding.level.value:<4}  {finding.check}: {finding.text}{remedy}"
            click.echo(output.plain(output.masked(text)))

    shared.show(document, for_people)
    return Exit.FAILED if failed else Exit.OK
