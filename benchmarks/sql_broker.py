"""Round trips and rate of Celery and kombu on the SQL broker on PostgreSQL, beside Redis.

A round trip of Celery is that of a task: ``echo.delay(n).get()`` with ``rpc://`` results, whose
queue is also on the broker, and a worker of one solo process. A round trip of kombu is a request
and its reply, without the cost of Celery itself.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from celery import Celery
from harness.bare import in_a_process
from harness.bare_queue import bare_reply_time
from harness.figures import Sample, Watch, apart, interleave, say
from harness.report import Report, options, parsed
from harness.servers import Servers, servers
from kombu import Connection, Consumer, Producer, Queue

import timeoutmgr.transport.sql

ASKED, ANSWERED, DRAINED = "bench.asked", "bench.answered", "bench.drained"
WARM_UP = 20


def main() -> None:
    given = parsed(options(__doc__), count=2_000, quick=300)
    with servers("postgres", "redis") as running:
        report = Report("The SQL broker under kombu", {"messages": given.count, **running.settings})
        urls = {"Redis": running["redis"], "SQL broker": f"timeoutmgr+{running['postgres']}"}
        count = max(given.count // 4, 50)
        compare(report, "task of Celery, p50", task_time, urls, count, given.rounds)
        compare(report, "request of kombu, p50", reply_time, urls, count, given.rounds)
        compare_floor(report, running, count, given.rounds)
        samples = interleave(
            {name: partial(in_a_process, drain, url, given.count) for name, url in urls.items()},
            given.rounds,
        )
    report.runs(samples)
    redis, sql = samples.values()
    report.fact(
        "consumer rate ÷ Redis'", median(s.rate / r.rate for s, r in zip(sql, redis, strict=True))
    )
    report.give(given)


def compare(
    report: Report,
    name: str,
    measure: Callable[[str, int], float],
    urls: dict[str, str],
    count: int,
    rounds: int,
) -> None:
    """Compare the medians of *count* round trips, one at a time."""
    found: dict[str, list[float]] = {broker: [] for broker in urls}
    for number in range(rounds):
        for broker, url in urls.items():
            found[broker].append(in_a_process(measure, url, count))
            say(f"round {number + 1}  {broker}: {name} {found[broker][-1]:.2f} ms")
    redis, sql = found.values()
    ratios = [ours / theirs for ours, theirs in zip(sql, redis, strict=True)]
    beside = f"{median(sql):.2f} and {median(redis):.2f} ms, spread {apart(ratios):.0%}"
    report.bar(f"{name} ÷ Redis'", median(ratios), 1.5, at_most=True, beside=beside)


def compare_floor(report: Report, running: Servers, count: int, rounds: int) -> None:
    """Compare a durable queue in PostgreSQL, by psycopg alone, with kombu on Redis."""
    bare, redis = [], []
    for _ in range(rounds):
        bare.append(in_a_process(bare_reply_time, running["postgres"], count))
        redis.append(in_a_process(reply_time, running["redis"], count))
    ratios = [ours / theirs for ours, theirs in zip(bare, redis, strict=True)]
    beside = f"{median(bare):.2f} and {median(redis):.2f} ms, spread {apart(ratios):.0%}"
    name = "request of psycopg alone ÷ kombu's on Redis"
    report.fact(name, median(ratios), beside=beside)


def celery_app(url: str, queue: str) -> Any:
    """Return an app with one task, whose results come back through the broker."""
    timeoutmgr.transport.sql.register()
    app: Any = Celery("sql_broker", broker=url, backend="rpc://")
    app.conf.task_default_queue = queue
    app.conf.broker_connection_retry_on_startup = True
    app.task(echo, name="echo")
    return app


def echo(number: int) -> int:
    return number


if "BENCH_QUEUE" in os.environ:  # in the worker
    app = celery_app(os.environ["BENCH_BROKER"], os.environ["BENCH_QUEUE"])


def task_time(url: str, count: int) -> float:
    """Return the median time from a task's ``delay()`` to its result, in ms."""
    queue = f"bench.{secrets.token_hex(4)}"
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "BENCH_BROKER": url,
        "BENCH_QUEUE": queue,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]),
    }
    command = [sys.executable, "-m", "celery", "-A", "sql_broker", "worker", "-P", "solo"]
    worker = subprocess.Popen(
        [*command, "-l", "ERROR", "--without-gossip", "--without-mingle"],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        task = celery_app(url, queue).tasks["echo"]
        took = [task_once(task, number) for number in range(WARM_UP + count)]
    finally:
        worker.terminate()
        worker.wait()
    return median(took[WARM_UP:]) * 1000


def task_once(task: Any, number: int) -> float:
    began = time.perf_counter()
    task.delay(number).get(timeout=60)
    return time.perf_counter() - began


def reply_time(url: str, count: int) -> float:
    """Return the median time from a request to its reply, in ms; a second thread replies."""
    timeoutmgr.transport.sql.register()
    stop = threading.Event()
    replies = threading.Thread(target=reply, args=(url, stop))
    with consuming(url, ANSWERED) as (connection, _received):
        with connection.SimpleQueue(ASKED):
            pass  # the first request finds its queue
        replies.start()
        took = [ask(connection) for _ in range(WARM_UP + count)]
        stop.set()
        replies.join()
    return median(took[WARM_UP:]) * 1000


def ask(connection: Any) -> float:
    began = time.perf_counter()
    Producer(connection.default_channel, auto_declare=False).publish({}, routing_key=ASKED)
    connection.drain_events(timeout=30)
    return time.perf_counter() - began


def reply(url: str, stop: threading.Event) -> None:
    with Connection(url) as connection:
        producer = Producer(connection.channel(), auto_declare=False)

        def answer(_body: Any, message: Any) -> None:
            producer.publish({}, routing_key=ANSWERED)
            message.ack()

        with Consumer(connection.default_channel, [Queue(ASKED)], callbacks=[answer]):
            while not stop.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)


@contextmanager
def consuming(url: str, name: str) -> Iterator[tuple[Any, list[int]]]:
    """Yield a connection with a consumer of the queue *name*, which counts and acknowledges."""
    received = [0]

    def count(_body: Any, message: Any) -> None:
        message.ack()
        received[0] += 1

    with (
        Connection(url) as connection,
        Consumer(connection.default_channel, [Queue(name)], callbacks=[count], prefetch_count=20),
    ):
        yield connection, received


def drain(url: str, count: int) -> Sample:
    """Consume a backlog of *count* messages, one acknowledgement each."""
    timeoutmgr.transport.sql.register()
    with Connection(url) as connection:
        Queue(DRAINED)(connection.default_channel).declare()
        producer = Producer(connection.default_channel, auto_declare=False)
        for _ in range(count):
            producer.publish({}, routing_key=DRAINED)
    with consuming(url, DRAINED) as (connection, received):
        watch = Watch()
        while received[0] < count:
            connection.drain_events(timeout=30)
        return watch.sample(count)


if __name__ == "__main__":
    main()
