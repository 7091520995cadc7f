"""``timeoutmgr uninstall``: queues, exchanges and tables that are of no use any more."""

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, common, option
from timeoutmgr.cli.shared import Shared, assembled

_PARTS = ("timeout-manager", "native-delayed-delivery")


@click.command(cls=Command)
@click.argument("part", type=click.Choice(_PARTS))
@option("--force", is_flag=True, help="Also with messages in it, which are lost then.")
@option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@common(environment=False)
@click.pass_obj
def uninstall(shared: Shared, part: str, force: bool, dry_run: bool) -> None:
    """Remove what PART has installed: its queues and exchanges, and its tables.

    It is refused while anything is pending in them. timeout-manager is this endpoint's, once
    `timeoutmgr status` says that it is drained: its two queues, its rows with their history, and
    the tables when no other endpoint uses them. native-delayed-delivery are the delay levels,
    which all endpoints on the broker share.

    Examples:
      timeoutmgr uninstall timeout-manager --dry-run
      timeoutmgr uninstall timeout-manager
    """
    from timeoutmgr.uninstalling import uninstall_delay_levels, uninstall_timeout_manager

    remove = uninstall_timeout_manager if part == _PARTS[0] else uninstall_delay_levels
    with assembled(shared) as parts:
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
