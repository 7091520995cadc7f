"""Cost of an upgrade of large tables for programs that use the tables meanwhile.

*first*: polls go on while tables of the first revision, with many pending timeouts and as many rows
of history, are upgraded to the newest. *next*: delayed messages flow through a process of this
version while a process of the next version upgrades the tables, starts, and works beside it. In the
end each message must have arrived once.
"""

import argparse
import os
import subprocess
import sys
import time
from statistics import median

from harness import machine, next_version, pending
from harness.claims import poll_nothing
from harness.figures import say
from harness.messages import DAY, SECOND, micros
from harness.private import Measured, private_postgres
from harness.report import Report, options, parsed
from harness.revisions import FIRST, install_up_to
from harness.servers import connect
from harness.traffic import Traffic

from timeoutmgr.clock import SystemClock
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.persistence import SqlPersistence

ENDPOINT, CHUNK = "many", 500
_PAUSE = 0.01
"""Seconds between two polls beside the upgrade."""
_BEFORE, _BESIDE = 3.0, 10.0
"""Seconds of messages before the upgrade, and beside both versions."""
_HISTORY = f"""
INSERT INTO {pending.PREFIX}timeout_history
    (id, event, at, due, endpoint, destination, attempt, node)
SELECT gen_random_uuid()::text, 'dispatched', %(at)s + n, %(at)s + n, %(endpoint)s, 'd', 0, 'node'
FROM generate_series(1, %(count)s) n
"""
_UPGRADE = (
    "import sys; from timeoutmgr.persistence import SqlPersistence; "
    "SqlPersistence(sys.argv[1]).install()"
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, help="pending, and history (1,000,000; quick 50,000)")
    parser.add_argument("--only", choices=["first", "next"])
    given = parsed(parser, count=0, quick=0)
    given.rows = given.rows or (50_000 if given.quick else 1_000_000)
    report = Report("Upgrade beside use", {"rows": given.rows, **machine.described()})
    with private_postgres() as server:
        report.settings |= machine.postgres(server.url)
        for name, part in {"first": first, "next": next_}.items():
            if given.only in (None, name):
                part(server, given, report)
    report.give(given)


def first(server: Measured, given: argparse.Namespace, report: Report) -> None:
    """Measure how long a poll waits while tables of the first revision are upgraded."""
    waits = []
    for number in range(given.rounds):
        persistence = _filled(server, f"first{number}", given.rows, FIRST)
        longest, took = _polled_beside_upgrade(persistence)
        persistence.check()
        persistence.close()
        waits.append(longest)
        say(f"round {number + 1}: upgrade {took:.1f} s, longest poll {longest * 1e3:.0f} ms")
    report.bar(
        f"longest poll beside the upgrade of {given.rows:,} rows",
        max(waits),
        1.0,
        at_most=True,
        unit=" s",
        beside=f"the longest of {given.rounds} rounds; their median {median(waits):.3f} s",
    )


def next_(server: Measured, given: argparse.Namespace, report: Report) -> None:
    """Measure how late messages are while a process of the next version upgrades and works."""
    for number in range(given.rounds):
        persistence = _filled(server, f"next{number}", given.rows, "head")
        url = persistence.database.url.render_as_string(hide_password=False)
        persistence.close()
        with Traffic(url) as traffic:
            time.sleep(_BEFORE)
            began = time.perf_counter()
            with next_version.running(url) as newer:
                assert newer.stdout is not None
                assert newer.stdout.readline() == "running\n"
                took = time.perf_counter() - began
                time.sleep(_BESIDE)
                lost = traffic.finish()
        _judge(report, f"upgrade {number + 1} of {given.rows:,} rows", traffic, took, lost)


def _judge(report: Report, name: str, traffic: Traffic, took: float, lost: int) -> None:
    say(f"{name}: upgraded and started after {took:.1f} s")
    beside = f"of {len(traffic.accepted):,} accepted; upgraded and started after {took:.1f} s"
    report.bar(f"{name}: lost", lost, 0, at_most=True, beside=beside)
    report.bar(f"{name}: repeated", traffic.repeats, 0, at_most=True)
    late = sorted(traffic.lateness)
    beside = f"median {median(late):.3f} s"
    report.bar(f"{name}: latest message", late[-1], 1.0, at_most=True, unit=" s", beside=beside)
    pause = traffic.longest_pause
    report.bar(f"{name}: longest pause between two sends", pause, 1.0, at_most=True, unit=" s")


def _filled(server: Measured, name: str, rows: int, revision: str) -> SqlPersistence:
    """Return tables at *revision* with *rows* pending timeouts, and as many in the history."""
    url = server.create(name)
    persistence = persistence_from_url(url)
    if revision == "head":
        persistence.install()
    else:
        install_up_to(revision, persistence.database)
    far = pending.Pending(
        endpoint=ENDPOINT, destination="d", count=rows, due=micros() + DAY, over=3_600 * SECOND
    )
    pending.load(url, far)
    with connect(url) as sql:
        sql.execute(_HISTORY, {"at": micros() - DAY, "endpoint": ENDPOINT, "count": rows})
        sql.execute("VACUUM ANALYZE")
        sql.execute("CHECKPOINT")
    os.sync()  # otherwise commits would wait for the disk to write the inserted rows
    return persistence


def _polled_beside_upgrade(persistence: SqlPersistence) -> tuple[float, float]:
    """Return the seconds of the longest poll, and of the upgrade."""
    url = persistence.database.url.render_as_string(hide_password=False)
    store, longest = persistence.timeouts(ENDPOINT, SystemClock()), 0.0
    poll_nothing(store, CHUNK)
    began = time.perf_counter()
    running = subprocess.Popen([sys.executable, "-c", _UPGRADE, url])
    while running.poll() is None:
        longest = max(longest, poll_nothing(store, CHUNK))
        time.sleep(_PAUSE)
    assert running.returncode == 0
    return longest, time.perf_counter() - began


if __name__ == "__main__":
    main()
