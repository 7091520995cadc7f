"""``timeoutmgr list``: the pending timeouts."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, Instant, bundled, limit, option
from timeoutmgr.cli.pauses import pause_documents, pause_lines
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.contracts import Count, GroupBy
from timeoutmgr.message.instants import Micros, distance, to_micros
from timeoutmgr.message.routes import TIMEOUTS
from timeoutmgr.transport.queue_view import waiting_text

if TYPE_CHECKING:
    from timeoutmgr.endpoint.timeouts import TimeoutGroups, TimeoutView
    from timeoutmgr.message.labels import Labels

_LISTED: Final = 100
_COUNTED: Final = 10_000
_TSV: Final = ("id", "due", "destination", "type", "saga", "attempts", "bytes")
_COLUMNS: Final = ("id", "due", "at", *_TSV[2:])
_DROPPED: Final = ("bytes", "attempts", "at", "saga", "type", "destination", "failed with")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSelection:
    """The options that select pending timeouts."""

    saga_id: str | None
    destination: str | None
    due_from: datetime | None
    due_before: datetime | None
    labels: "Labels"
    message_type: str | None
    id_prefix: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFlags:
    """The options that shape the list."""

    limit: int | None
    form: str
    count_by: str | None
    after: str | None
    exact: bool

    @property
    def most(self) -> int:
        """The maximum number of timeouts to list or to count."""
        return self.limit or (_LISTED if self.count_by is None else _COUNTED)


label_option: Final = partial(
    option,
    "--label",
    "labels",
    metavar="NAME=VALUE",
    multiple=True,
    callback=lambda _context, _parameter, given: labels_given(given),
)


def labels_given(texts: Sequence[str]) -> "Labels":
    """Return *texts* ``name=value`` as labels. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.UsageError(f"--label {text!r:.80} is not NAME=VALUE")
        found.setdefault(name, []).append(value)
    return found


selects_timeouts: Final = bundled(
    "selection",
    TimeoutSelection,
    option("--saga", "saga_id", help="Saga of the timeouts."),
    option("--destination", help="Destination queue of the timeouts."),
    option("--from", "due_from", type=Instant(), help="Earliest due time, in ISO 8601."),
    option(
        "--to",
        "due_before",
        type=Instant(),
        help="Time before which the timeouts are due, in ISO 8601.",
    ),
    label_option(help="Label of the timeouts; give it several times for timeouts with all labels."),
    option("--type", "message_type", help="Full name of the message type of the timeouts."),
    option("--id-prefix", help="First characters of the ids of the timeouts."),
)


@click.command("list", cls=Command)
@selects_timeouts
@bundled(
    "flags",
    ListFlags,
    limit(
        f"Maximum number of timeouts to list, {_LISTED} by default; of timeouts to count by "
        f"--count-by, {_COUNTED:,} by default."
    ),
    option(
        "--format",
        "form",
        type=click.Choice(["table", "tsv", "json"]),
        default="table",
        help="Form of the output; json is the same as --json.",
    ),
    option(
        "--count-by",
        type=click.Choice(["destination", "type"]),
        help="Print numbers of timeouts by this property, instead of the timeouts.",
    ),
    option(
        "--after", help="Cursor at which an earlier search ended; earlier timeouts are left out."
    ),
    option(
        "--count", "exact", is_flag=True, help="Exact total, however many timeouts must be read."
    ),
)
def list_timeouts(shared: Shared, selection: TimeoutSelection, flags: ListFlags) -> None:
    """List pending timeouts by due time.

    Parked timeouts come last; a timeout that waits for another attempt is listed at the time of
    that attempt. A narrow terminal shows whole ids, relative due times, and as many columns as fit.
    --count-by counts the earliest timeouts, up to --limit. A total with a plus sign is a lower
    bound; --count gives the exact total. A search or a count that takes too long ends before the
    last timeout, and prints the cursor with which to continue.

    Examples:
      timeoutmgr list --saga order-7
      timeoutmgr list --label tenant=acme
      timeoutmgr list --count-by destination
      timeoutmgr list --destination billing --from 2030-01-01T00:00Z --limit 1000 --format tsv
    """
    if shared.json and flags.form == "tsv":
        raise click.UsageError("--json and --format tsv exclude each other")
    shared.json = shared.json or flags.form == "json"
    which = asdict(selection)
    with opened(shared, with_queues=False) as endpoint:
        timeouts = endpoint.timeouts
        total = Count(timeouts.count(**which)) if flags.exact else timeouts.count_in_bounds(**which)
        if flags.count_by is not None:
            by = GroupBy(flags.count_by)
            groups = timeouts.groups(by, **which, limit=flags.most, after=flags.after)
            _show_counts(shared, by, groups, total, flags.form)
            return
        page = timeouts.list_in_bounds(**which, limit=flags.most, after=flags.after)
        waiting, queue = timeouts.waiting(), endpoint.name + TIMEOUTS
        now, pauses = timeouts.now(), pause_documents(timeouts.pauses())
    listing = _Listing(page.timeouts, page.searched_to, total, now, waiting, queue, pauses)
    _show(shared, listing, flags.form)


@dataclass(frozen=True, slots=True)
class _Listing:
    """Timeouts of a list of *total*, at *now* of the store, and messages not stored yet."""

    found: "Sequence[TimeoutView]"
    searched_to: str | None
    total: Count
    now: Micros
    waiting: int | None
    queue: str
    pauses: Sequence[dict[str, Any]] = ()


def _show(shared: Shared, page: _Listing, form: str) -> None:
    found = page.found

    def for_people() -> None:
        if form == "tsv":
            rows = [_document(each) for each in found]
            output.print_tsv(_TSV, [[row[column] for column in _TSV] for row in rows])
            _say_how_to_go_on(page.searched_to, err=True)
            return
        if found:
            _print_table(found, page.now)
        shown = "" if page.total == Count(len(found)) else f", {len(found)} shown"
        by_limit = " (--limit)" if shown and page.searched_to is None else ""
        click.echo(f"{page.total} pending{shown}{by_limit}")
        _say_how_to_go_on(page.searched_to)
        click.echo(output.plain(waiting_text(page.waiting, page.queue)))
        for line in pause_lines(page.pauses):
            click.echo(line)

    document = {
        "total": page.total.number,
        **({} if page.total.exact else {"total_is_exact": False}),
        **_searched(page.searched_to),
        "waiting": page.waiting,
        **({"pauses": list(page.pauses)} if page.pauses else {}),
        "timeouts": [_document(each) for each in found],
    }
    shared.show(document, for_people)


def _print_table(found: "Sequence[TimeoutView]", now: Micros) -> None:
    """Print *found*; messages that wait for a retry add the reason as the last column."""
    rows = [
        _document(each)
        | {
            "due": distance(to_micros(each.due), now),
            "at": output.shown_time(each.due),
            "failed_with": _failure(each),
        }
        for each in found
    ]
    columns = (*_COLUMNS, "failed with") if any(each.exception for each in found) else _COLUMNS
    output.print_documents(columns, rows, drop=_DROPPED)


def _failure(view: "TimeoutView") -> str | None:
    if view.exception is None:
        return None
    return output.short(f"{view.exception.rpartition('.')[2]}: {view.reason}")


def _show_counts(
    shared: Shared, by: GroupBy, groups: "TimeoutGroups", total: Count, form: str
) -> None:
    counted, count_by = sum(groups.counts.values()), by.value
    rows = Counter(groups.counts).most_common()
    document = {
        "total": total.number,
        **({} if total.exact else {"total_is_exact": False}),
        **_searched(groups.searched_to),
        "counted": counted,
        "by": count_by,
        "counts": [{count_by: name, "count": count} for name, count in rows],
    }

    def for_people() -> None:
        if form == "tsv":
            output.print_tsv([count_by, "count"], rows)
            _say_how_to_go_on(groups.searched_to, err=True)
            return
        if rows:
            output.print_table([count_by, "count"], rows)
        cut = "" if total == Count(counted) else f", the earliest {counted} counted"
        by_limit = " (--limit)" if cut and groups.searched_to is None else ""
        click.echo(f"{total} pending{cut}{by_limit}")
        _say_how_to_go_on(groups.searched_to)

    shared.show(document, for_people)


def _searched(searched_to: str | None) -> dict[str, str]:
    return {} if searched_to is None else {"searched_to": searched_to}


def _say_how_to_go_on(searched_to: str | None, *, err: bool = False) -> None:
    if searched_to is not None:
        cursor = shlex.quote(output.plain(searched_to))
        click.echo(
            f"the search ended before the last timeout; go on with --after {cursor}", err=err
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
        **({"labels": list(view.labels)} if view.labels else {}),
        **({"exception": view.exception, "reason": view.reason} if view.exception else {}),
    }
