"""``timeoutmgr restored``: after a point-in-time recovery, before the first process starts."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.bulk_runs import confirm, exit_of_run, run_document
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, Duration, Instant, option
from timeoutmgr.cli.pauses import by, reason
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.message.instants import LATEST, from_micros

if TYPE_CHECKING:
    from timeoutmgr.contracts.bulk_runs import BulkRun
    from timeoutmgr.endpoint.restoration import RestoreReport
    from timeoutmgr.endpoint.timeouts import Timeouts


@click.command(cls=Command)
@option("--at", type=Instant(), required=True, help="Time to which the database was recovered.")
@option(
    "--window",
    "decision",
    type=click.Choice(("hold", "send", "cancel")),
    help="Decision about the window: hold, send or cancel. Without it nothing is changed.",
)
@option(
    "--overdue",
    type=Duration(),
    default="1m",
    show_default=True,
    help="Maximum lateness of timeouts before the recovery; the window begins this long before "
    "--at.",
)
@option(
    "--expect",
    type=click.IntRange(min=0),
    help="Expected number of timeouts to hold or cancel; needed above 100.",
)
@reason
def restored(
    shared: Shared,
    at: datetime,
    decision: str | None,
    overdue: timedelta,
    expect: int | None,
    reason: str,
) -> Exit:
    r"""Report timeouts that may be sent again after a recovery to --at, and decide about them.

    Run the command after the database is restored, and before the first process starts. It releases
    the claims of the processes that were cut off, and reports the window: the pending timeouts that
    were due between --at and now, and earlier timeouts that at --at were parked or waited for
    another attempt. Each of them may have been sent already, and would be sent again under the same
    id.

    \b
    hold    send none of them, until `timeoutmgr runs undo` of the printed run
    send    send them again; their receivers drop ids that they know
    cancel  send none of them

    With hold and cancel, recurring timeouts also skip each occurrence before now. If the endpoint's
    queues are in the restored database, their messages may be handled again: they are counted, and
    no decision holds them back.

    Timeouts that were stored after --at are lost: their senders must send them again. The exit
    code is 6 if the window has timeouts and there is no decision, or the queues have messages and
    the decision is not send; 1 if some timeouts could not be held or cancelled.

    Examples:
      timeoutmgr restored --at 2026-01-31T09:00Z --reason "disk of db-1 lost"
      timeoutmgr restored --at 2026-01-31T09:00Z --window hold --reason "disk of db-1 lost"
    """
    from timeoutmgr.endpoint.restoration import restored_messages, skip_runs

    with opened(shared, with_queues=False) as endpoint:
        timeouts = endpoint.timeouts
        queues = restored_messages(endpoint.parts)
        report = timeouts.restored(at, overdue=overdue, by=by(reason))
        run = None
        if decision in ("hold", "cancel"):
            if report.window.number:
                run = _carry_out(shared, timeouts, report, decision, expect, reason)
            skip_runs(endpoint.parts.features.store, report.end, by(reason))
    document = _document(report, queues, decision, run)
    shared.show(document, lambda: _print(document))
    if run is not None and exit_of_run(run) is Exit.FAILED:
        return Exit.FAILED
    repeats = sum(queues.values()) + (report.window.number if decision is None else 0)
    return Exit.FINDINGS if repeats and decision != "send" else Exit.OK


def _carry_out(
    shared: Shared,
    timeouts: "Timeouts",
    report: "RestoreReport",
    decision: str,
    expect: int | None,
    reason: str,
) -> "BulkRun":
    from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange

    # A move can be undone, and then each timeout has its original due time.
    move = BulkChange(action=BulkAction.MOVE, to=LATEST)
    plan = timeouts.bulk.plan(
        BulkChange(action=BulkAction.CANCEL) if decision == "cancel" else move,
        tried_from=from_micros(report.start),
        due_before=from_micros(report.end),
        by=by(reason),
    )
    confirm(shared, plan, expect)
    return timeouts.bulk.apply(plan.run.id, by=by(reason))


def _document(
    report: "RestoreReport", queues: Mapping[str, int], decision: str | None, run: "BulkRun | None"
) -> dict[str, Any]:
    return {
        "restored_to": output.shown_time(report.at),
        "window": {
            "due_from": output.shown_time(report.start),
            "due_before": output.shown_time(report.end),
            "timeouts": report.window.number,
            **({} if report.window.exact else {"is_exact": False}),
            "by_destination": dict(report.by_destination),
        },
        "queues": dict(queues),
        "due_before_window": report.before.number,
        "released_claims": report.released,
        "decision": decision,
        **({} if run is None else {"run": run_document(run)}),
    }


def _print(document: dict[str, Any]) -> None:
    window, run = document["window"], document.get("run", {})
    least = "" if window.get("is_exact", True) else "at least "
    pairs = [
        ("restored to", document["restored_to"]),
        ("window", f"{window['due_from']} to {window['due_before']}"),
        ("may be sent again", f"{least}{window['timeouts']}"),
        *((f"  to {name}", number) for name, number in window["by_destination"].items()),
        ("may be handled again", sum(document["queues"].values())),
        *((f"  in {name}", number) for name, number in document["queues"].items() if number),
        ("due before", document["due_before_window"]),
        ("released claims", document["released_claims"]),
        ("decision", document["decision"] or "none; give --window hold, send or cancel"),
        *((name, run[name]) for name in ("id", "changed", "left") if name in run),
    ]
    output.print_pairs([(name, str(value)) for name, value in pairs])
