"""``timeoutmgr install``: queues and tables, created where they are missing."""

from typing import TYPE_CHECKING

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, common, option
from timeoutmgr.cli.shared import Shared, assembled

if TYPE_CHECKING:
    from timeoutmgr.config import EndpointSettings


@click.command(cls=Command)
@option("--sql", is_flag=True, help="Print the DDL instead, and touch nothing.")
@option(
    "--new-marker",
    is_flag=True,
    help="Pair store and broker anew: after a deliberate move of the endpoint to other servers.",
)
@common(environment=False)
@click.pass_obj
def install(shared: Shared, sql: bool, new_marker: bool) -> None:
    """Create the queues and tables that are missing, or upgrade them.

    Twice, and from several hosts at once, is fine. With --sql nothing is connected to: the
    statements for an empty database are printed, for somebody who may run them. The queues are
    still to be created then, by an install without --sql.

    Store and broker get a marker, by which each start knows that they belong together.
    --new-marker replaces it; stop every process of the endpoint before.

    Examples:
      timeoutmgr install
      timeoutmgr --config sales.toml install --sql > schema.sql
    """
    from timeoutmgr import installation

    with assembled(shared) as parts:
        settings = parts.settings
        if sql:
            found = [settings.transport.ddl()]
            kept = settings.installed_persistence
            found += [kept.ddl()] if kept is not None else []
            found += [installed.ddl() for installed in parts.context.installed]
            found += [_delayed_ddl(settings)]
            text = "\n".join(each for each in found if each)
            shared.show({"sql": text}, lambda: click.echo(text))
            return
        queues = installation.install(parts, new_marker=new_marker)
        persistence = settings.installed_persistence
        described = [
            ("endpoint", settings.name),
            ("transport", settings.transport.describe()),
            ("persistence", None if persistence is None else persistence.capabilities.name),
        ]
        if settings.delayed_delivery is not None:
            described.append(("delayed message store", settings.delayed_delivery.capabilities.name))
        shared.show(
            {**dict(described), "queues": queues},
            lambda: output.print_pairs([*described, *(("queue", queue) for queue in queues)]),
        )


def _delayed_ddl(settings: "EndpointSettings") -> str:
    if settings.delayed_delivery is None:
        return ""
    ddl = getattr(settings.delayed_delivery.store, "ddl", None)
    return "" if ddl is None else str(ddl(settings.name))
