"""Cost of Spark's work: the sum for the JVM, its Python workers and the database's backends."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from .figures import Sample

_TICKS = os.sysconf("SC_CLK_TCK")
_CHILD_SIGNAL = 1 << 16
_SAMPLE_INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class Process:
    """Processor time of a process so far, including children for which it has waited."""

    name: str
    parent: int
    seconds: float
    of_one_that_waits: bool
    """Whether the parent's time will include that of this process; otherwise it vanishes."""


class Cost:
    """Measures whole trees of processes, including ended processes.

    Spark's daemon does not wait for its workers, so the time of an ended worker is lost. Therefore
    workers are sampled, and the last sample of each counts.
    """

    def __init__(self, *roots: int) -> None:
        self._roots = (os.getpid(), *roots)

    def of(self, count: int, work: Callable[[], object]) -> Sample:
        """Run *work*, which processes *count* rows."""
        before = self._sample()
        last, done = dict(before), threading.Event()

        def watch() -> None:
            while not done.wait(_SAMPLE_INTERVAL):
                last.update(self._sample())

        watcher, began = threading.Thread(target=watch), time.perf_counter()
        watcher.start()
        try:
            work()
        finally:
            took = time.perf_counter() - began
            done.set()
            watcher.join()
        after = self._sample()
        vanished = {
            pid: one for pid, one in last.items() if pid not in after and not one.of_one_that_waits
        }
        parts: dict[str, float] = {}
        for one in (after | vanished).values():
            parts[one.name] = parts.get(one.name, 0.0) + one.seconds
        for one in before.values():  # the parent of an ended child has its time now
            parts[one.name] = parts.get(one.name, 0.0) - one.seconds
        return Sample(count, took, sum(parts.values()), parts)

    def _sample(self) -> dict[int, Process]:
        there = _processes()
        found: dict[int, Process] = {}
        waiting = [(root, True) for root in self._roots]
        while waiting:
            pid, parent_waits = waiting.pop()
            if pid in there and pid not in found:
                found[pid] = replace(there[pid], of_one_that_waits=parent_waits)
                waits = _waits(pid)
                waiting += [(child, waits) for child, one in there.items() if one.parent == pid]
        return found


def jvm_high_water_mb() -> float:
    """Return the most memory that a JVM below this process ever had."""
    below, there = [0.0], _processes()
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += [child for child, one in there.items() if one.parent == pid]
        lines = _status(pid)
        if there[pid].name == "java" and "VmHWM" in lines:
            below.append(int(lines["VmHWM"].split()[0]) / 1024)
    return max(below)


def _waits(pid: int) -> bool:
    return not int(_status(pid).get("SigIgn", "0"), 16) & _CHILD_SIGNAL


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def _processes() -> dict[int, Process]:
    """Return all processes: the kernel's list of a process' children may be incomplete."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                head, _, tail = (entry / "stat").read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
            fields = tail.split()
            # The process' own time, and that of children for which it has waited.
            seconds = sum(int(fields[at]) for at in (11, 12, 13, 14)) / _TICKS
            found[int(entry.name)] = Process(
                head.partition("(")[2], int(fields[1]), seconds, of_one_that_waits=True
            )
    return found
