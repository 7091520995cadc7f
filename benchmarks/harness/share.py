"""A part of a core for a process, by the kernel's control groups: only for root on Linux.

Such limits leave cores free on any machine: two processes can be compared with a single process,
although broker, database and consumer share two cores with them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PERIOD_US = 10_000
"""Short: a process that used up its share does not keep a lock for long."""
_OLD, _NEW = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def can_share() -> bool:
    """Return whether this process may make such groups."""
    return _place() is not None


@contextmanager
def held(process: int, part: float) -> Iterator[None]:
    """Limit *process* to *part* of a core; it must have ended by the end of the block."""
    place = _place()
    if place is None:
        raise PermissionError("control groups of the processor are not this user's to make")
    folder = place / f"tmbench{process}"
    folder.mkdir()
    try:
        quota = round(part * _PERIOD_US)
        if place == _OLD:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        (folder / "cgroup.procs").write_text(str(process))
        yield
    finally:
        folder.rmdir()


def _place() -> Path | None:
    if os.access(_OLD / "cgroup.procs", os.W_OK):
        return _OLD
    control = _NEW / "cgroup.subtree_control"
    if os.access(control, os.W_OK) and "cpu" in control.read_text().split():
        return _NEW
    return None
