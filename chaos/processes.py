"""Helpers for all processes of a run: variables, stop, readiness, log."""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

logger = logging.getLogger(__name__)

CHECKOUT: Final = Path(__file__).parents[1]
"""The folder in which a process finds this package, which no wheel holds."""

PATIENCE: Final = 30.0
"""Seconds that a process may take to start, and to stop."""


class ChaosFailed(Exception):
    """The run could not be carried out; the text ends with the last lines of a log."""


class Running(Protocol):
    """A started process: a child of the fork server, or a ``subprocess.Popen``."""

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


def clean_variables() -> dict[str, str]:
    """Return the environment variables without the user's own settings, for any folder."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIMEOUTMGR_") or name.startswith("TIMEOUTMGR_TEST_")
    }
    given = filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))
    folders = [CHECKOUT, *(Path(folder).resolve() for folder in given)]
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def stop(process: Running) -> None:
    """Ask *process* to stop cleanly; kill it after our patience. A dead process is fine."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        logger.warning("process %d did not stop within %g s", process.pid, PATIENCE)
        process.kill()
        process.wait(PATIENCE)


def wait_for(ready: Path, is_well: Callable[[], bool]) -> bool:
    """Return whether the file *ready* appears while *is_well*, within our patience."""
    deadline = time.monotonic() + PATIENCE
    while not ready.exists():
        if not is_well() or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def last_lines(log: Path) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
