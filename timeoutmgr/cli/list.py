"""``timeoutmgr list``: the pending timeouts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, Instant, common, option
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.cli.spans import distance
from timeoutmgr.contracts import Count
from timeoutmgr.instants import Micros, to_micros
from timeoutmgr.routing import TIMEOUTS
from timeoutmgr.waiting import waiting_text

if TYPE_CHECKING:
    from timeoutmgr.timeouts import TimeoutView

_LISTED: Final = 100
_COUNTED: Final = 10_000
_TSV: Final = ("id", "due", "destination", "type", "saga", "attempts", "bytes")
_COLUMNS: Final = ("id", "due", "at", *_TSV[2:])
_DROPPED: Final = ("bytes", "attempts", "at", "saga", "type", "destination")


class _Which(TypedDict):
    saga_id: str | None
    destination: str | None
    due_from: datetime | None
    due_before: datetime | None


@click.command("list", cls=Command)
@option("--saga", help="Saga that the timeouts belong to.")
@option("--destination", help="Queue that the timeouts are for.")
@option("--from", "due_from", type=Instant(), help="Earliest due time, in ISO 8601.")
@option("--to", "due_before", type=Instant(), help="Time before which the timeouts are due.")
@option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"Maximum number of timeouts to list, {_LISTED} by default; of timeouts to count by "
    f"--count-by, {_COUNTED:,} by default.",
)
@option(
    "--format",
    "form",
    type=click.Choice(["table", "tsv", "json"]),
    default="table",
    show_default=True,
    help="Form of the output; json is what --json prints.",
)
@option(
    "--count-by",
    type=click.Choice(["destination", "type"]),
    help="Numbers of timeouts in place of the timeouts.",
)
@option("--count", "exact", is_flag=True, help="Exact total, however many there are to read.")
@common(environment=False)
@click.pass_obj
def list_timeouts(
    shared: Shared,
    saga: str | None,
    destination: str | None,
    due_from: datetime | None,
    due_before: datetime | None,
    limit: int | None,
    form: str,
    count_by: str | None,
    exact: bool,
) -> None:
    """List pending timeouts by due time.

    A narrow terminal shows whole ids, relative due times, and further columns as far as they fit.
    --count-by counts the earliest timeouts, as many as --limit says. A total with a plus sign is
    the least that it can be; --count reads on.

    Examples:
      timeoutmgr list --saga order-7
      timeoutmgr list --count-by destination
      timeoutmgr list --destination billing --from 2030-01-01T00:00Z --limit 1000 --format tsv
    """
    if shared.json and form == "tsv":
        raise click.UsageError("--json and --format tsv exclude each other")
    shared.json = shared.json or form == "json"
    which: _Which = {
        "saga_id": saga,
        "destination": destination,
        "due_from": due_from,
        "due_before": due_before,
    }
    with opened(shared, with_queues=False) as endpoint:
        views = endpoint.timeouts.list(
            **which, limit=limit or (_LISTED if count_by is None else _COUNTED)
        )
        counts = None if count_by is None else _counted(views, count_by)
        found = [*views]
        timeouts = endpoint.timeouts
        total = Count(timeouts.count(**which)) if exact else timeouts.count_in_bounds(**which)
        waiting, queue = endpoint.timeouts.waiting(), endpoint.name + TIMEOUTS
        now = endpoint.timeouts.now()
    if counts is not None:
        _show_counts(shared, str(count_by), counts, total, form)
    else:
        _show(shared, _Page(found, total, now, waiting, queue), form)


@dataclass(frozen=True, slots=True)
class _Page:
    """Timeouts of a list of *total*, at *now* of the store, and messages not stored yet."""

    found: "Sequence[TimeoutView]"
    total: Count
    now: Micros
    waiting: int | None
    queue: str


def _show(shared: Shared, page: _Page, form: str) -> None:
    found = page.found

    def for_people() -> None:
        if form == "tsv":
            output.print_tsv(_TSV, [_cells(each) for each in found])
            return
        if found:
            rows = [
                (each.id, distance(to_micros(each.due), page.now), *_cells(each)[1:])
                for each in found
            ]
            output.print_table(_COLUMNS, rows, drop=_DROPPED)
        shown = "" if page.total == Count(len(found)) else f", {len(found)} shown (--limit)"
        click.echo(f"{page.total} pending{shown}")
        click.echo(output.plain(waiting_text(page.waiting, page.queue)))

    document = {
        "total": page.total.number,
        **({} if page.total.exact else {"total_is_exact": False}),
        "waiting": page.waiting,
        "timeouts": [_document(each) for each in found],
    }
    shared.show(document, for_people)


def _show_counts(
    shared: Shared, count_by: str, counts: "Counter[str | None]", total: Count, form: str
) -> None:
    counted = counts.total()
    rows = counts.most_common()
    document = {
        "total": total.number,
        **({} if total.exact else {"total_is_exact": False}),
        "counted": counted,
        "by": count_by,
        "counts": [{count_by: name, "count": count} for name, count in rows],
    }

    def for_people() -> None:
        if form == "tsv":
            output.print_tsv([count_by, "count"], rows)
            return
        if rows:
            output.print_table([count_by, "count"], rows)
        cut = "" if total == Count(counted) else f", the earliest {counted} counted (--limit)"
        click.echo(f"{total} pending{cut}")

    shared.show(document, for_people)


def _counted(views: "Iterable[TimeoutView]", count_by: str) -> "Counter[str | None]":
    by_type = count_by == "type"
    return Counter(each.message_type if by_type else each.destination for each in views)


def _cells(view: "TimeoutView") -> tuple[object, ...]:
    return (
        view.id,
        output.shown_time(view.due),
        view.destination,
        view.message_type,
        view.saga_id,
        view.attempts,
        view.size,
    )


def _document(view: "TimeoutView") -> dict[str, Any]:
    return {
        "id": view.id,
        "due": output.shown_time(view.due),
        "destination": view.destination,
        "type": view.message_type,
        "saga": view.saga_id,
        "message_id": view.message_id,
        "attempts": view.attempts,
        "bytes": view.size,
    }
