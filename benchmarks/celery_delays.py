"""Cost of durable delays for a Celery app, beside stock Celery: worker memory, sends, lateness."""

import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from harness import machine
from harness.celery_runs import Setting, running
from harness.destination import WARM
from harness.figures import say
from harness.report import Report, options, parsed
from harness.servers import Servers, servers

PENDING = 100_000
QUICK_PENDING = 5_000
SPREAD = 20
"""Seconds over which the tasks for the measurement of lateness are due."""


def main() -> None:
    given = parsed(options(__doc__), count=2_000, quick=300)
    many = QUICK_PENDING if given.quick else PENDING
    with servers("postgres", "rabbitmq") as found:
        settings = {"messages": given.count, "pending": many, **found.settings}
        report = Report("Durable delays of Celery", settings)
        empty, full = memory(found, 0), memory(found, many)
        beside = f"{full:.0f} and {empty:.0f} MiB"
        report.bar(f"RSS, {many:,} pending ÷ none", full / empty, 1.05, at_most=True, beside=beside)
        rates: dict[str, list[float]] = {"stock": [], "sends": [], "batch": []}
        late: dict[bool, list[float]] = {True: [], False: []}
        for number in range(given.rounds):
            rates["stock"].append(rate(found, given.count, is_stock=True))
            rates["sends"].append(rate(found, given.count))
            rates["batch"].append(rate(found, given.count, batch="yes"))
            for is_stock in late:
                late[is_stock].append(lateness(found, given.count, is_stock=is_stock))
            say(f"round {number + 1}: {rates} {late}")
    stock, sends, batch = (median(values) for values in rates.values())
    beside = f"{sends:,.0f}/s and {stock:,.0f}/s"
    report.bar("send ÷ stock's confirmed publish", sends / stock, 0.5, beside=beside)
    report.bar("in batch()", batch / stock, 2, beside=f"{batch:,.0f}/s")
    theirs, ours = median(late[True]), median(late[False])
    beside = f"{ours:.0f} and {theirs:.0f} ms"
    report.bar(
        "lateness p99, less stock's", ours - theirs, 50, at_most=True, unit=" ms", beside=beside
    )
    report.give(given)


@contextmanager
def setting(found: Servers, *, is_stock: bool = False) -> Iterator[Setting]:
    """Yield an app with a new broker and a new database."""
    with tempfile.TemporaryDirectory(prefix="celery-delays-") as folder:
        made = Setting(
            broker=found.another("rabbitmq"),
            store="" if is_stock else found.another("postgres"),
            name=f"delays-{secrets.token_hex(3)}",
            folder=Path(folder),
        )
        made.log.touch()
        yield made


def memory(found: Servers, pending: int) -> float:
    """Return the RSS of a worker's main process while so many tasks are stored, in MiB."""
    with setting(found) as one:
        one.part("rate", pending, "yes")
        with running(one) as worker:
            one.part("send", time.time() + 3, 20, 1)  # it has worked
            while len(one.lines()) < 20:
                time.sleep(0.2)
            time.sleep(10)
            return machine.rss(worker.pid)


def rate(found: Servers, count: int, *, is_stock: bool = False, batch: str = "") -> float:
    """Return delayed sends a second of one process; stock Celery awaits each confirm."""
    with setting(found, is_stock=is_stock) as one:
        answer: float = one.part("rate", count, batch)
        return answer


def lateness(found: Servers, count: int, *, is_stock: bool) -> float:
    """Return the p99 of the lateness of *count* tasks over some seconds, in ms."""
    with setting(found, is_stock=is_stock) as one, running(one):
        time.sleep(5)
        first, warm = time.time() + 10 + count / 200, WARM * count // SPREAD
        one.part("send", first - WARM, warm + count, WARM + SPREAD)
        while sum(line["retries"] == 0 for line in one.lines()) < warm + count:
            time.sleep(0.5)
        lines = (line for line in one.lines() if line["retries"] == 0 and line["due"] >= first)
        late = sorted(line["late"] for line in lines)
        return float(late[len(late) * 99 // 100] * 1000)


if __name__ == "__main__":
    main()
