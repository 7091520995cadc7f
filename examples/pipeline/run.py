"""A year of flights through the data pipeline: scheduled, run, forecast, archived and reconciled.

The output is counts of all messages, and pictures. Exit code 1: a check failed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from flights import Calendar, fetch, write

from timeoutmgr import Endpoint, HandlerContext
from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline import SessionOptions, spark_session
from timeoutmgr.pipeline.jobs.archive import archive
from timeoutmgr.pipeline.jobs.forecast import forecast, forecast_page
from timeoutmgr.pipeline.jobs.lateness import lateness, lateness_page
from timeoutmgr.pipeline.jobs.reconcile import ReconcileReport, reconcile
from timeoutmgr.pipeline.jobs.schedule import schedule
from timeoutmgr.pipeline.options import (
    ArchiveOptions,
    ForecastOptions,
    LatenessOptions,
    ReconcileOptions,
    ScheduleOptions,
)
from timeoutmgr.pipeline.transforms.verdicts import Verdict
from timeoutmgr.settings.file import configuration_from

BOARD: Final = "departures"
SETTINGS: Final = """
endpoint = "{board}"
{store}
features = ["timeout-manager"]

[persistence_options]
history = "full"
"""
AFTERWARDS: Final = 120.0
"""Maximum seconds after its due time in which the last message must arrive."""


class Board:
    """The endpoint that receives the messages: it counts them by id."""

    def __init__(self, settings: Path) -> None:
        self.config = configuration_from(settings)
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.config.handler("Left")(self._note)

    def _note(self, _body: Any, context: HandlerContext) -> None:
        with self._lock:
            self.seen[context.message_id] += 1


class Play:
    """The steps in their order; failures are collected and printed at the end."""

    def __init__(self, given: argparse.Namespace, folder: Path, out: Path) -> None:
        self._given, self._folder, self._out = given, folder, out
        self._clock = SystemClock()
        self._settings = folder / "board.toml"
        self._lake = f"delta:{folder}/history"
        url = given.store or f"sqlite:///{folder / 'timeoutmgr.db'}"
        store = f'transport = "{url}"\npersistence = "{url}"'
        self._settings.write_text(SETTINGS.format(board=BOARD, store=store))
        self._stores = (str(self._settings),)
        self.figures: dict[str, Any] = {}
        self.wrong: list[str] = []

    def run(self) -> None:
        """Run all steps."""
        with spark_session(SessionOptions()) as spark:
            board = Board(self._settings)
            with Endpoint(board.config):  # once, to create queues and tables
                pass
            quick_until = self._schedule(spark)
            with Endpoint(board.config):
                due = self._wait(board, quick_until)
            self._forecast()
            self._lateness(spark, due)
            before = self._reconcile(spark, "reconcile", None)
            self._archive(quick_until)
            after = self._reconcile(spark, "reconcile with the archive", self._lake)
            self._compare(before, after, board, due)

    def _schedule(self, spark: Any) -> datetime:
        self._say("getting the flights of 2013")
        source = fetch(self._folder / "package")
        begin = datetime.now(UTC) + timedelta(seconds=self._given.lead)
        calendar = Calendar(begin=begin, seconds=self._given.seconds)
        rows = self._folder / "flights.parquet"
        count = write(source, rows, BOARD, calendar)
        self._say(f"scheduling {count:,} reminders")
        started = time.monotonic()
        report = schedule(
            spark,
            ScheduleOptions(
                store=self._stores[0],
                endpoint=BOARD,
                dataset="nyc2013",
                paths=(str(rows),),
                message_type="Left",
                rejects=self._out / "rejects",
                max_reject_ratio=0.05,
            ),
            clock=self._clock,
        )
        took = time.monotonic() - started
        self.figures["schedule"] = report.document() | {"seconds": round(took, 1)}
        del self.figures["schedule"]["busiest_minutes"]
        self._must(report.new == report.accepted, "not every accepted row was new")
        self._must(report.accepted + report.rejected + report.repeated == count, "rows are missing")
        self._say(f"stored {report.new:,} in {took:.0f} s, rejected {report.rejected:,}")
        return calendar.begin + timedelta(seconds=calendar.seconds)

    def _wait(self, board: Board, until: datetime) -> int:
        which = ForecastOptions(
            stores=self._stores, bucket=timedelta(seconds=1), ahead=timedelta(days=1)
        )
        # Count before the forecast: otherwise a message sent in between would be in both counts.
        seen = len(board.seen)
        ahead = forecast(which, clock=self._clock)
        last = int(until.timestamp()) * 1_000_000
        due = sum(count for begin, count in ahead.totals.items() if begin < last)
        if ahead.at >= last:  # to schedule took longer than the lead: all of the week is overdue
            due = ahead.overdue
        due += seen
        self._say(f"the first week passes: {due:,} messages in {self._given.seconds:.0f} s")
        deadline = max(until.timestamp(), time.time()) + AFTERWARDS
        while len(board.seen) < due and time.time() < deadline:
            time.sleep(0.25)
        self._must(len(board.seen) >= due, f"{due - len(board.seen)} due messages did not arrive")
        return len(board.seen)

    def _forecast(self) -> None:
        options = ForecastOptions(
            stores=self._stores,
            bucket=timedelta(minutes=1),
            ahead=timedelta(days=370),
            capacity=1,
        )
        report = forecast(options, clock=self._clock)
        (self._out / "forecast.html").write_text(forecast_page(report), "utf-8")
        document = report.document()
        names = ("messages", "overdue", "drain")
        self.figures["forecast"] = {name: document[name] for name in names}
        self.figures["forecast"]["busiest_minute"] = document["peaks"][0]

    def _lateness(self, spark: Any, due: int) -> None:
        options = LatenessOptions(stores=self._stores, by=("endpoint",), slo=timedelta(seconds=5))
        report = lateness(spark, options, clock=self._clock)
        (self._out / "lateness.html").write_text(lateness_page(report), "utf-8")
        (self.figures["lateness"],) = report.document()["groups"]
        self._must(
            report.messages == due, f"history tells of {report.messages} of {due} dispatches"
        )
        self._must(report.groups[0]["least"] >= 0, "a message was early")

    def _reconcile(self, spark: Any, name: str, table: str | None) -> ReconcileReport:
        self._say(name)
        report = reconcile(
            spark, ReconcileOptions(stores=self._stores, archive=table), clock=self._clock
        )
        self.figures[name] = report.document()["verdicts"]
        self._must(not report.is_broken, f"{name}: something is lost, or sent and pending")
        self._must(report.is_decidable, f"{name}: a loss could not have been seen")
        return report

    def _archive(self, quick_until: datetime) -> None:
        # All history older than a minute: that of the year is young on a day like this.
        time.sleep(max(0.0, quick_until.timestamp() + self._given.archive_after - time.time()))
        self._say("archiving")
        options = ArchiveOptions(
            store=self._stores[0],
            to=self._lake,
            older_than=timedelta(minutes=1),
        )
        report = archive(options, clock=self._clock)
        self.figures["archive"] = report.document()
        self._must(report.written == report.removed > 0, "archive removed other events")

    def _compare(
        self, before: ReconcileReport, after: ReconcileReport, board: Board, due: int
    ) -> None:
        self._must(before.counts == after.counts, "the archive changes verdicts")
        sent = before.counts.get(Verdict.OK, 0) + before.counts.get(Verdict.LATE, 0)
        self._must(sent == due, f"{sent} verdicts of a dispatch, {due} arrived")
        repeated = sum(board.seen.values()) - len(board.seen)
        self._must(repeated == 0, f"{repeated} messages came twice")

    def _must(self, well: bool, otherwise: str) -> None:
        if not well:
            self.wrong.append(otherwise)

    def _say(self, text: str) -> None:
        print(f"… {text}", file=sys.stderr, flush=True)


def main() -> int:
    given = _arguments()
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="flights-pipeline-"))
    try:
        play = Play(given, folder, out)
        play.run()
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(play.figures, indent=2))
    for wrong in play.wrong:
        print(f"WRONG: {wrong}", file=sys.stderr)
    pictures = ", ".join(str(path) for path in sorted(out.glob("*.html")))
    print(f"{'FAILED' if play.wrong else 'All is well'}; pictures: {pictures}", file=sys.stderr)
    return 1 if play.wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A year of flights from New York through the data pipeline.",
        epilog="Without --store everything is in one SQLite file, and no server is needed.",
    )
    parser.add_argument(
        "--store", metavar="URL", help="postgresql+psycopg://…, in an empty database"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the first week takes")
    parser.add_argument("--lead", type=float, default=50.0, help="seconds until it begins")
    parser.add_argument("--archive-after", type=float, default=61.0, help="seconds of rest")
    parser.add_argument("--out", default="build/demo-pipeline", help="folder for the pictures")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with store and archive"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
