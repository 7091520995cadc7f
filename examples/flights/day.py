"""A real day of departures from New York: the notices that its flights cause."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).with_name("flights-2013-12-23.csv")
DATE: Final = "2013-12-23"
EASTERN: Final = timezone(timedelta(hours=-5), "EST")
"""New York's zone on that day; fixed, since not every machine has a time zone database."""

CHECK_IN_CLOSES: Final = "CheckInCloses"
DEPARTED_LATE: Final = "DepartedLate"
CLOSES_BEFORE: Final = timedelta(minutes=45)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """One flight. *delay* is None for a flight that was cancelled."""

    carrier: str
    number: str
    tail: str
    origin: str
    destination: str
    scheduled: datetime
    delay: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message to deliver at *at*, in the real time of that day; *id* is its message id."""

    id: str
    type: str
    at: datetime
    flight: Flight

    @property
    def body(self) -> dict[str, str | int]:
        """The body; it repeats the id, so that a copy under another id would be noticed."""
        return {
            "notice": self.id,
            "flight": f"{self.flight.carrier} {self.flight.number}",
            "tail": self.flight.tail,
            "from": self.flight.origin,
            "to": self.flight.destination,
            "at": self.at.isoformat(),
            "minutes_late": (self.flight.delay or timedelta()) // timedelta(minutes=1),
        }


def read_flights(path: Path = DATA) -> list[Flight]:
    with path.open(newline="", encoding="utf-8") as file:
        return [_flight(row) for row in csv.DictReader(file)]


def notices(flights: Sequence[Flight]) -> list[Notice]:
    """Return all notices in order of their due times."""
    found = []
    for flight in flights:
        found.append(_notice(flight, CHECK_IN_CLOSES, flight.scheduled - CLOSES_BEFORE))
        if flight.delay is not None and flight.delay > timedelta():
            # Not the column dep_time: that is a clock, and wraps at midnight.
            found.append(_notice(flight, DEPARTED_LATE, flight.scheduled + flight.delay))
    return sorted(found, key=lambda notice: (notice.at, notice.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Squeeze:
    """Maps the real day onto *seconds* that begin at *begin*."""

    begin: datetime
    seconds: float
    first: datetime
    last: datetime

    @classmethod
    def of(cls, day: Sequence[Notice], begin: datetime, seconds: float) -> "Squeeze":
        return cls(begin=begin, seconds=seconds, first=day[0].at, last=day[-1].at)

    def due(self, notice: Notice) -> datetime:
        """Return when *notice* is due in the squeezed day."""
        share = (notice.at - self.first) / (self.last - self.first)
        return self.begin + timedelta(seconds=share * self.seconds)

    def clock(self, now: datetime) -> datetime:
        """Return the time in New York for an instant of the squeezed day."""
        share = (now - self.begin) / timedelta(seconds=self.seconds)
        return self.first + min(max(share, 0.0), 1.0) * (self.last - self.first)


def _flight(row: dict[str, str]) -> Flight:
    clock = datetime.strptime(f"{DATE} {row['sched_dep_time']}", "%Y-%m-%d %H%M")
    return Flight(
        carrier=row["carrier"],
        number=row["flight"],
        tail=row["tailnum"],
        origin=row["origin"],
        destination=row["dest"],
        scheduled=clock.replace(tzinfo=EASTERN).astimezone(UTC),
        delay=timedelta(minutes=int(row["dep_delay"])) if row["dep_delay"] else None,
    )


def _notice(flight: Flight, kind: str, at: datetime) -> Notice:
    name = f"{flight.carrier}{flight.number}-{flight.origin}-{kind}"
    return Notice(id=name, type=kind, at=at, flight=flight)
