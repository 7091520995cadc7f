"""A part of a core for a process, by the kernel's control groups: root on Linux only.

What is held to so little leaves the cores free, whatever the machine: so two processes can be
measured beside one where broker, database and consumer have but two cores with them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PERIOD_US = 10_000
"""Short, so that whoever has had its part does not sit on a lock for long."""
_OLD, _NEW = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def can_share() -> bool:
    """Return whether this process may make such groups."""
    return _place() is not None


@contextmanager
def held(process: int, part: float) -> Iterator[None]:
    """Hold *process* to *part* of a core; on the way out it has to have ended."""
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
