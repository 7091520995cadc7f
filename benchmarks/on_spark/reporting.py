"""All stores on one page: how long that takes, and how often each row of history is read."""

import time
from datetime import timedelta

from harness.figures import Sample, say, spread
from harness.messages import micros
from harness.report import Report
from harness.servers import connect
from pyspark.sql import SparkSession

from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.report import report as reported
from timeoutmgr.pipeline.jobs.report_page import report_page
from timeoutmgr.pipeline.options import ReportOptions

from .bench import HISTORY, KEYS, Bench, measured

DAYS = 56
LATE = 1_000
"""Of so many messages one is late, so that examples are named."""
_HISTORY = f"""
INSERT INTO {HISTORY} (id, event, at, due, endpoint, destination, attempt, node)
SELECT id, event, due + offset_, due, 'bench', destination, 0, 'node'
FROM (SELECT gen_random_uuid()::text AS id, n, 'q' || (n %% 50) AS destination,
    (%(now)s - (0.01 + random() * %(days)s) * 86400e6)::bigint AS due
    FROM generate_series(1, %(messages)s) n) AS made,
LATERAL (VALUES ('scheduled', -3600000000),
    ('dispatched', CASE WHEN n %% %(late)s = 0 THEN 90000000 ELSE 2000 END)) AS of (event, offset_)
"""
_CLOSED = f"""
INSERT INTO {KEYS} (endpoint, id, due, version, state, closed_at)
SELECT endpoint, id, due, 0, 'dispatched', at FROM {HISTORY}
WHERE event = 'dispatched' AND at > %(now)s - 7 * 86400e6
"""
_READ = """
SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables
WHERE relid = %(history)s::regclass
    OR relid IN (SELECT relid FROM pg_partition_tree(%(history)s::regclass))
"""


def reporting(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Report on ten times the rows, of eight weeks; of the last week there are keys, too."""
    store, rows = bench.store("reporting"), bench.given.count * 10
    url = str(store.database.url)
    values = {"now": micros(), "days": DAYS, "messages": rows // 2, "late": LATE}
    with connect(url) as sql:
        say(f"{rows:,} rows of history are made")
        sql.execute(_HISTORY, values)
        sql.execute(_CLOSED, values)
        sql.execute(f"VACUUM ANALYZE {HISTORY}, {KEYS}")
    options = ReportOptions(stores=(store.name,), days=DAYS + 1, promise=timedelta(seconds=1))
    pages: list[str] = []
    reads: list[float] = []

    def page() -> None:
        found = reported(spark, options, clock=SystemClock())
        assert found.verdicts.messages == rows // 2, found.verdicts.counts
        assert found.verdicts.examples, "late messages are named"
        pages.append(report_page(found))

    def ours() -> Sample:
        before = rows_read(url)
        sample = bench.cost.of(rows, page)
        reads.append((rows_read(url) - before) / rows)
        return sample

    found = measured(bench, report, {"report": ours})["report"]
    assert min(reads) > 0.9, "the server counts what it reads"
    report.bar("reads of each row of history", max(reads), 1.01, at_most=True)
    seconds = sorted(one.seconds for one in found)[len(found) // 2]
    cpu = sorted(one.cpu for one in found)[len(found) // 2]
    beside = f"spread {spread(found):.0%}; {cpu:.0f} s of CPU"
    scale = rows / 10_000_000
    report.bar("report of ten million", seconds / scale, 60, at_most=True, unit=" s", beside=beside)
    report.fact("the page", len(pages[-1]) / 1024, " kB")


def rows_read(url: str) -> int:
    """Return how many rows of history were read by scans, as the server has counted so far."""
    time.sleep(1.5)  # a process of the server reports its counts a second late
    with connect(url) as sql:
        row = sql.execute(_READ, {"history": HISTORY}).fetchone()
    assert row is not None
    return int(row[0])
