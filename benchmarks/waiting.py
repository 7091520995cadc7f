"""Cost of waiting retries for a claim.

A claim is measured with none, 100,000 and 1,000,000 timeouts that failed and will be retried in an
hour, as while a destination is unavailable.
"""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from harness import machine, pending
from harness.claims import ChunkTimes, of, poll_nothing, run_chunk
from harness.figures import say
from harness.messages import DAY, SECOND, micros
from harness.private import Measured, private_postgres
from harness.report import Report, options, parsed
from harness.servers import connect

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.persistence import SqlSettings

ENDPOINT, CHUNK, HOUR = "waiting", 500, 3_600 * SECOND
_IDLE = 40
"""Number of polls that find no timeout, of which the median counts."""
_RETRIES = f"""
UPDATE {pending.PREFIX}timeouts SET original_due = due - {HOUR}, attempts = 1 WHERE due > %s
"""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--waiting", type=int, help="the most that wait (1,000,000; quick 50,000)")
    given = parsed(parser, count=20, quick=8)
    given.most = given.waiting or (50_000 if given.quick else 1_000_000)
    report = Report("Waiting timeouts", {"chunk": CHUNK, **machine.described()})
    with private_postgres() as server:
        report.settings |= machine.postgres(server.url)
        claims(server, given, report)
    report.give(given)


def claims(server: Measured, given: argparse.Namespace, report: Report) -> None:
    """Measure whether a claim costs more if more timeouts wait for a retry."""
    sizes = (0, given.most // 10, given.most)
    runs: dict[int, list[ChunkTimes]] = {size: [] for size in sizes}
    idle: dict[int, list[float]] = {size: [] for size in sizes}
    with ExitStack() as stack:
        stores = {
            size: stack.enter_context(_with_retries(server, size, (given.count + 2) * CHUNK))
            for size in sizes
        }
        for number in range(given.count + 2):
            for size, store in stores.items():
                runs[size].append(run_chunk(store, CHUNK))
            say(f"chunk {number + 1}: {runs[given.most][-1].claim_us:.1f} us a row")
        for _ in range(_IDLE):
            for size, store in stores.items():
                idle[size].append(poll_nothing(store, CHUNK))
    none = runs[0][2:]  # the first two warm up the statements
    for size in sizes[1:]:
        many = runs[size][2:]
        for figure, name in (("claim_us", "claim"), ("all_us", "claim, take and close")):
            value = of(many, figure) / of(none, figure)
            beside = f"{of(many, figure):.1f} and {of(none, figure):.1f} us a row"
            report.bar(f"{name} beside {size:,} ÷ 0", value, 1.3, at_most=True, beside=beside)
        there, empty = median(idle[size]), median(idle[0])
        beside = f"{there * 1e3:.2f} and {empty * 1e3:.2f} ms"
        name = f"poll that finds nothing, beside {size:,} ÷ 0"
        report.bar(name, there / empty, 1.3, at_most=True, beside=beside)


@contextmanager
def _with_retries(server: Measured, waiting: int, due: int) -> Iterator[TimeoutStore]:
    """Yield a store of *waiting* timeouts to retry in an hour, and *due* due timeouts."""
    url = server.create(f"retries{waiting}")
    persistence = persistence_from_url(url, settings=SqlSettings(partitions="off"))
    persistence.install()
    now = micros()
    if waiting:
        pending.load(url, _some(waiting, now + HOUR))
        with connect(url) as sql:
            sql.execute(_RETRIES, [now])
    pending.load(url, _some(due, now - 2 * HOUR))
    # Then a poll finds a next due time in each store, even without retries.
    pending.load(url, _some(1, now + DAY))
    with connect(url) as sql:
        sql.execute("VACUUM ANALYZE")
    yield persistence.timeouts(ENDPOINT, SystemClock())
    persistence.close()


def _some(count: int, due: int) -> pending.Pending:
    return pending.Pending(
        endpoint=ENDPOINT, destination="destination", count=count, due=due, over=HOUR
    )


if __name__ == "__main__":
    main()
