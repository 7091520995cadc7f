"""``timeoutmgr status``: how the endpoint stands."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common
from timeoutmgr.cli.shared import Shared, assembled
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable

if TYPE_CHECKING:
    from timeoutmgr.assembly import Parts

Result = TypeVar("Result")


@click.command(cls=Command)
@common(environment=False)
@click.pass_obj
def status(shared: Shared) -> Exit:
    """Show timeouts, lateness, queues, and the processes that live, with their breakers.

    What cannot be reached is named, the rest is shown all the same; the exit code is then 5.
    Lateness is that of the most recent dispatches, in seconds.

    Examples:
      timeoutmgr status
      timeoutmgr --json status
    """
    problems: list[str] = []

    def tried(look: Callable[[], Result]) -> Result | None:
        try:
            return look()
        except (StorageUnavailable, TransportUnavailable) as error:
            problems.append(output.masked(str(error)))
            return None

    with assembled(shared) as parts:
        document: dict[str, Any] = {
            "endpoint": parts.settings.name,
            "time": output.shown_time(parts.settings.clock.now()),
            "timeouts": tried(lambda: _timeouts(parts)),
            "queues": tried(lambda: _queues(parts)),
            "processes": tried(lambda: _processes(parts)),
            "unavailable": problems,
        }
    shared.show(document, lambda: _print(document))
    return Exit.UNAVAILABLE if problems else Exit.OK


def _timeouts(parts: "Parts") -> dict[str, Any] | None:
    store, persistence = parts.context.store, parts.settings.persistence
    if store is None or persistence is None:
        return None
    persistence.check()
    found = store.statistics()
    now = store.now()
    overdue = found.oldest_due is not None and found.oldest_due < now
    return {
        "pending": found.pending,
        "due": found.due,
        "claimed": found.claimed,
        "next_due": output.shown_time(store.next_due()),
        "oldest_due": output.shown_time(found.oldest_due),
        "oldest_overdue_seconds": output.shown_seconds(now - (found.oldest_due or now))
        if overdue
        else None,
        "outcomes": dict(found.outcomes),
        "lateness_seconds": {
            "p50": output.shown_seconds(found.lateness_p50),
            "p99": output.shown_seconds(found.lateness_p99),
            "max": output.shown_seconds(found.lateness_max),
        },
    }


def _queues(parts: "Parts") -> dict[str, int | None]:
    parts.settings.transport.check()
    session = parts.settings.transport.session()
    try:
        missing = session.missing_queues(parts.queues)
        return {queue: None if queue in missing else session.count(queue) for queue in parts.queues}
    finally:
        session.close()


def _processes(parts: "Parts") -> list[dict[str, Any]] | None:
    from timeoutmgr.cli.processes import live_processes

    store = parts.context.store
    # Heartbeats are written with the store's clock.
    return None if store is None else live_processes(store, store.now())


def _print(document: dict[str, Any]) -> None:
    lines: list[tuple[str, object]] = [("endpoint", document["endpoint"])]
    for name, value in (document["timeouts"] or {}).items():
        shown = _joined(value) if isinstance(value, dict) else value
        lines.append((name.replace("_", " "), shown))
    output.print_pairs(lines)
    if document["queues"]:
        click.echo()
        rows = [
            (name, "missing: run `timeoutmgr install`" if count is None else count)
            for name, count in document["queues"].items()
        ]
        output.print_table(["queue", "messages"], rows)
    if document["processes"] is not None:
        click.echo()
        for each in document["processes"]:
            click.echo(
                output.plain(
                    f"process {each['pid']} on {each['host']} since {each['started']}, last seen "
                    f"{each['heartbeat']}; breakers: {_joined(each['breakers'])}"
                )
            )
        if not document["processes"]:
            click.echo("no live processes")
    for problem in document["unavailable"]:
        output.print_error(f"unavailable: {problem}")


def _joined(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
