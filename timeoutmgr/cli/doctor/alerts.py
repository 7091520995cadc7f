"""Alerts: findings about the vital signs of an endpoint, by limits. Pure functions."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import click

from timeoutmgr.cli.doctor.findings import fail, ok, warn
from timeoutmgr.cli.doctor.vitals import QueueVitals, StoreVitals
from timeoutmgr.cli.options import Duration, bundled, option
from timeoutmgr.contracts.reports import Finding, Level
from timeoutmgr.message.instants import duration_micros, span
from timeoutmgr.resilience.breakers import BreakerState

# --- limits beyond which ``doctor`` and ``status`` fail ---------------------------------------

MAX_OVERDUE: Final = timedelta(seconds=60)
MAX_UNSTORED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Tolerated amount of each fault.

    *min_processes* is None to require one process if timeouts or messages wait.
    """

    max_overdue: timedelta = MAX_OVERDUE
    max_errors: int = 0
    max_unstored: int = MAX_UNSTORED
    min_processes: int | None = None


thresholds: Final = bundled(
    "limits",
    Thresholds,
    option(
        "--max-overdue",
        type=Duration(),
        default=f"{MAX_OVERDUE.seconds}s",
        help="Time by which a timeout may be overdue: 90, 2m, 1h30m, PT2M.",
    ),
    option(
        "--max-errors",
        type=click.IntRange(min=0),
        default=0,
        help="Number of messages that may lie in the error queue.",
    ),
    option(
        "--max-unstored",
        type=click.IntRange(min=0),
        default=MAX_UNSTORED,
        help="Number of messages that may wait to be stored while a process lives.",
    ),
    option(
        "--min-processes",
        type=click.IntRange(min=0),
        help="Number of processes that must live. Without it: 1, if timeouts or messages wait.",
    ),
)
"""Add the options of the limits; the command gets them as ``limits``."""


_RUN: Final = "start a process with `timeoutmgr run`"


def alerts(
    store: StoreVitals | None, queues: QueueVitals | None, limits: Thresholds
) -> Iterator[Finding]:
    """Yield a finding for each vital sign; None stands for a part that was not read."""
    if store is not None:
        yield _overdue(store, limits)
        yield _processes(store, queues, limits)
        yield from _breakers(store)
        yield from _senders(store)
        yield from _deserted(store)
        yield from _pauses(store)
    if queues is not None:
        yield from _errors(queues, limits)
        yield from _unstored(queues, store, limits)


def _overdue(store: StoreVitals, limits: Thresholds) -> Finding:
    late = 0 if store.earliest is None else store.now - store.earliest
    allowed = duration_micros(limits.max_overdue)
    if late <= allowed:
        return ok("overdue", f"no timeout is overdue by more than {span(allowed)}")
    count = "timeouts are" if store.overdue is None else f"{store.overdue} timeouts are"
    first = store.first
    which = "" if first is None else f" (id {first.id}, for {first.destination!r})"
    return fail(
        "overdue",
        f"{count} overdue by more than {span(allowed)}, the oldest by {span(late)}{which}",
        "check that a process lives and that its log names no error; --max-overdue sets the limit",
    )


def _senders(store: StoreVitals) -> Iterator[Finding]:
    names = [process.get("senders_ahead") for process in store.processes or ()]
    for senders in sorted({str(each) for each in names if each}):
        yield warn(
            "sender clocks",
            f"clocks of senders are ahead of the store's: {senders}",
            "set their clocks (NTP): relative delays that they resolve end as much too late",
        )


def _processes(store: StoreVitals, queues: QueueVitals | None, limits: Thresholds) -> Finding:
    check = "processes"
    if store.processes is None:
        return ok(check, "not checked: processes leave heartbeats only with a timeout manager")
    live = len(store.processes)
    waits = store.earliest is not None or (queues is not None and queues.waiting > 0)
    needed = limits.min_processes if limits.min_processes is not None else int(waits)
    if live < needed:
        text = f"{live} live, at least {needed} needed"
        if limits.min_processes is None:
            text = "no process lives, and timeouts or messages wait for it"
        return fail(check, text, _RUN)
    return ok(check, f"{live} live" if live else "none lives, and nothing waits for it")


def _breakers(store: StoreVitals) -> Iterator[Finding]:
    for process in store.processes or ():
        for name, state in process["breakers"].items():
            if state != BreakerState.DISARMED:
                yield Finding(
                    level=Level.FAIL if state == BreakerState.TRIGGERED else Level.WARN,
                    check="breakers",
                    text=f"{name} of process {process['pid']} on {process['host']} is {state}",
                    remedy="restore the connection that it watches; the log of the process "
                    "names the error",
                )


def _deserted(store: StoreVitals) -> Iterator[Finding]:
    for each in store.deserted:
        when = span(each.earliest - store.now)
        yield fail(
            "other endpoints",
            f"endpoint {each.endpoint!r} has timeouts here and no live process; the first "
            + (f"is due in {when}" if each.earliest >= store.now else f"is overdue by {when}"),
            f"run an endpoint named {each.endpoint!r} until they are sent, or remove it "
            "with `timeoutmgr uninstall`",
        )


def _pauses(store: StoreVitals) -> Iterator[Finding]:
    for each in store.pauses:
        end = "until a resume" if each.until is None else f"for {span(each.until - store.now)} more"
        what = "every destination" if each.destination is None else repr(each.destination)
        name = "--endpoint" if each.destination is None else shlex.quote(each.destination)
        yield warn(
            "paused",
            f"{what} is paused {end}, {each.parked} timeouts are parked; by {each.actor}: "
            f"{each.reason}",
            f"end the pause with `timeoutmgr resume {name}`",
        )


def _errors(queues: QueueVitals, limits: Thresholds) -> Iterator[Finding]:
    if queues.errors is None:
        return
    if queues.errors <= limits.max_errors:
        yield ok("error queue", f"{queues.errors} messages in {queues.error_queue!r}")
        return
    yield fail(
        "error queue",
        f"{queues.errors} messages in {queues.error_queue!r}; the limit is {limits.max_errors}",
        "look at them with `timeoutmgr errors list`; retry or delete them; "
        "--max-errors sets the limit",
    )


def _unstored(
    queues: QueueVitals, store: StoreVitals | None, limits: Thresholds
) -> Iterator[Finding]:
    if queues.unstored is None:
        return
    # None: processes leave no heartbeats. A limit of 0: no process is expected.
    live = None if store is None or store.processes is None else len(store.processes)
    deserted = live == 0 and limits.min_processes != 0
    if queues.unstored <= (0 if deserted else limits.max_unstored):
        yield ok("unstored", f"{queues.unstored} messages wait for the timeout manager")
        return
    yield fail(
        "unstored",
        f"{queues.unstored} messages wait for the timeout manager"
        + (", and no process lives" if deserted else f"; the limit is {limits.max_unstored}"),
        _RUN if deserted else "start more processes; --max-unstored sets the limit",
    )
