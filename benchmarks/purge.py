"""Rate of the removal of old rows beside a steady dispatch, and the dispatch's lateness."""

import time
from statistics import median

from harness import pending
from harness.destination import WARM, Destination
from harness.figures import say
from harness.messages import DAY, SECOND, delayed, fill, micros
from harness.report import Report, options, parsed
from harness.servers import connect, servers
from harness.workers import Spec, Worker, installed

RATE = 1_000
_OLD = 20_000
"""Old timeouts for each second: more than can be removed, so that some remain until the end."""
_APART = SECOND // RATE
"""Microseconds between two old rows, as if they had been dispatched at RATE. If they were closer
together, the lag would grow however many are removed, and housekeeping would hurry to the end."""
_LEAD = 3 * SECOND
_KEYS = f"""
INSERT INTO {pending.PREFIX}timeout_keys (endpoint, id, due, version, state, closed_at)
SELECT %(endpoint)s, gen_random_uuid()::text, %(at)s + n * {_APART}, 0, 'dispatched',
    %(at)s + n * {_APART}
FROM generate_series(1, %(count)s) n
"""
_HISTORY = f"""
INSERT INTO {pending.PREFIX}timeout_history
    (id, event, at, due, endpoint, destination, attempt, node)
SELECT id, state, closed_at, due, endpoint, 'destination', 0, 'node'
FROM {pending.PREFIX}timeout_keys WHERE closed_at IS NOT NULL
"""
_LEFT = f"SELECT count(*) FROM {pending.PREFIX}timeout_keys WHERE closed_at < %(before)s"


def main() -> None:
    given = parsed(options(__doc__), count=20, quick=4)
    with servers("postgres", "rabbitmq") as running:
        report = Report("Purge", {"seconds": given.count, **running.settings})
        with installed(running["rabbitmq"], running["postgres"], profile=given.profile) as spec:
            alone, beside, rates = [], [], []
            for number in range(given.rounds):
                late, _ = run(spec, given.count, old=0)
                alone.append(late)
                late, rate = run(spec, given.count, old=_OLD * given.count)
                beside.append(late)
                rates.append(rate)
                say(
                    f"round {number + 1}: p99 {alone[-1]:.1f} ms alone, {late:.1f} ms beside "
                    f"{rate:,.0f} old timeouts removed a second"
                )
        report.bar(f"old timeouts removed a second, beside {RATE:,}/s", median(rates), 3_000)
        ratio = median(beside) / median(alone)
        report.bar("p99 lateness, beside the removal and alone", ratio, 1.5, at_most=True)
        report.notes.append(f"p99 alone: {median(alone):.1f} ms.")
    report.give(given)


def run(spec: Spec, seconds: int, *, old: int) -> tuple[float, float]:
    """Return the p99 lateness at RATE, and the *old* timeouts removed a second meanwhile."""
    pending.clear(spec.persistence)
    _load_old(spec, old)
    count = RATE * (WARM + seconds)
    with Worker(spec) as worker, Destination(spec.transport, spec.destination, count + 1) as there:
        due = micros() + _LEAD
        waiting = pending.Pending(
            endpoint=spec.name,
            destination=spec.destination,
            count=count,
            due=due,
            over=(WARM + seconds) * SECOND,
        )
        pending.load(spec.persistence, waiting)
        # Timeouts were stored without the queue: this message wakes the poller.
        fill(spec.transport, [delayed(spec.name, spec.destination, due)])
        worker.measure("timeouts_dispatched", RATE)
        left, began = _left(spec), time.monotonic()
        late = there.arrivals().lateness(since=due + WARM * SECOND)
        removed, took = left - _left(spec), time.monotonic() - began
    return late[int(0.99 * (len(late) - 1))], removed / took


def _load_old(spec: Spec, count: int) -> None:
    values = {"endpoint": spec.name, "at": micros() - 40 * DAY, "count": count}
    with connect(spec.persistence) as connection:
        connection.execute(_KEYS, values)
        connection.execute(_HISTORY)
        connection.execute(f"ANALYZE {pending.PREFIX}timeout_keys, {pending.PREFIX}timeout_history")


def _left(spec: Spec) -> int:
    with connect(spec.persistence) as connection:
        row = connection.execute(_LEFT, {"before": micros() - 30 * DAY}).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    main()
