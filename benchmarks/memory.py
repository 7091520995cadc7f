"""Memory of a worker, and its work while idle.

The worker is ``timeoutmgr run``; the server logs every statement, so that all are counted.
"""

import argparse
import subprocess
import sys
import time

from harness import machine, pending
from harness.cli import running, waiting
from harness.figures import say
from harness.messages import SECOND, micros
from harness.private import Measured, private_postgres
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, installed

IMPORTS = "import amqp, apscheduler.schedulers.background, kombu, psycopg, sqlalchemy"
LOADED = 25
LOADED_QUICK = 8
"""Seconds after which a worker runs and has settled."""
NOT_COUNTED = ("BEGIN", "COMMIT", "ROLLBACK", "SET ")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pending", type=int, help="far-future timeouts (1,000,000; quick 50,000)")
    given = parsed(parser, count=100_000, quick=5_000)
    many = given.pending or (50_000 if given.quick else 1_000_000)
    with (
        servers("rabbitmq") as around,
        private_postgres(log_statement="all") as server,
        installed(around["rabbitmq"], server.create("empty")) as empty,
        installed(around["rabbitmq"], server.create("full")) as full,
    ):
        settings = {"pending": many, **around.settings, **machine.postgres(server.url)}
        report = Report("Memory and idleness", settings)
        pending.load(full.persistence, pending.far_future(full.name, many))
        bare = imported()
        without = idle(empty, server, given)
        among = idle(full, server, given)
        before, peak = draining(empty, given)

    beside = f"{without.rss:.1f} and {among.rss:.1f} MiB"
    growth = among.rss / without.rss
    report.bar(f"RSS with {many:,} pending ÷ with none", growth, 1.05, at_most=True, beside=beside)
    beside = f"bare imports {bare:.1f} MiB"
    report.bar("idle RSS ÷ bare imports", without.rss / bare, 1.4, at_most=True, beside=beside)
    report.bar(
        f"peak RSS draining {given.count:,} of one instant ÷ before it",
        peak / before,
        1.5,
        at_most=True,
        beside=f"{before:.1f} and {peak:.1f} MiB",
    )
    title = f"CPU of a core, idle with {many:,} pending"
    report.bar(title, among.cpu * 100, 0.2, at_most=True, unit=" %")
    report.bar("queries a minute, idle", among.queries, 2, at_most=True, beside=among.which)
    report.give(given)


class Idle:
    """Measured resources of an idle worker."""

    def __init__(self, pid: int, server: Measured, seconds: float) -> None:
        before, cpu = len(server.statements()), machine.cpu_seconds(pid)
        time.sleep(seconds)
        self.rss = machine.rss(pid)
        self.cpu = (machine.cpu_seconds(pid) - cpu) / seconds
        texts = [line.partition(": ")[2] for line in server.statements()[before:]]
        texts = [text.rpartition("execute ")[2].partition(": ")[2] or text for text in texts]
        texts = [text.removeprefix("statement: ") for text in texts]
        asked = [text for text in texts if not text.startswith(NOT_COUNTED)]
        self.queries = len(asked) / seconds * 60
        self.which = "; ".join(sorted({" ".join(text.split())[:60] for text in asked}))


def idle(spec: Spec, server: Measured, given: argparse.Namespace) -> Idle:
    with running(spec) as pid:
        settle(given)
        found = Idle(pid, server, 5 if given.quick else 240)
    say(f"idle: {found.rss:.1f} MiB, {found.cpu:.2%} of a core, {found.queries:.1f} queries/min")
    return found


def settle(given: argparse.Namespace) -> None:
    """Wait until the worker has settled after its start."""
    time.sleep(2 if given.quick else 5)


def draining(spec: Spec, given: argparse.Namespace) -> tuple[float, float]:
    """Return a worker's RSS before and at the peak of a drain of messages due at one instant."""
    count, loaded = given.count, LOADED_QUICK if given.quick else LOADED
    due = pending.Pending(
        endpoint=spec.name,
        destination=spec.destination,
        count=count,
        due=micros() + round((loaded + count / 5_000) * SECOND),
    )
    pending.load(spec.persistence, due)
    with running(spec) as pid:
        settle(given)
        assert not waiting(spec.transport, spec.destination), "the drain has begun already"
        before = machine.rss(pid)
        machine.reset_peak(pid)
        deadline = time.monotonic() + 60 + count / 500
        while waiting(spec.transport, spec.destination) < count:
            assert time.monotonic() < deadline, "the drain takes too long"
            time.sleep(0.5)
        return before, machine.rss(pid, peak=True)


def imported() -> float:
    """Return the RSS of a process that has imported a worker's libraries."""
    program = f"{IMPORTS}; print(open('/proc/self/status').read())"
    status = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(status.stdout.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
