"""Shared parts of all peers: the job, its tally, and the two ways to call a peer."""

import os
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

TEXT = "x" * 512
HEADERS = {f"header-{number}": f"value number {number}" for number in range(5)}
TALLY = "BENCH_TALLY"


def note(text: str, headers: dict[str, str]) -> None:
    """Record the time at which a job ran: this is the job, which many processes may run."""
    record(time.time())


def record(value: float) -> None:
    """Append *value* to the tally."""
    os.write(_tally(), struct.pack("d", value))


def noted(tally: Path) -> list[float]:
    """Return the times at which jobs ran, or the values that they recorded."""
    return [at for (at,) in struct.iter_unpack("d", tally.read_bytes())]


@dataclass(frozen=True)
class Given:
    """The order to a peer."""

    url: str
    count: int
    due: float

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.due, UTC)

    @property
    def delay(self) -> float:
        return self.due - time.time()

    @property
    def postgres(self) -> str:
        """The URL in the form for libpq."""
        return self.url.replace("+psycopg", "")


def given() -> Given:
    """Return the order to this process."""
    _, _, url, count, due, _ = sys.argv
    return Given(url, int(count), float(due))


def main(accept: Callable[[Given], None], work: Callable[[Given], None]) -> None:
    """Carry out the order of the command line."""
    (accept if sys.argv[1] == "accept" else work)(given())


_open: list[int] = []


def _tally() -> int:
    if not _open:
        _open.append(os.open(os.environ[TALLY], os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    return _open[0]
