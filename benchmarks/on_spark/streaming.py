"""A stream follows history that slow transactions write, and is stopped in between."""

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from harness.figures import say
from harness.report import Report
from harness.servers import connect
from pyspark.sql import SparkSession

from timeoutmgr.pipeline.jobs.stream import stream
from timeoutmgr.pipeline.options import StreamOptions

from .bench import HISTORY, Bench


def streaming(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Follow four writers with slow transactions, stopped and started again."""
    seconds = 10 if bench.given.quick else 40
    missing = 0
    for number in range(bench.given.rounds):
        store = bench.store(f"streaming{number}")
        written = writers(str(store.database.url), seconds)
        given = StreamOptions(
            store=store.name,
            to=f"delta:{bench.folder}/lake{number}",
            every=timedelta(seconds=1),
        )
        for part in range(2):
            stop = threading.Event()
            threading.Timer(seconds / 2, stop.set).start()
            found = stream(given, stop=stop)
            say(f"round {number + 1}, part {part + 1}: {found.events} events")
        last = StreamOptions(store=given.store, to=given.to, once=True)
        expected = written()
        stream(last)
        seen = spark.read.format("timeouts").option("table", given.to).load().select("id")
        count, distinct = seen.count(), seen.distinct().count()
        say(f"round {number + 1}: {expected} written, {count} seen, {distinct} different")
        missing += abs(expected - distinct) + (count - distinct)
    report.bar("events lost or repeated by the stream", missing, 0, at_most=True)


def writers(url: str, seconds: float) -> Callable[[], int]:
    """Start four writers with transactions of up to two seconds; return a count of events."""
    end, counts = time.monotonic() + seconds, [0] * 4

    def write(me: int) -> None:
        chance = random.Random(me)
        with connect(url) as sql:
            sql.autocommit = False
            while time.monotonic() < end:
                for _ in range(chance.randrange(1, 50)):
                    sql.execute(
                        f"INSERT INTO {HISTORY} (id, event, at, due, endpoint, destination, "
                        "attempt, node) VALUES (%s, 'dispatched', 1, 1, 'e', 'q', 0, 'n')",
                        [f"{me}-{counts[me]}"],
                    )
                    counts[me] += 1
                time.sleep(chance.random() * 2)
                sql.commit()

    threads = [threading.Thread(target=write, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()

    def ended() -> int:
        for thread in threads:
            thread.join()
        return sum(counts)

    return ended
