"""``timeoutmgr audit``: who changed timeouts, and whether the record of it is whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, limit, option, with_examples
from timeoutmgr.cli.shared import Shared, opened

if TYPE_CHECKING:
    from timeoutmgr.contracts.audit import AuditRecord, AuditVerdict

WITHIN: Final = "audit"
_COLUMNS: Final = (
    *("at", "action", "outcome", "changed", "expected", "actor", "channel"),
    *("run_id", "reason", "selection"),
)
_DROPPED: Final = ("channel", "run_id", "selection", "expected", "reason")

_HELP = """
    Read the audit: each change of stored timeouts, including failed and denied attempts.

    Examples:
      timeoutmgr audit list --limit 20
      timeoutmgr audit verify
    """


audit: Final = click.Group("audit", help=with_examples(_HELP))


@audit.command("list", cls=Command, within=WITHIN)
@limit("Maximum number of rows, the newest.", default=100)
@option("--run", "run_id", help="Bulk run of the rows.")
def list_audit(shared: Shared, limit: int, run_id: str | None) -> Exit:
    """List the newest changes, the oldest first.

    Examples:
      timeoutmgr audit list
      timeoutmgr --json audit list --run 4f3c0f8d2c7a4d5e9b1a6d0c3e2f1a90
    """
    with opened(shared, with_queues=False) as endpoint:
        documents = [_document(row) for row in endpoint.timeouts.audit(limit=limit, run_id=run_id)]
    rows = [_shown(each) for each in documents]
    shared.show({"audit": documents}, lambda: output.print_documents(_COLUMNS, rows, drop=_DROPPED))
    return Exit.OK


@audit.command(cls=Command, within=WITHIN)
@option(
    "--heads",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Output of an earlier --json audit verify: the rows that it names must still exist.",
)
def verify(shared: Shared, heads: Path | None) -> Exit:
    """Check that no row of the audit was edited or removed.

    Each row has the hash of the row before it. A row that is missing at the end of a chain is
    detected only with --heads: regularly keep the output of --json audit verify elsewhere. The exit
    code is 6 if a row is missing or edited.

    Examples:
      timeoutmgr --json audit verify > heads.json
      timeoutmgr audit verify --heads heads.json
    """
    known = {} if heads is None else _heads(heads)
    with opened(shared, with_queues=False) as endpoint:
        verdict = endpoint.timeouts.verify_audit(known)
    document = {
        "rows": verdict.rows,
        "faults": list(verdict.faults),
        "heads": {chain: list(head) for chain, head in verdict.heads.items()},
    }
    shared.show(document, lambda: _print(verdict))
    return Exit.FINDINGS if verdict.faults else Exit.OK


def _print(verdict: "AuditVerdict") -> None:
    click.echo(f"{verdict.rows} rows in {len(verdict.heads)} chains")
    for fault in verdict.faults:
        output.print_error(output.plain(fault))


def _heads(path: Path) -> Mapping[str, tuple[int, str]]:
    try:
        heads: Mapping[str, tuple[int, str]] = json.loads(path.read_text())["heads"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise click.UsageError(
            f"{path} has no heads; expected the output of timeoutmgr --json audit verify"
        ) from error
    return heads


def _document(row: "AuditRecord") -> dict[str, Any]:
    return {
        "at": output.shown_time(row.at),
        "action": row.action,
        "outcome": row.outcome,
        "dry_run": bool(row.dry_run),
        "expected": row.expected,
        "changed": row.changed,
        "actor": row.actor,
        "role": row.role,
        "channel": row.channel,
        "run_id": row.run_id,
        "reason": row.reason,
        "selection": json.loads(row.selection),
        "chain": row.chain,
        "number": row.number,
        "hash": row.hash,
    }


def _shown(document: dict[str, Any]) -> dict[str, Any]:
    outcome = "dry run" if document["dry_run"] else document["outcome"]
    return document | {"outcome": outcome, "selection": json.dumps(document["selection"])}
