"""Time of the dashboard's pages over many timeouts, and the CPU that ten open browsers cost.

``python benchmarks/dashboard.py --timeouts 1000000`` fills tables of its own on PostgreSQL, with
twice as many rows of history. With ``--paint`` Debian's Chromium says when it first painted a page.
"""

import argparse
import json
import resource
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import create_engine, text

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.web import Role, Visitor, dashboard
from timeoutmgr.web.server import DashboardServer

PAGES = (
    *("/", "/load?span=day", "/load?span=week", "/load?span=year", "/late", "/pending"),
    *("/pending?destination=q7", "/pending?saga=s77", "/pending?id=b7", "/processes", "/audit"),
)
PREFIX = "dashboard_bench_"
TIMEOUTS = f"{PREFIX}timeouts"
PART = 500_000
ROWS = """
INSERT INTO {table} (endpoint, due, id, destination, saga_id, message_id, headers, body,
    content_type, content_encoding, created, version, attempts)
SELECT :endpoint, :now + (random() * 7 * 86400000000)::bigint, md5(n::text), 'q' || n % 20,
    's' || n % 100000, 'm' || n, '{{}}', '\\x7b7d', 'application/json', 'utf-8', :now, 0, 0
FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n
"""
FIRST_PAINT = """() => new Promise((found) => new PerformanceObserver((seen) => {
    for (const one of seen.getEntriesByName("first-contentful-paint")) found(one.startTime);
}).observe({type: "paint", buffered: true}))"""
HISTORY = """
INSERT INTO {table} (id, event, at, due, endpoint, destination, attempt, node)
SELECT md5(n::text), 'dispatched', :now - n * 1000, :now - n * 1000 - 5000, :endpoint,
    'q' || n % 20, 0, 'bench'
FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n
"""


def main() -> None:
    """Fill, serve, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="postgresql+psycopg://postgres@localhost/postgres")
    parser.add_argument("--timeouts", type=int, default=1_000_000)
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--paint", action="store_true", help="ask a browser for its first paint")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    endpoint = filled(given.url, given.timeouts)
    app = dashboard(endpoint, access=lambda _request: Visitor("bench", Role.ADMIN))
    server = DashboardServer(app, app.state.streams)
    server.config.port = 8655
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    found: dict[str, Any] = {"timeouts": given.timeouts, "pages": {}}
    with httpx.Client(base_url="http://127.0.0.1:8655", timeout=60) as client:
        for page in PAGES:
            found["pages"][page] = measured(client, app, page, given.tries)
        found["ten_browsers"] = browsers(client)
    if given.paint:
        found["first_paint_ms"] = painted("http://127.0.0.1:8655", app)
    server.should_exit = True
    thread.join()
    endpoint.close()
    print(json.dumps(found, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2))


def filled(url: str, count: int) -> Endpoint:
    """Return an endpoint with *count* timeouts of the next week."""
    config = EndpointConfiguration("bench")
    config.use_transport(url)
    persistence = SqlPersistence(url, prefix=PREFIX)
    config.use_persistence(persistence)
    config.enable_feature(TimeoutManager())
    endpoint = Endpoint(config)
    endpoint.install()
    database: Any = persistence.database
    fills = {TIMEOUTS: (ROWS, count), f"{PREFIX}timeout_history": (HISTORY, 2 * count)}
    now = endpoint.timeouts.now()
    for table, (statement, many) in fills.items():
        fill(database, table, statement, many, now)
    with create_engine(url).connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in fills:
            connection.execute(text(f"VACUUM ANALYZE {table}"))
    return endpoint


def fill(database: Any, table: str, statement: str, many: int, now: int) -> None:
    """Have *table* hold *many* rows of *statement*."""
    with database.engine.connect() as connection:
        if connection.scalar(text(f"SELECT count(*) FROM {table}")) == many:
            return
    with database.begin() as connection:
        connection.execute(text(f"TRUNCATE {table}"))
    # In parts: each statement has to end within the database's answer time-out.
    for first in range(1, many + 1, PART):
        last = min(many, first + PART - 1)
        values = {"endpoint": "bench", "now": now, "first": first, "last": last}
        with database.begin() as connection:
            connection.execute(text(statement.format(table=table)), values)


def measured(client: httpx.Client, app: Any, page: str, tries: int) -> dict[str, float]:
    """Return milliseconds of *page* when each answer is read anew."""
    times = []
    for _try in range(tries):
        app.state.readings.forget()
        began = time.perf_counter()
        client.get(page).raise_for_status()
        times.append((time.perf_counter() - began) * 1_000)
    times.sort()
    return {
        "p50": round(statistics.median(times), 1),
        "p95": round(times[int(tries * 0.95) - 1], 1),
    }


def painted(base: str, app: Any) -> dict[str, float]:
    """Return milliseconds until the first paint of each page, in a browser without a cache."""
    from playwright.sync_api import sync_playwright

    times = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for page in PAGES:
            app.state.readings.forget()
            with browser.new_context() as context:
                shown = context.new_page()
                shown.goto(base + page)
                times[page] = round(shown.evaluate(FIRST_PAINT), 1)
        browser.close()
    return times


def browsers(client: httpx.Client) -> dict[str, float]:
    """Return the CPU of this process, browsers included, while ten streams are open for 20 s."""
    ends = threading.Event()

    def watch() -> None:
        address = "/events?region=overview&region=load&region=queues&region=recent"
        with (
            httpx.Client(base_url=client.base_url, timeout=60) as own,
            own.stream("GET", address) as answer,
        ):
            for _line in answer.iter_lines():
                if ends.is_set():
                    return

    threads = [threading.Thread(target=watch, daemon=True) for _ in range(10)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    time.sleep(20)
    after = resource.getrusage(resource.RUSAGE_SELF)
    ends.set()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_share_percent": round(100 * used / (time.monotonic() - began), 2)}


if __name__ == "__main__":
    main()
