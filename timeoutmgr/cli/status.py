"""``timeoutmgr status``: the state of the endpoint."""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.doctor.alerts import Thresholds, thresholds
from timeoutmgr.cli.doctor.dead_letter_node import node_document
from timeoutmgr.cli.doctor.delay_levels import native_status
from timeoutmgr.cli.exits import Exit, exit_of
from timeoutmgr.cli.options import Command, every, option
from timeoutmgr.cli.pauses import pause_documents, pause_lines
from timeoutmgr.cli.shared import Shared, assembled, require_installed
from timeoutmgr.contracts import CountsDelayed, HasLayout
from timeoutmgr.contracts.pauses import PausesDispatch
from timeoutmgr.errors import SchemaMissing, StorageUnavailable, TransportUnavailable
from timeoutmgr.message.redaction import masked
from timeoutmgr.message.routes import TIMEOUTS

if TYPE_CHECKING:
    from timeoutmgr.contracts.reports import Finding
    from timeoutmgr.endpoint.assembly import AssembledEndpoint
    from timeoutmgr.features.delayed_delivery import StoreStart

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Report:
    """The state of an endpoint: the document to print, its alerts, and their exit code."""

    document: dict[str, Any]
    alerts: "Sequence[Finding]"
    code: Exit


@click.command(cls=Command)
@option("--watch", is_flag=True, help="Repeat the report until Ctrl-C.")
@every("Interval of --watch: 500ms, 2, 1m.")
@thresholds
def status(shared: Shared, watch: bool, every: timedelta, limits: Thresholds) -> Exit:
    """Show timeouts, lateness, queues, dead letters, and the live processes.

    If some parts cannot be reached, they are named and the other parts shown; the exit code is then
    5, or 4 if an installation is missing. Alerts come last, by the same limits as in doctor; the
    exit code is 1 if any line is fail. Lateness is measured over the most recent dispatches, in
    seconds. With --watch the exit code is that of the last report.

    Examples:
      timeoutmgr status
      timeoutmgr status --watch --every 5s
      timeoutmgr --json status --max-overdue 5m --max-errors 10
    """
    with assembled(shared) as parts:
        report = _report(parts, limits)
        _show(shared, report)
        if not watch:
            return report.code
        try:
            while True:
                _PAUSE.wait(every.total_seconds())
                report = _report(parts, limits)
                if not shared.json:
                    click.clear()  # only on a terminal
                _show(shared, report)
        except KeyboardInterrupt:
            return report.code


_PAUSE: Final = threading.Event()
"""Never set: a wait on it ends after its time, or by Ctrl-C."""


def _show(shared: Shared, report: _Report) -> None:
    shared.show(report.document, lambda: _print(report.document, report.alerts))


def _report(parts: "AssembledEndpoint", limits: Thresholds) -> _Report:
    from timeoutmgr.cli.doctor.alerts import alerts
    from timeoutmgr.cli.doctor.vitals import queue_vitals, store_vitals
    from timeoutmgr.contracts.reports import Level

    problems: dict[str, Exit] = {}

    def tried(read: Callable[[], Result]) -> Result | None:
        try:
            return read()
        except (StorageUnavailable, TransportUnavailable, SchemaMissing) as error:
            problems[masked(str(error))] = exit_of(error)
            return None

    document: dict[str, Any] = {
        "endpoint": parts.settings.name,
        "time": output.shown_time(parts.settings.clock.now()),
        "timeouts": tried(lambda: _timeouts(parts)),
        "waiting": None,
        "native": tried(lambda: native_status(parts)),
        "queues": tried(lambda: _queues(parts)),
        "dead_letters": tried(lambda: node_document(parts)),
        "processes": tried(lambda: _processes(parts)),
    }
    store = tried(lambda: store_vitals(parts, limits.max_overdue))
    queues = tried(lambda: queue_vitals(parts))
    bad = [each for each in alerts(store, queues, limits) if each.level is not Level.OK]
    # None while the queues cannot be reached; "unavailable" has the reason.
    document["waiting"] = (document["queues"] or {}).get(parts.settings.name + TIMEOUTS)
    document["alerts"] = [each.document() for each in bad]
    document["unavailable"] = list(problems)
    failed = any(each.level is Level.FAIL for each in bad)
    # A missing installation is worse: waiting does not help.
    code = min(problems.values(), default=Exit.FAILED if failed else Exit.OK)
    return _Report(document, bad, code)


def _timeouts(parts: "AssembledEndpoint") -> dict[str, Any] | None:
    if parts.features.delayed is not None:
        return _delayed(parts.features.delayed)
    store, persistence = parts.features.store, parts.settings.persistence
    if store is None or persistence is None:
        return None
    require_installed(persistence)
    found = store.statistics()
    layout = persistence.layout() if isinstance(persistence, HasLayout) else None
    now = store.now()
    pauses = store.pauses() if isinstance(store, PausesDispatch) else ()
    next_due = store.next_due()
    if next_due in [each.place for each in pauses if each.until is None]:
        next_due = None  # only parked timeouts are left
    overdue = found.oldest_due is not None and found.oldest_due < now
    return {
        "pending": found.pending,
        **({"at_least": ", ".join(sorted(found.at_least))} if found.at_least else {}),
        "due": found.due,
        "claimed": found.claimed,
        "next_due": output.shown_time(next_due),
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
        "layout": None if layout is None else layout.text,
        **({"pauses": pause_documents(pauses)} if pauses else {}),
    }


def _delayed(delayed: "StoreStart") -> dict[str, Any]:
    delayed.start(install=False)
    store = delayed.store
    return {
        "pending": store.count() if isinstance(store, CountsDelayed) else None,
        "next_due": output.shown_time(store.next()),
    }


def _queues(parts: "AssembledEndpoint") -> dict[str, int | None]:
    require_installed(parts.settings.transport)
    with closing(parts.settings.transport.session()) as session:
        missing = session.missing_queues(parts.queues)
        return {queue: None if queue in missing else session.count(queue) for queue in parts.queues}


def _processes(parts: "AssembledEndpoint") -> list[dict[str, Any]] | None:
    from timeoutmgr.cli.doctor.vitals import live_processes

    store, persistence = parts.features.store, parts.settings.persistence
    if store is None or persistence is None:
        return None
    require_installed(persistence)
    # Heartbeats are written with the store's clock.
    return live_processes(store, store.now())


def _print(document: dict[str, Any], bad: "Sequence[Finding]") -> None:
    lines: list[tuple[str, object]] = [("endpoint", document["endpoint"])]
    pauses: list[dict[str, Any]] = (document["timeouts"] or {}).get("pauses", [])
    for name, value in (document["timeouts"] or {}).items():
        if name == "pauses":
            continue
        shown = _joined(value) if isinstance(value, dict) else value
        lines.append((name.replace("_", " "), shown))
    if document["waiting"] is not None:
        lines.append(("waiting to be stored", document["waiting"]))
    for name, value in (document["native"] or {}).items():
        shown = _joined(value) if isinstance(value, dict) else value
        lines.append((name.replace("_", " "), shown))
    output.print_pairs(lines)
    for line in pause_lines(pauses):
        click.echo(line)
    if document["queues"]:
        click.echo()
        rows = [
            (name, "missing: run `timeoutmgr install`" if count is None else count)
            for name, count in document["queues"].items()
        ]
        output.print_table(["queue", "messages"], rows)
    if document["dead_letters"] is not None:
        click.echo()
        _print_node(document["dead_letters"])
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
    for alert in bad:
        output.print_error(output.plain(alert.line()))
    for problem in document["unavailable"]:
        output.print_error(f"unavailable: {problem}")


def _print_node(node: dict[str, Any]) -> None:
    click.echo(output.plain(f"dead letters of node {node['node']}"))
    piles = {name: node[name] for name in ("deadletter", "deadxact", "of_applications")}
    rows: list[tuple[object, ...]] = [
        (name.replace("_", " "), pile["count"], pile["oldest"]) for name, pile in piles.items()
    ]
    rows += [(name, node[name], None) for name in ("awaiting", "journal")]
    output.print_table(["queue", "messages", "oldest"], rows)
    for name, share in node["bytes"].items():
        quota = "no quota" if share["quota"] is None else f"a quota of {share['quota']}"
        click.echo(f"{name.replace('_', ' ')}: {share['used']} bytes, {quota}")


def _joined(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
