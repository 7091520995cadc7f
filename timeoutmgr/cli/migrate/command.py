"""``timeoutmgr migrate``: move pending timeouts to another place."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.migrate import shared as moves
from timeoutmgr.cli.options import FILE, Command, option, with_examples
from timeoutmgr.cli.shared import Shared
from timeoutmgr.cli.written_files import require_writable

migrate: Final = click.Group(
    "migrate",
    help=with_examples(
        """Move pending timeouts: to another store, into native delay levels, or back.

        Levels with other names, and NServiceBus' tables or their exports, can be sources too.
        The endpoint may run meanwhile. A run is a plan in a ledger: after an interruption, the same
        command continues it, or you can abort it.

        Examples:
          timeoutmgr migrate preview --to native
          timeoutmgr migrate run --to native
        """
    ),
)


@migrate.command("preview", cls=Command, within="migrate")
@moves.places
@moves.window
def preview(shared: Shared, /, **given: Any) -> Exit:
    """Show the timeouts that a run would move, and problems that stop it; change nothing.

    The exit code is 1 if there is a problem.

    Examples:
      timeoutmgr migrate preview --to postgresql+psycopg://db/new
      timeoutmgr migrate preview --from-file timeouts.csv --layout nservicebus
    """
    from timeoutmgr.migration import preview as look

    with moves.sites(shared, moves.asked_for(given), given["endpoints"]) as opened:
        found = [look(one.parts, one.terms) for one in opened]
    documents = [moves.preview_document(each) for each in found]
    shared.show({"endpoints": documents}, lambda: moves.print_preview(documents))
    return Exit.FAILED if any(each.problems for each in found) else Exit.OK


@migrate.command("run", cls=Command, within="migrate")
@moves.places
@moves.window
@option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    help="Number of processes that move batches out of a store.",
)
@option("--report", type=FILE, help="File for the report.")
def run(shared: Shared, /, processes: int, report: Path | None, **given: Any) -> Exit:
    """Move pending timeouts, or continue an interrupted run on the same terms.

    If any endpoint has a problem, nothing is moved (exit code 4). The exit code is 1 if messages
    could not be moved and stay; after an interruption run the command again.

    Examples:
      timeoutmgr migrate run --to native --safety-window 30m
      timeoutmgr migrate run --to new.toml --processes 4
      timeoutmgr migrate run --from native --from-names nservicebus-v1 --to native --all-senders
      timeoutmgr migrate run --from mysql+pymysql://db/shop --layout nservicebus --table T
    """
    from timeoutmgr.migration.run import move_all, refuse_any_problem

    made, asked = [], moves.asked_for(given)
    moves.check_processes(asked, processes)
    require_writable("--report", report)
    with moves.sites(shared, asked, given["endpoints"]) as opened, ExitStack() as stack:
        works = [stack.enter_context(one.audit.kept("migrate", one.terms)) for one in opened]
        refuse_any_problem([(one.parts, one.terms) for one in opened])
        for one, work in zip(opened, works, strict=True):
            with moves.on_the_way(shared, one) as on_batch:
                movers = moves.movers_of(shared, asked, one.terms.endpoint, processes)
                done = move_all(one.parts, one.terms, on_batch, movers)
            work.changed = done.new
            made.append(done.document())
    # Show the report first: then it is not lost if it cannot be saved.
    shared.show({"runs": made}, lambda: moves.print_reports(made))
    is_saved = report is None or moves.save_report(report, made)
    returned = any(each["returned"] for each in made)
    return Exit.FAILED if returned or not is_saved else Exit.OK


@migrate.command("abort", cls=Command, within="migrate")
@moves.places
def abort(shared: Shared, /, **given: Any) -> Exit:
    """Abort the open run: timeouts that are not at the target yet return to the source.

    Timeouts at the target stay there. If a batch may have been sent to delay levels, its send is
    completed, because a queue cannot list its messages. Without an open run the exit code is 3.

    Examples:
      timeoutmgr migrate abort --to native
    """
    from timeoutmgr.migration.run import give_up

    made = []
    with moves.sites(shared, moves.asked_for(given), given["endpoints"]) as opened:
        for one in opened:
            with one.audit.kept("migrate-abort", one.terms) as work:
                report = give_up(one.parts, one.terms.others)
                work.changed = 0 if report is None else report.returned
            made += [] if report is None else [report.document()]
    shared.show({"runs": made}, lambda: moves.print_reports(made))
    return Exit.OK if made else Exit.NOT_FOUND


@migrate.command("status", cls=Command, within="migrate")
@moves.places
def status(shared: Shared, /, **given: Any) -> Exit:
    """Show the runs of the ledger with their progress, the latest first.

    The exit code is 3 if there is no run.

    Examples:
      timeoutmgr migrate status
      timeoutmgr --json migrate status --to postgresql+psycopg://db/new
    """
    from timeoutmgr.migration import report

    with moves.ledgers(shared, moves.asked_for(given), given["endpoints"]) as opened:
        made = [
            {
                **report(ledger, each, each.state).document(),
                "created": output.shown_time(each.created),
                "ended": output.shown_time(each.ended),
                "terms": each.terms.document(),
            }
            for ledger in opened
            for each in ledger.runs()
        ]
    shared.show({"runs": made}, lambda: moves.print_reports(made))
    return Exit.OK if made else Exit.NOT_FOUND
