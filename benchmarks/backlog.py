"""Cost of a chunk in the database, by pending rows and by removed rows.

A chunk is 500 timeouts that are claimed, locked and closed, without a broker. Due times are random
over a year, so that due rows are scattered. The benchmark starts its own server: no other program
writes its log, and a checkpoint happens only on request, right before the measurement.
"""

import argparse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean

from harness import claims, machine, pending
from harness.claims import ChunkTimes, log_position, of, run_chunk
from harness.figures import say
from harness.messages import BODY, DAY, HEADERS, micros
from harness.private import Measured, private_postgres
from harness.report import Report, options, parsed
from harness.servers import connect, servers

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout, TimeoutStore
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.message.message import Message
from timeoutmgr.persistence import SqlSettings

ENDPOINT, CHUNK, SMALL, YEAR = "backlog", 500, 10_000, 365 * DAY


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pending", type=int, help="the larger backlog (1,000,000; quick 50,000)")
    parser.add_argument("--only", choices=["growth", "partitions", "sqlite", "snapshot", "wal"])
    given = parsed(parser, count=20, quick=8)
    given.many = given.pending or (50_000 if given.quick else 1_000_000)
    report = Report("What a chunk costs the database", {"chunk": CHUNK, **machine.described()})
    # Measure bytes of log first: after removals, a vacuum would also write log.
    parts = {"wal": write_ahead_log, "growth": growth, "partitions": ranges, "snapshot": snapshot}
    with private_postgres() as server:
        report.settings |= machine.postgres(server.url)
        for name, part in parts.items():
            if given.only in (None, name):
                part(server, given, report)
    if given.only in (None, "sqlite"):
        growth_on_sqlite(given, report)
    report.give(given)


def growth(server: Measured, given: argparse.Namespace, report: Report) -> None:
    """Measure whether a chunk costs more with more pending rows, in partitions by due time."""
    urls = {SMALL: server.create("small"), given.many: server.create("large")}
    runs: dict[int, list[ChunkTimes]] = {size: [] for size in urls}
    touched: dict[int, int] = {}
    with (
        stored(urls[SMALL], partitions="auto") as small,
        stored(urls[given.many], partitions="auto") as large,
        connect(server.url) as sql,
    ):
        for size, url in urls.items():
            pending.load(url, scattered(size, (given.count + 2) * CHUNK))
            touched[size] = -blocks(sql, url)
        sql.execute("CHECKPOINT")
        for number in range(given.count + 2):
            for size, store in ((SMALL, small), (given.many, large)):
                runs[size].append(run_chunk(store, CHUNK, log_position(sql)))
            say(f"chunk {number + 1}: {runs[given.many][-1].all_us:.1f} us a row")
    with connect(server.url) as sql:
        for size, url in urls.items():
            touched[size] += blocks(sql, url)
    few, many = (found[2:] for found in runs.values())  # the first two warm up the statements
    for figure, name in (("claim_us", "claim"), ("all_us", "claim, take and close")):
        value = of(many, figure) / of(few, figure)
        beside = f"{of(few, figure):.1f} and {of(many, figure):.1f} us a row"
        title = f"{name} at {given.many:,} ÷ at {SMALL:,} pending"
        report.bar(title, value, 1.4, at_most=True, beside=beside)
    for figure, name in (("claim_wal", "claim"), ("all_wal", "claim, take and close")):
        small_log, large_log = (mean(getattr(one, figure) for one in part) for part in (few, many))
        beside = f"{small_log:.0f} B at {SMALL:,}"
        title = f"WAL of a row, {name}, {given.many:,} pending"
        report.bar(title, large_log, 1024, at_most=True, unit=" B", beside=beside)
    rows = (given.count + 2) * CHUNK
    few_blocks, many_blocks = (count / rows for count in touched.values())
    beside = f"{few_blocks:.1f} at {SMALL:,}"
    report.fact(f"buffers touched by a row, {given.many:,} pending", many_blocks, beside=beside)


def ranges(server: Measured, given: argparse.Namespace, report: Report) -> None:
    """Measure partitions by due time: their cost with few pending rows, their gain with many."""
    for size in (SMALL, given.many):
        runs: dict[str, list[ChunkTimes]] = {"off": [], "auto": []}
        urls = {how: server.create(f"ranges_{how}{size}") for how in runs}
        with (
            stored(urls["off"], partitions="off") as one,
            stored(urls["auto"], partitions="auto") as many,
            connect(server.url) as sql,
        ):
            for url in urls.values():
                pending.load(url, scattered(size, (given.count + 2) * CHUNK))
            sql.execute("CHECKPOINT")
            for _ in range(given.count + 2):
                runs["off"].append(run_chunk(one, CHUNK, log_position(sql)))
                runs["auto"].append(run_chunk(many, CHUNK, log_position(sql)))
        plain, ranged = (found[2:] for found in runs.values())
        for figure, name, unit in (
            ("claim_us", "claim", "us"),
            ("all_us", "claim, take and close", "us"),
            ("all_wal", "log of a row", "B"),
        ):
            value = of(ranged, figure) / of(plain, figure)
            beside = f"{of(ranged, figure):.1f} and {of(plain, figure):.1f} {unit} a row"
            title = f"{name} at {size:,} pending, partitioned ÷ in one"
            report.bar(title, value, 1.1, at_most=True, beside=beside)


def growth_on_sqlite(given: argparse.Namespace, report: Report) -> None:
    """Measure the same with SQLite, with all its indexes."""
    runs: dict[int, list[ChunkTimes]] = {SMALL: [], given.many: []}
    with (
        servers("sqlite") as one,
        servers("sqlite") as other,
        stored(one["sqlite"]) as small,
        stored(other["sqlite"]) as large,
    ):
        for size, running in ((SMALL, one), (given.many, other)):
            path = running["sqlite"].removeprefix("sqlite:///")
            pending.load_sqlite(path, scattered(size, (given.count + 2) * CHUNK))
        for _ in range(given.count + 2):
            runs[SMALL].append(run_chunk(small, CHUNK))
            runs[given.many].append(run_chunk(large, CHUNK))
    few, many = (found[2:] for found in runs.values())
    for figure, name in (("claim_us", "claim"), ("all_us", "claim, take and close")):
        value = of(many, figure) / of(few, figure)
        beside = f"{of(few, figure):.1f} and {of(many, figure):.1f} us a row"
        title = f"SQLite: {name} at {given.many:,} ÷ at {SMALL:,}"
        report.bar(title, value, 1.2, at_most=True, beside=beside)


def snapshot(server: Measured, given: argparse.Namespace, report: Report) -> None:
    """Measure whether an open old snapshot, which prevents cleaning, slows down claims."""
    chunks = 20 if given.quick else 180
    url = server.create("snapshot")
    with stored(url) as store, connect(url) as reader:
        due = scattered(3 * chunks * CHUNK, (chunks + 20) * CHUNK)
        pending.load(url, due)
        with claims.old_snapshot(reader):
            runs = [run_chunk(store, CHUNK) for _ in range(chunks + 15)]
    start, end = runs[2:10], runs[chunks:]
    for figure, name in (("claim_us", "claim"), ("all_us", "claim, take and close")):
        report.bar(
            f"old snapshot, {name}: after {chunks * CHUNK:,} removals ÷ at the start",
            of(end, figure) / of(start, figure),
            1.3,
            at_most=True,
            beside=f"{of(start, figure):.1f} and {of(end, figure):.1f} us a row",
        )


def write_ahead_log(server: Measured, given: argparse.Namespace, report: Report) -> None:
    """Measure how much log a timeout writes, from its insert to its history."""
    for size, bar in ((SMALL, 2560), (given.many, None)):
        url = server.create(f"life{size}")
        with stored(url) as store, connect(server.url) as sql:
            pending.load(url, pending.far_future(ENDPOINT, size))
            live(store, SMALL)  # afterwards the log has a full image of the touched pages
            if bar is None:
                sql.execute("CHECKPOINT")
            written = log_position(sql)
            before = written()
            live(store, SMALL)
            each = (written() - before) / SMALL
        if bar is None:
            report.fact(f"WAL of a life at {size:,} pending, after a checkpoint", each, " B")
        else:
            title = f"WAL of a life at {size:,} pending, no checkpoint inside"
            report.bar(title, each, bar, at_most=True, unit=" B")


def live(store: TimeoutStore, count: int) -> None:
    """Store *count* timeouts in batches, claim them in chunks and close them."""
    for _ in range(0, count, 100):
        now = micros()
        names = [str(uuid.uuid4()) for _ in range(100)]  # random, like the product's own ids
        store.store_many(
            [
                Timeout(
                    id=name,
                    due=now,
                    destination=f"{ENDPOINT}.destination",
                    message=Message(id=name, headers=HEADERS, body=BODY),
                )
                for name in names
            ]
        )
        run_chunk(store, 100)


def scattered(waiting: int, due: int) -> pending.Pending:
    """Return timeouts with due times over a year, of which about *due* are due already."""
    count = waiting + round(due * 1.05)
    past = round(YEAR * due * 1.05 / count)
    return pending.Pending(
        endpoint=ENDPOINT,
        destination=f"{ENDPOINT}.destination",
        count=count,
        due=micros() - past,
        over=YEAR,
    )


@contextmanager
def stored(url: str, **settings: str) -> Iterator[TimeoutStore]:
    """Yield a store with its tables at *url*."""
    persistence = persistence_from_url(url, settings=SqlSettings(**settings))
    persistence.install()
    yield persistence.timeouts(ENDPOINT, SystemClock())
    persistence.close()


def blocks(sql: object, url: str) -> int:
    """Return how many buffers were touched in the database at *url* by sessions that ended."""
    query = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = %s"
    return sql.execute(query, [url.rpartition("/")[2]]).fetchone()[0]


if __name__ == "__main__":
    main()
