"""``timeoutmgr install`` and ``timeoutmgr uninstall``: create and remove queues and tables."""

from typing import TYPE_CHECKING

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, option
from timeoutmgr.cli.shared import Shared, assembled, require_installed

if TYPE_CHECKING:
    from timeoutmgr.endpoint.assembly import AssembledEndpoint
    from timeoutmgr.endpoint.configuration import EndpointSettings


@click.command(cls=Command)
@option("--sql", is_flag=True, help="Print the DDL without creating anything.")
@option(
    "--tables",
    is_flag=True,
    help="Create only the tables of the store, for timeouts that are migrated into it.",
)
@option(
    "--new-marker",
    is_flag=True,
    help="Pair store and broker again after a deliberate move of the endpoint to other servers.",
)
def install(shared: Shared, sql: bool, tables: bool, new_marker: bool) -> None:
    """Create missing queues and tables, or upgrade tables.

    The command may run repeatedly, and on several hosts concurrently. With --sql it does not
    connect, and prints the statements for an empty database, for a user with the right to run
    them. A later install without --sql creates the queues.

    Store and broker get a marker, by which each start knows that they belong together.
    --new-marker replaces the marker; stop every process of the endpoint before. The command refuses
    while a process with a timeout manager uses this store, but does not see processes that use
    another store, only send, or have a delayed message store.

    --tables creates neither queues nor a marker: another store may still belong to the broker, and
    the endpoint does not start with this store yet.

    Examples:
      timeoutmgr install
      timeoutmgr --config sales.toml install --sql > schema.sql
    """
    from timeoutmgr.endpoint import installation

    if sql + tables + new_marker > 1:
        raise click.UsageError("--sql, --tables and --new-marker exclude each other; give one")
    with assembled(shared) as parts:
        settings = parts.settings
        if tables:
            installation.install_tables(parts)
            _show(shared, parts, [])
            return
        if sql:
            found = [settings.transport.ddl()]
            kept = settings.installed_persistence
            found += [kept.ddl()] if kept is not None else []
            found += [installed.ddl() for installed in parts.features.installed]
            found += [_delayed_ddl(settings)]
            text = "\n".join(each for each in found if each)
            shared.show({"sql": text}, lambda: click.echo(text))
            return
        _show(shared, parts, installation.install(parts, new_marker=new_marker))


def _show(shared: Shared, parts: "AssembledEndpoint", queues: list[str]) -> None:
    settings = parts.settings
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
    from timeoutmgr.contracts import HasDdl

    if settings.delayed_delivery is None:
        return ""
    store = settings.delayed_delivery.store
    return store.ddl(settings.name) if isinstance(store, HasDdl) else ""


_PARTS = ("timeout-manager", "native-delayed-delivery")


@click.command(cls=Command)
@click.argument("part", type=click.Choice(_PARTS))
@option("--force", is_flag=True, help="Also remove queues with messages, which are lost.")
@option("--dry-run", is_flag=True, help="Print the parts without removing them.")
def uninstall(shared: Shared, part: str, force: bool, dry_run: bool) -> None:
    """Remove the queues, exchanges and tables that PART has installed.

    The command refuses while messages or timeouts are pending in them. timeout-manager removes the
    parts of this endpoint once `timeoutmgr status` shows it as drained: two queues, its rows
    with their history, and the tables if no other endpoint uses them. native-delayed-delivery
    removes the delay levels, which all endpoints on the broker share.

    Examples:
      timeoutmgr uninstall timeout-manager --dry-run
      timeoutmgr uninstall timeout-manager
    """
    from timeoutmgr.endpoint.installation import uninstall_timeout_manager
    from timeoutmgr.native.feature import uninstall_delay_levels

    remove = uninstall_timeout_manager if part == _PARTS[0] else uninstall_delay_levels
    with assembled(shared) as parts:
        require_installed(parts.settings.transport)
        done = remove(parts.settings, force=force, dry_run=dry_run)
    document = {
        "part": part,
        "removed": not dry_run,
        "queues": dict(done.queues),
        "tables": done.tables or None,
    }
    rows: list[tuple[str, object]] = [(part, "nothing is removed" if dry_run else "removed")]
    rows += [("queue", f"{name} ({count} messages)") for name, count in done.queues.items()]
    rows += [("tables", done.tables)] if done.tables else []
    shared.show(document, lambda: output.print_pairs(rows))
