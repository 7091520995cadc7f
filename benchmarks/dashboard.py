"""Time of the dashboard's pages over many timeouts, and the CPU that ten open browsers cost.

``python benchmarks/dashboard.py --timeouts 1000000`` fills tables of its own on PostgreSQL.
"""

import argparse
import json
import resource
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.web import Role, Visitor, dashboard
from timeoutmgr.web.server import DashboardServer

PAGES = (
    *("/", "/load?span=day", "/load?span=week", "/load?span=year", "/late", "/pending"),
    *("/pending?destination=q7", "/pending?saga=s77", "/pending?id=b7", "/processes", "/audit"),
)
ROWS = """
INSERT INTO {table} (endpoint, due, id, destination, saga_id, message_id, headers, body,
    content_type, content_encoding, created, version, attempts)
SELECT :endpoint, :now + (random() * 7 * 86400000000)::bigint, md5(n::text), 'q' || n % 20,
    's' || n % 100000, 'm' || n, '{{}}', '\\x7b7d', 'application/json', 'utf-8', :now, 0, 0
FROM generate_series(1, :count) AS n
"""


def main() -> None:
    """Fill, serve, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="postgresql+psycopg://postgres@localhost/postgres")
    parser.add_argument("--timeouts", type=int, default=1_000_000)
    parser.add_argument("--tries", type=int, default=30)
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
    persistence = SqlPersistence(url, prefix="dashboard_bench_")
    config.use_persistence(persistence)
    config.enable_feature(TimeoutManager())
    endpoint = Endpoint(config)
    endpoint.install()
    database: Any = persistence.database
    with database.begin() as connection:
        table = "dashboard_bench_timeouts"
        now = endpoint.timeouts.now()
        if endpoint.timeouts.count() != count:
            connection.execute(text(f"TRUNCATE {table}"))
            values = {"endpoint": "bench", "now": now, "count": count}
            connection.execute(text(ROWS.format(table=table)), values)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE dashboard_bench_timeouts"))
    return endpoint


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
