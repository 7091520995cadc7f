"""``timeoutmgr pipeline doctor``: can Spark run here, and how fast does it start."""

from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common
from timeoutmgr.cli.pipeline.shared import WITHIN, of_store, on_spark, session_options, store_name
from timeoutmgr.cli.shared import Shared
from timeoutmgr.message.redaction import masked


@click.command(cls=Command, within=WITHIN)
@of_store
@on_spark
@common(environment=False)
@click.pass_obj
def doctor(shared: Shared, /, store: str | None, **options: Any) -> Exit:
    """Say which Java, Spark and drivers there are, start Spark, and read through a worker.

    With --store (or a settings file) the worker reads from that store. Every line is ok, warn or
    fail; the exit code is 1 if any is fail.

    Examples:
      timeoutmgr pipeline doctor
      timeoutmgr --json pipeline doctor --store sales.toml
    """
    from timeoutmgr.contracts.findings import Level
    from timeoutmgr.pipeline.doctor import examine

    has_store = store is not None or shared.config is not None
    name = store_name(shared, store) if has_store else None
    findings = list(examine(session_options(shared, options), name))
    failed = any(finding.level is Level.FAIL for finding in findings)
    document = {"healthy": not failed, "findings": [one.document() for one in findings]}

    def for_people() -> None:
        for one in findings:
            remedy = f" -> {one.remedy}" if one.remedy else ""
            text = f"{one.level.value:<4}  {one.check}: {one.text}{remedy}"
            click.echo(output.plain(masked(text)))

    shared.show(document, for_people)
    return Exit.FAILED if failed else Exit.OK
