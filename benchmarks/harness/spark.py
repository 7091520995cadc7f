"""What Spark's work costs: the JVM, its Python workers and the database's backends together."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from .figures import Sample

_TICKS = os.sysconf("SC_CLK_TCK")


class Cost:
    """Measures whole trees of processes, those that ended meanwhile included."""

    def __init__(self, *roots: int) -> None:
        self._roots = (os.getpid(), *roots)

    def of(self, count: int, work: Callable[[], object]) -> Sample:
        """Run *work*, which is about *count* rows."""
        before, began = self._seconds(), time.perf_counter()
        work()
        return Sample(count, time.perf_counter() - began, self._seconds() - before)

    def _seconds(self) -> float:
        return sum(_cpu(pid) for root in self._roots for pid in _tree(root))


def jvm_high_water_mb() -> float:
    """Return the most memory that a JVM below this process ever had."""
    found = [0.0]
    for pid in _tree(os.getpid()):
        status = Path(f"/proc/{pid}/status")
        if status.exists() and Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            found.append(int(lines["VmHWM"].split()[0]) / 1024)
    return max(found)


def _tree(root: int) -> list[int]:
    found, seen = [root], [root]
    while seen:
        pid = seen.pop()
        try:
            tasks = Path(f"/proc/{pid}/task").iterdir()
            children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
        except FileNotFoundError:
            continue
        found += children
        seen += children
    return found


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return 0.0
    # Its own, and that of the children that it has waited for.
    return sum(int(fields[at]) for at in (11, 12, 13, 14)) / _TICKS
