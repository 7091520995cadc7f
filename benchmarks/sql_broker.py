"""Round trip and rate of kombu on the SQL broker on PostgreSQL, beside stock kombu on Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from statistics import median
from typing import Any

from harness.bare import in_a_process
from harness.figures import Sample, Watch, apart, interleave, say
from harness.report import Report, options, parsed
from harness.servers import servers
from kombu import Connection, Consumer, Producer, Queue

import timeoutmgr.transport.sql

ASKED, ANSWERED, DRAINED = "bench.asked", "bench.answered", "bench.drained"
WARM_UP = 20


def main() -> None:
    given = parsed(options(__doc__), count=2_000, quick=300)
    with servers("postgres", "redis") as running:
        report = Report("The SQL broker under kombu", {"messages": given.count, **running.settings})
        urls = {"Redis": running["redis"], "SQL broker": f"timeoutmgr+{running['postgres']}"}
        compare_replies(report, urls, given.count, given.rounds)
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


def compare_replies(report: Report, urls: dict[str, str], count: int, rounds: int) -> None:
    """Compare the times from a request to its reply, one at a time."""
    found: dict[str, list[float]] = {name: [] for name in urls}
    for number in range(rounds):
        for name, url in urls.items():
            found[name].append(in_a_process(reply_time, url, max(count // 4, 50)))
            say(f"round {number + 1}  {name}: round trip p50 {found[name][-1]:.2f} ms")
    redis, sql = found.values()
    ratios = [ours / theirs for ours, theirs in zip(sql, redis, strict=True)]
    beside = f"{median(sql):.2f} and {median(redis):.2f} ms, spread {apart(ratios):.0%}"
    report.bar("round trip p50 ÷ Redis'", median(ratios), 1.5, at_most=True, beside=beside)


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
    """Lend a connection with a consumer of the queue *name*, which counts and acknowledges."""
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
