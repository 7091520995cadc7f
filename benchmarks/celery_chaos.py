"""Delayed tasks of Celery under two kills: lost, early, revoked in vain, dispatched twice.

    python benchmarks/celery_chaos.py --brokers rabbitmq,redis,sql --beside

A tenth of the tasks is retried once, a tenth is revoked. Each kill -9 ends a whole worker, which
also dispatches the tasks of the store. ``--beside`` also runs stock Celery, without durable delays;
``--page FILE`` writes the table into a page, between marks. The exit code is 1 if a promise is
broken.
"""

import argparse
import json
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kombu
from harness import machine
from harness.celery_runs import Setting, kill
from harness.celery_verdict import Evidence, Verdict, judge, table
from harness.figures import say
from harness.servers import Servers, servers
from kombu import Exchange, Queue

CHUNK = 100
"""Timeouts in one control message: a crash dispatches at most this number twice."""
KILLS = 2
RESTART_AFTER = 3.0
MARKS = ("<!-- celery-chaos: written by benchmarks/celery_chaos.py -->", "<!-- end -->")


def main() -> None:
    given = _options()
    names = given.brokers.split(",")
    needed = {"sql": "postgres"}
    verdicts: dict[str, Verdict] = {}
    broken: list[str] = []
    with servers("postgres", *{needed.get(name, name) for name in names} - {"postgres"}) as running:
        for name in names:
            for is_stock in [False, True] if given.beside else [False]:
                title = f"{'stock Celery' if is_stock else 'durable delays'}, {_TITLES[name]}"
                verdict = _run(running, name, is_stock, given)
                verdicts[title] = verdict
                most_twice = 0 if name == "sql" else KILLS * CHUNK
                found = [] if is_stock else verdict.broken(most_twice)
                broken += [f"{title}: {each}" for each in found]
                say(f"{title}: {json.dumps(asdict(verdict))}")
    lines = table(verdicts)
    print("\n".join(lines))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({n: asdict(v) for n, v in verdicts.items()}, indent=1))
    if given.page:
        _write(given.page, lines)
    if broken:
        raise SystemExit("\n".join(broken))


_TITLES = {"rabbitmq": "RabbitMQ", "redis": "Redis", "sql": "SQL queue"}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brokers", default="rabbitmq,redis,sql", help="rabbitmq, redis, sql")
    parser.add_argument("--tasks", type=int, default=2_000)
    parser.add_argument("--lead", type=float, default=50, help="seconds to the first due time")
    parser.add_argument("--spread", type=float, default=30, help="seconds to the last due time")
    parser.add_argument("--beside", action="store_true", help="also run stock Celery")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there too")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


def _run(running: Servers, name: str, is_stock: bool, given: argparse.Namespace) -> Verdict:
    # Each run has a database (or virtual host) of its own.
    database = running.another("postgres")
    broker = f"timeoutmgr+{database}" if name == "sql" else running.another(name)
    with tempfile.TemporaryDirectory(prefix="celery-chaos-") as folder:
        setting = Setting(
            broker=broker,
            store="" if is_stock else database,
            name=f"chaos-{secrets.token_hex(3)}",
            folder=Path(folder),
        )
        setting.log.touch()
        with _tapped(setting) as published:
            return judge(_play(setting, given, published), may_pop=name == "redis")


def _play(
    setting: Setting, given: argparse.Namespace, published: Callable[[], Counter[Any]]
) -> Evidence:
    worker = setting.worker()
    try:
        time.sleep(5)
        empty = machine.rss(worker.pid)
        begin = time.time()
        sent = setting.part("send", begin + given.lead, given.tasks, given.spread)
        # Stock workers have all tasks in memory by then: a revoke before that is another matter.
        time.sleep(max(0.0, begin + given.lead - 10 - time.time()))
        setting.part("revoke", *sent["revoked"])
        time.sleep(max(0.0, begin + given.lead - 2 - time.time()))
        pending = machine.rss(worker.pid)
        for part in (0.3, 0.65):
            time.sleep(max(0.0, begin + given.lead + part * given.spread - time.time()))
            kill(worker)
            time.sleep(RESTART_AFTER)
            worker = setting.worker()
        _wait(setting, sent)
    finally:
        kill(worker)
    counted = published()
    return Evidence(
        sent=sent["sent"],
        retrying=sent["retrying"],
        revoked=sent["revoked"],
        published=counted,
        ran=setting.lines(),
        stored=setting.part("stored"),
        queued=_queued(setting),
        memory=(empty, pending),
    )


def _wait(setting: Setting, sent: dict[str, Any]) -> None:
    """Wait until each task has run, or none ran for twice Redis' visibility time-out."""
    kept = set(sent["sent"]) - set(sent["revoked"])
    expected = {(task, 0) for task in kept} | {(task, 1) for task in kept & set(sent["retrying"])}
    seen, deadline = -1, 0.0
    while True:
        ran = {(line["id"], line["retries"]) for line in setting.lines()}
        if expected <= ran:
            time.sleep(5)  # a late repeat comes within them
            return
        if len(ran) != seen:
            seen, deadline = len(ran), time.monotonic() + 90
        if time.monotonic() > deadline:
            return
        time.sleep(0.5)


# --- the broker


@contextmanager
def _tapped(setting: Setting) -> Iterator[Callable[[], Counter[Any]]]:
    """Bind a second queue to the exchange of the tasks; yield a function that counts its tasks."""
    from timeoutmgr.transport.sql import register

    register()
    exchange = Exchange(f"{setting.name}-tasks", type="topic")
    tap = Queue(f"{setting.name}-tap", exchange, routing_key=setting.name)
    with kombu.Connection(setting.broker) as connection:
        channel = connection.channel()
        for queue in (Queue(setting.name, exchange, routing_key=setting.name), tap):
            queue(channel).declare()

    def published() -> Counter[Any]:
        found: Counter[Any] = Counter()
        with kombu.Connection(setting.broker) as connection:
            bound = tap(connection.channel())
            while (message := bound.get(no_ack=True)) is not None:
                # kombu's Redis puts a dead worker's messages again into all queues of the exchange.
                if not message.delivery_info.get("redelivered"):
                    found[message.headers["id"], message.headers["retries"]] += 1
        return found

    yield published


def _queued(setting: Setting) -> int:
    """Return the number of tasks in the queue, after the worker's death."""
    time.sleep(2)  # a broker notices
    with kombu.Connection(setting.broker) as connection:
        channel = connection.channel()
        count = 0
        with suppress(*connection.channel_errors):  # kombu's Redis: an empty queue does not exist
            count = Queue(setting.name)(channel).queue_declare(passive=True).message_count
        if setting.broker.startswith("redis"):
            count += channel.client.hlen("unacked")
        return int(count)


def _write(page: Path, lines: list[str]) -> None:
    text = page.read_text()
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text("\n".join([before + MARKS[0], *lines, MARKS[1]]) + after)


if __name__ == "__main__":
    main()
