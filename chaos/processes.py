"""What processes of a run have in common: how they are asked to stop, and what is told of them."""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

logger = logging.getLogger(__name__)

PATIENCE: Final = 30.0
"""Seconds that a process may take to start, and to stop."""


class ChaosFailed(Exception):
    """The run could not be carried out; the text holds the end of a log where there is one."""


class Running(Protocol):
    """A process that was started: of the nursery, or one of ``subprocess``."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        ...

    def wait(self, timeout: float) -> int:
        """Return the exit code; raises subprocess.TimeoutExpired after *timeout* seconds."""
        ...

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        ...

    def kill(self) -> None:
        """Kill it as a crash would."""
        ...


def environment() -> dict[str, str]:
    """Return the environment without settings of somebody's own endpoints."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIMEOUTMGR_") or name.startswith("TIMEOUTMGR_TEST_")
    }


def stop(process: Running) -> None:
    """Ask *process* to stop cleanly; kill what does not. Being dead already is fine."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        logger.warning("process %d did not stop within %g s", process.pid, PATIENCE)
        process.kill()
        process.wait(PATIENCE)


def wait_for(ready: Path, is_well: Callable[[], bool]) -> bool:
    """Return whether the file *ready* comes into being while *is_well*, within our patience."""
    deadline = time.monotonic() + PATIENCE
    while not ready.exists():
        if not is_well() or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def last_lines(log: Path) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
