"""``timeoutmgr change`` and ``timeoutmgr runs``: change many timeouts, and manage such runs."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.list import TimeoutSelection, selects_timeouts
from timeoutmgr.cli.options import Command, Duration, Instant, bundled, limit, option, with_examples
from timeoutmgr.cli.pauses import by, reason
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.cli.written_files import Export, export_to
from timeoutmgr.message.instants import duration_micros, to_micros
from timeoutmgr.message.routes import timeout_id

if TYPE_CHECKING:
    from timeoutmgr.contracts.bulk_runs import BulkChange, BulkPlan, BulkRun
    from timeoutmgr.endpoint.bulk_runs import BulkRuns
    from timeoutmgr.endpoint.endpoint import Endpoint
    from timeoutmgr.endpoint.timeouts import Timeouts

WITHIN: Final = "runs"
UNASKED: Final = 100
"""Maximum timeouts that a command changes without --expect or a typed number."""
_NAMED: Final = 5
"""Maximum ids in a sentence; --json names all."""
_ACTIONS: Final = ("shift", "move", "spread", "cancel", "send-now", "retry", "reroute")
_COLUMNS: Final = ("id", "state", "created", "action", "selected", "changed", "left", "undone")
_DROPPED: Final = ("undone", "created", "left")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeValues:
    """The options with the values of an action."""

    delta: timedelta | None
    at: datetime | None
    over: timedelta | None
    queue: str | None

    def change(self, action: str) -> "BulkChange":
        """Return the change; raise UsageError for options that *action* does not have."""
        from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange

        at = None if self.at is None else to_micros(self.at)
        values: dict[str, Any] = {}
        if action == "shift" and self.delta is not None:
            values["by"] = duration_micros(self.delta)
        if action == "move":
            values["to"] = at
        if action == "spread" and at is not None and self.over is not None:
            values |= {"start": at, "end": at + duration_micros(self.over)}
        if action == "reroute":
            values["destination"] = self.queue
        self._require(action)
        return BulkChange(action=BulkAction(action), **values)

    def _require(self, action: str) -> None:
        needs = {
            "shift": ("--by",),
            "move": ("--at",),
            "spread": ("--at", "--over"),
            "reroute": ("--queue",),
        }.get(action, ())
        options = {"--by": self.delta, "--at": self.at, "--over": self.over, "--queue": self.queue}
        given = tuple(name for name, value in options.items() if value is not None)
        if given != needs:
            wanted = " and ".join(needs) or "none of --by, --at, --over and --queue"
            got = " and ".join(given) or "none of them"
            raise click.UsageError(f"{action} needs {wanted}; got {got}")


class Delta(Duration):
    """A duration that may be negative."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return the duration in *value*."""
        if isinstance(value, str) and value.startswith("-"):
            return -super().convert(value[1:], param, ctx)
        return super().convert(value, param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFlags:
    """The options that select timeouts, or delay a change."""

    everything: bool
    limit: int | None
    dry_run: bool
    expect: int | None
    export: Path | None
    reason: str


@click.command(cls=Command)
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("ids", metavar="[ID]...", nargs=-1)
@selects_timeouts
@bundled(
    "values",
    ChangeValues,
    option("--by", "delta", type=Delta(), help="For shift: the time to add, such as 2h or -30m."),
    option("--at", type=Instant(), help="For move: the due time; for spread: the first due time."),
    option("--over", type=Duration(), help="For spread: length of the window from --at on."),
    option("--queue", help="For reroute: the new destination queue."),
)
@bundled(
    "flags",
    ChangeFlags,
    option("--all", "everything", is_flag=True, help="All pending timeouts."),
    limit("Maximum number of timeouts, the earliest; parked timeouts come last."),
    option("--dry-run", is_flag=True, help="Select and show timeouts; change nothing yet."),
    option(
        "--expect",
        type=click.IntRange(min=0),
        help=f"Expected number of timeouts; needed above {UNASKED}.",
    ),
    option(
        "--export",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File to which the selected timeouts are written first, one JSON document per line.",
    ),
    reason,
)
def change(
    shared: Shared,
    action: str,
    ids: tuple[str, ...],
    selection: TimeoutSelection,
    values: ChangeValues,
    flags: ChangeFlags,
) -> Exit:
    r"""Perform ACTION on the timeouts that the options select, or on the timeouts ID.

    An ID is the id of a timeout or of its message.

    \b
    shift     add --by to each due time
    move      make all due at --at
    spread    make them due in even steps from --at on, within --over
    cancel    deliver none of them; --export keeps copies
    send-now  make them due now
    retry     retry failed timeouts now instead of later
    reroute   send them to --queue when they are due

    The selection is frozen when it is shown: it leaves out timeouts that are stored or changed
    later, or are being dispatched now. --dry-run prints a run, which `timeoutmgr runs apply`
    applies within a day. Above 100 timeouts, type their number, or give it with --expect.
    `timeoutmgr runs apply` continues an interrupted change, and refuses a run whose --export was
    not saved completely. The exit code is 3 if nothing was selected, 1 if timeouts were left
    unchanged or the export could not be written.

    Examples:
      timeoutmgr change shift --by 2h --destination billing --dry-run --reason "billing is down"
      timeoutmgr change cancel --saga order-7 --export order-7.jsonl --reason "order withdrawn"
    """
    which = {name: value for name, value in asdict(selection).items() if value not in (None, {})}
    picked = flags.everything + bool(ids) + bool(which)
    if picked != 1:
        raise click.UsageError(
            "select timeouts: --all, IDs, or --saga, --destination, --label, --type, --id-prefix, "
            "--from and --to"
        )
    asked = values.change(action)
    with opened(shared, with_queues=action == "reroute") as endpoint:
        runs = endpoint.timeouts.bulk
        # Create the file before the plan.
        with nullcontext() if flags.export is None else export_to(flags.export, "--export") as file:
            asker = by(flags.reason)
            plan = runs.plan(
                asked,
                **({"ids": ids} if ids else which),
                limit=flags.limit,
                by=asker,
                export=None if file is None else partial(_export, endpoint.timeouts, file),
            )
        missed = _unselected(endpoint, plan.run.id, ids)
        if flags.dry_run or not plan.run.selected:
            _show_plan(shared, plan, missed)
            return Exit.OK if plan.run.selected else Exit.NOT_FOUND
        confirm(shared, plan, flags.expect)
        return _apply(shared, runs, plan.run, flags.reason, undo=False, missed=missed)


_HELP = """
    Manage bulk changes: plans that are not applied yet, and runs.

    Examples:
      timeoutmgr runs list
      timeoutmgr runs undo 4f3c0f8d2c7a4d5e9b1a6d0c3e2f1a90 --reason "billing came back"
    """


runs: Final = click.Group("runs", help=with_examples(_HELP))


@runs.command("list", cls=Command, within=WITHIN)
@limit("Maximum number of runs, the newest.", default=20, show_default=True)
def list_runs(shared: Shared, limit: int) -> Exit:
    """List plans and runs, the newest first.

    Examples:
      timeoutmgr runs list
    """
    with opened(shared, with_queues=False) as endpoint:
        documents = [run_document(run) for run in endpoint.timeouts.bulk.list(limit=limit)]
    shared.show(
        {"runs": documents}, lambda: output.print_documents(_COLUMNS, documents, drop=_DROPPED)
    )
    return Exit.OK


@runs.command(cls=Command, within=WITHIN)
@click.argument("run_id", metavar="RUN")
@reason
def apply(shared: Shared, run_id: str, reason: str) -> Exit:
    """Apply the plan RUN, or continue a run that was interrupted.

    The exit code is 1 if timeouts were left unchanged, or another process works on the run.

    Examples:
      timeoutmgr runs apply 4f3c0f8d2c7a4d5e9b1a6d0c3e2f1a90 --reason "billing is down"
    """
    return _carry_out(shared, run_id, reason, undo=False)


@runs.command(cls=Command, within=WITHIN)
@click.argument("run_id", metavar="RUN")
@reason
def undo(shared: Shared, run_id: str, reason: str) -> Exit:
    """Undo a shift, move or spread, except for timeouts that changed since.

    The exit code is 1 if timeouts were left unchanged, or another process works on the run.

    Examples:
      timeoutmgr runs undo 4f3c0f8d2c7a4d5e9b1a6d0c3e2f1a90 --reason "billing came back"
    """
    return _carry_out(shared, run_id, reason, undo=True)


def _carry_out(shared: Shared, run_id: str, reason: str, *, undo: bool) -> Exit:
    with opened(shared, with_queues=False) as endpoint:
        bulk = endpoint.timeouts.bulk
        run = bulk.get(run_id)
        if run is None:
            hint = "`timeoutmgr runs list` shows the runs"
            said = f"there is no run {run_id!r:.80}; {hint}"
            shared.show({"id": run_id, "state": "unknown"}, lambda: click.echo(said, err=True))
            return Exit.NOT_FOUND
        return _apply(shared, bulk, run, reason, undo=undo)


def _apply(
    shared: Shared,
    bulk: "BulkRuns",
    run: "BulkRun",
    reason: str,
    *,
    undo: bool,
    missed: Sequence[str] = (),
) -> Exit:
    work = bulk.undo if undo else bulk.apply
    with _progress(shared, run.changed if undo else run.selected) as advance:
        done = work(run.id, by=by(reason), progress=advance)
    document = run_document(done)

    def for_people() -> None:
        output.print_pairs(list(document.items()))
        _print_missed(missed)

    shared.show({**document, **_missed_document(missed)}, for_people)
    return exit_of_run(done)


def exit_of_run(done: "BulkRun") -> Exit:
    """Return the exit code of an apply or undo; report timeouts that another process has."""
    if done.unfinished is not None:
        output.print_error(done.unfinished)
    is_undone = done.state.value == "undone"
    left = done.changed - done.undone if is_undone else done.left
    return Exit.FAILED if left or done.unfinished is not None else Exit.OK


@contextmanager
def _progress(shared: Shared, total: int) -> Iterator[Callable[[int], None]]:
    """Yield the function to call after each batch; on a terminal, it draws a progress bar."""
    if shared.json or not sys.stderr.isatty():
        yield lambda _number: None
        return
    with click.progressbar(length=total, file=sys.stderr, label="timeouts") as bar:
        yield bar.update


def confirm(shared: Shared, plan: "BulkPlan", expect: int | None) -> None:
    """Raise UsageError unless the number of selected timeouts is small or was given."""
    selected = plan.run.selected
    how = f"apply the plan with `timeoutmgr runs apply {plan.run.id} --reason ...`"
    if expect is None and selected > UNASKED:
        if shared.json or not sys.stdin.isatty():
            raise click.UsageError(f"{selected} timeouts are selected: give --expect, or {how}")
        _show_plan(shared, plan)
        expect = click.prompt("Type the number of timeouts to change", type=int)
    if expect is not None and expect != selected:
        raise click.UsageError(
            f"{selected} timeouts are selected, {expect} were expected; nothing is changed; {how}"
        )


def _export(timeouts: "Timeouts", file: Export, run_id: str) -> None:
    """Save copies of the timeouts of a plan, before anything can apply it."""
    for key in timeouts.bulk.keys(run_id):
        found = timeouts.show(key.id)
        if found is None or found[1] is None:
            continue
        one = found[1]
        document = {
            "id": one.id,
            "due": output.shown_time(one.due),
            "destination": one.destination,
            "saga": one.saga_id,
            "message_id": one.message.id,
            "headers": dict(one.message.headers),
            "content_type": one.message.content_type,
            "content_encoding": one.message.content_encoding,
            **output.body_document(one.message.body),
        }
        file.write(document)
    file.save()


def _unselected(endpoint: "Endpoint", run_id: str, ids: Sequence[str]) -> list[str]:
    """Return the *ids*, of timeouts or messages, that the plan has not selected."""
    selected = {key.id for key in endpoint.timeouts.bulk.keys(run_id)} if ids else set()
    both = {one: {one, timeout_id(endpoint.name, one)} for one in ids}
    return [one for one, names in both.items() if selected.isdisjoint(names)]


def _missed_document(missed: Sequence[str]) -> dict[str, Any]:
    return {"not_selected": list(missed)} if missed else {}


def _print_missed(missed: Sequence[str]) -> None:
    if missed:
        more = ", ..." if len(missed) > _NAMED else ""
        named = output.plain(", ".join(missed[:_NAMED]))
        click.echo(
            f"{len(missed)} of the ids not selected, which are not pending or need no change: "
            f"{named}{more}"
        )


def _show_plan(shared: Shared, plan: "BulkPlan", missed: Sequence[str] = ()) -> None:
    document = {
        **run_document(plan.run),
        **_missed_document(missed),
        "samples": [
            {
                "id": one.id,
                "due": output.shown_time(one.due),
                "destination": one.destination,
                "saga": one.saga_id,
            }
            for one in plan.samples
        ],
    }

    def for_people() -> None:
        samples: list[dict[str, Any]] = document["samples"]
        if samples:
            output.print_documents(list(samples[0]), samples, drop=("saga",))
        _print_missed(missed)
        run = plan.run
        if not run.selected:
            click.echo("no pending timeout is selected; `timeoutmgr list` shows ids")
            return
        click.echo(
            f"{run.selected} timeouts selected, due from {output.shown_time(run.first_due)} "
            f"to {output.shown_time(run.last_due)}; nothing is changed"
        )
        click.echo(f"apply within a day: timeoutmgr runs apply {run.id} --reason ...")

    shared.show(document, for_people)


def run_document(run: "BulkRun") -> dict[str, Any]:
    """Return *run* for JSON."""
    return {
        "id": run.id,
        "state": run.state.value,
        "created": output.shown_time(run.created),
        "action": run.change.action.value,
        "selected": run.selected,
        "first_due": output.shown_time(run.first_due),
        "last_due": output.shown_time(run.last_due),
        "changed": run.changed,
        "left": run.left,
        "maybe_sent": run.maybe_sent,
        "undone": run.undone,
    }
