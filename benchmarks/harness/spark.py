"""What Spark's work costs: the JVM, its Python workers and the database's backends together."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .figures import Sample

_TICKS = os.sysconf("SC_CLK_TCK")
_CHILD_SIGNAL = 1 << 16
_LOOK_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class Process:
    """What one process took so far: by itself, and by the children that it has waited for."""

    name: str
    seconds: float
    of_one_that_waits: bool
    """Whether its parent will have its seconds when it ends; else they vanish with it."""


class Cost:
    """Measures whole trees of processes, those that ended meanwhile included.

    Spark's daemon does not wait for its workers: what a worker took is nowhere once it has ended.
    So those are looked at now and then, and what they had at last counts.
    """

    def __init__(self, *roots: int) -> None:
        self._roots = (os.getpid(), *roots)

    def of(self, count: int, work: Callable[[], object]) -> Sample:
        """Run *work*, which is about *count* rows."""
        before = self._look()
        last, done = dict(before), threading.Event()

        def watch() -> None:
            while not done.wait(_LOOK_EVERY):
                last.update(self._look())

        watcher, began = threading.Thread(target=watch), time.perf_counter()
        watcher.start()
        try:
            work()
        finally:
            took = time.perf_counter() - began
            done.set()
            watcher.join()
        after = self._look()
        vanished = {
            pid: one for pid, one in last.items() if pid not in after and not one.of_one_that_waits
        }
        parts: dict[str, float] = {}
        for one in (after | vanished).values():
            parts[one.name] = parts.get(one.name, 0.0) + one.seconds
        for one in before.values():  # of one that its parent waited for, all is in its parent's now
            parts[one.name] = parts.get(one.name, 0.0) - one.seconds
        return Sample(count, took, sum(parts.values()), parts)

    def _look(self) -> dict[int, Process]:
        found: dict[int, Process] = {}
        for root in self._roots:
            waiting = [(root, True)]
            while waiting:
                pid, parent_waits = waiting.pop()
                # Never twice: between two looks one may end, and be in its parent's seconds then.
                one = _process(pid, parent_waits) if pid not in found else None
                if one is None:
                    continue
                found[pid] = one
                waits = _waits(pid)
                waiting += [(child, waits) for child in _children(pid)]
        return found


def jvm_high_water_mb() -> float:
    """Return the most memory that a JVM below this process ever had."""
    found, waiting = [0.0], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += _children(pid)
        one, lines = _process(pid, False), _status(pid)
        if one is not None and one.name == "java" and "VmHWM" in lines:
            found.append(int(lines["VmHWM"].split()[0]) / 1024)
    return max(found)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it has ended, or one of its threads has
        return []


def _waits(pid: int) -> bool:
    return not int(_status(pid).get("SigIgn", "0"), 16) & _CHILD_SIGNAL


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def _process(pid: int, parent_waits: bool) -> Process | None:
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()
    # Its own, and that of the children that it has waited for.
    seconds = sum(int(fields[at]) for at in (11, 12, 13, 14)) / _TICKS
    return Process(head.partition("(")[2], seconds, parent_waits)
