"""A bulk shift beside a running drain, and the answers of a store with millions of rows.

For the shift: its rate, its undo, and the lateness of the drain beside it. Its server writes no
automatic checkpoints, like a server whose max_wal_size is large enough for such a run, and has a
quarter of the memory as buffers. For the answers: 95th percentiles of counts, pages and statistics,
also with a filter that matches nothing.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from statistics import median

from harness import machine, pending
from harness.destination import WARM, Destination
from harness.figures import say
from harness.messages import DAY, SECOND, delayed, fill, micros
from harness.private import private_postgres
from harness.report import Report, options, parsed
from harness.servers import connect, servers
from harness.workers import Spec, Worker, installed

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import GroupBy, LoadWindow, TimeoutFilter
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange, BulkRun
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.persistence import SqlPersistence

RATE = 1_000
_LEAD = 3 * SECOND
_LOADED = 10_000
"""Minimum timeouts that are stored per second, before the first is due."""
_BY = ChangedBy(channel="api", actor="benchmark", reason="benchmark")
_HISTORY = f"""
INSERT INTO {pending.PREFIX}timeout_history
    (id, event, at, due, endpoint, destination, attempt, node)
SELECT gen_random_uuid()::text, 'dispatched', %(at)s - n * 1000, %(at)s - n * 1000 - 5000,
    %(endpoint)s, 'destination', 0, 'node'
FROM generate_series(1, %(count)s::bigint) n
"""
_ANSWERS = 40
_QUARTER = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') // 4 // 2**20}MB"
"""A quarter of the memory, as PostgreSQL advises: a million timeouts with their indexes fit in."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pending", type=int, help="pending timeouts (10,000,000; quick 200,000)")
    parser.add_argument("--shifted", type=int, help="timeouts to shift (1,000,000; quick 50,000)")
    parser.add_argument("--only", choices=["answers", "shift"])
    given = parsed(parser, count=20, quick=4)
    given.pending = given.pending or (200_000 if given.quick else 10_000_000)
    given.shifted = given.shifted or (50_000 if given.quick else 1_000_000)
    report = Report("Bulk runs and answers", {"seconds": given.count})
    with servers("postgres", "rabbitmq") as running:
        report.settings |= running.settings
        if given.only in (None, "shift"):
            with private_postgres(shared_buffers=_QUARTER) as server:
                settings = machine.postgres(server.url).items()
                own = "; ".join(f"{name} {value}" for name, value in settings)
                report.notes.append(f"The server of the shift: {own}.")
                store = server.create("bulk")
                with installed(running["rabbitmq"], store, profile=given.profile) as spec:
                    shift(spec, given, report)
        if given.only in (None, "answers"):
            store = running["postgres"]
            with installed(running["rabbitmq"], store, profile=given.profile) as spec:
                answers(spec, given, report)
    report.give(given)


def shift(spec: Spec, given: argparse.Namespace, report: Report) -> None:
    """Shift and undo beside a drain, and compare its lateness with the same drain alone."""
    alone, beside, rates, undone = [], [], [], []
    for number in range(given.rounds):
        pending.clear(spec.persistence)
        _checkpoint(spec)
        alone.append(drain(spec, given.count, lambda: None))
        pending.clear(spec.persistence)
        pending.load(spec.persistence, pending.far_future(spec.name, given.shifted))
        _checkpoint(spec)
        found: list[float] = []
        beside.append(drain(spec, given.count, lambda found=found: found.extend(shifted(spec))))
        rates.append(found[0])
        undone.append(found[1])
        say(
            f"round {number + 1}: {found[0]:,.0f} shifted a second, {found[1]:,.0f} undone; p99 "
            f"{alone[-1]:.1f} ms alone, {beside[-1]:.1f} ms beside"
        )
    report.bar(f"timeouts shifted a second, of {given.shifted:,}", median(rates), 5_000)
    report.bar("timeouts undone a second", median(undone), 5_000)
    ratio = median(beside) / median(alone)
    report.bar("p99 lateness, beside the shift and alone", ratio, 1.5, at_most=True)
    report.notes.append(f"p99 alone: {median(alone):.1f} ms.")


def drain(spec: Spec, seconds: int, work: Callable[[], None]) -> float:
    """Return the p99 lateness of a drain at RATE, while *work* runs."""
    count = RATE * (WARM + seconds)
    thread = threading.Thread(target=work)
    with Worker(spec) as worker, Destination(spec.transport, spec.destination, count + 1) as there:
        due = micros() + _LEAD + count * SECOND // _LOADED
        waiting = pending.Pending(
            endpoint=spec.name,
            destination=spec.destination,
            count=count,
            due=due,
            over=(WARM + seconds) * SECOND,
        )
        pending.load(spec.persistence, waiting)
        assert micros() < due, "the first are late before the drain begins"
        # Timeouts were stored without the queue: this message wakes the poller.
        fill(spec.transport, [delayed(spec.name, spec.destination, due)])
        thread.start()
        worker.measure("timeouts_dispatched", RATE)
        late = there.arrivals().lateness(since=due + WARM * SECOND)
        thread.join()
    return late[int(0.99 * (len(late) - 1))]


def _checkpoint(spec: Spec) -> None:
    """Make the server write the loaded rows to the disk now, and not during the drain."""
    with connect(spec.persistence) as sql:
        sql.execute("CHECKPOINT")


def shifted(spec: Spec) -> tuple[float, float]:
    """Shift all timeouts that are due from tomorrow on, and undo the shift; return both rates."""
    with closing(SqlPersistence(spec.persistence)) as persistence:
        store = persistence.timeouts(spec.name, SystemClock())
        bulk = Timeouts(store, lambda due: None).bulk
        change = BulkChange(action=BulkAction.SHIFT, by=2 * 3_600 * SECOND)
        run = store.plan(TimeoutFilter(due_from=micros() + DAY // 2), change, _BY).run
        return _rate(bulk.apply, run), _rate(bulk.undo, run)


def _rate(work: Callable[..., BulkRun], run: BulkRun) -> float:
    began = time.monotonic()
    done = work(run.id, by=_BY)
    assert done.changed == run.selected, f"{done.left} were left"
    return done.selected / (time.monotonic() - began)


def answers(spec: Spec, given: argparse.Namespace, report: Report) -> None:
    """Measure queries with many pending rows and twice as many rows of history."""
    pending.clear(spec.persistence)
    pending.load(spec.persistence, pending.far_future(spec.name, given.pending))
    with connect(spec.persistence) as connection:
        values = {"endpoint": spec.name, "at": micros(), "count": 2 * given.pending}
        connection.execute(_HISTORY, values)
        connection.execute(f"ANALYZE {pending.PREFIX}timeout_history")
    with closing(SqlPersistence(spec.persistence)) as persistence:
        store = persistence.timeouts(spec.name, SystemClock())
        nothing = TimeoutFilter(destination="nobody")
        asked: dict[str, Callable[[], object]] = {
            "statistics": store.statistics,
            "count of all": lambda: store.count_in_bounds(TimeoutFilter()),
            "count of a destination": lambda: store.count_in_bounds(
                TimeoutFilter(destination=f"{spec.name}.destination")
            ),
            "count of nothing": lambda: store.count_in_bounds(nothing),
            "page of nothing": lambda: store.list_in_bounds(nothing),
            "page of all": lambda: store.list_in_bounds(TimeoutFilter()),
            **{
                f"groups by {by}": lambda by=by: store.groups(TimeoutFilter(), by, limit=10_000)
                for by in GroupBy
            },
            "load of a year": lambda: store.load(LoadWindow(micros(), 3 * DAY, 122)),
            "overdue": lambda: store.overdue(micros()),
            "in flight": store.in_flight,
            "pauses": store.pauses,
        }
        for name, ask in asked.items():
            value = _p95(ask)
            say(f"{name}: {value:.1f} ms")
            report.bar(f"{name}, ms p95 of {given.pending:,} pending", value, 100, at_most=True)


def _p95(ask: Callable[[], object]) -> float:
    ask()
    took = []
    for _ in range(_ANSWERS):
        began = time.monotonic()
        ask()
        took.append((time.monotonic() - began) * 1_000)
    return sorted(took)[int(0.95 * (_ANSWERS - 1))]


if __name__ == "__main__":
    main()
