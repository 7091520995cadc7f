"""``run --processes N``: the parent, which only looks after its children."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.health import HealthFile
from timeoutmgr.cli.serving import stop_signals

logger = logging.getLogger(__name__)

_LOOK: Final = 0.1
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_STEADY: Final = 60.0
"""Seconds after which a child has shown that it can run: its next death is a first one."""
_PATIENCE: Final = 90.0
"""Seconds that children get to stop cleanly, somewhat more than an endpoint takes at most."""
# To start again would end the same way.
_FINAL: Final = frozenset({Exit.USAGE, Exit.CONFIGURATION, Exit.CRITICAL})


def command_line(config: Path | None, app: str | None, *, verbose: bool) -> list[str]:
    """Return the command that runs this program again with the same settings."""
    command = [sys.executable, "-m", "timeoutmgr"]
    command += ["--config", str(config)] if config is not None else []
    command += ["--app", app] if app is not None else []
    return [*command, *(["--verbose"] if verbose else []), "run"]


class Supervisor:
    """Starts children, starts them again when they die, and stops all of them together.

    A child is a fresh process, never a fork: threads and connections do not survive one. It
    holds the end of a socket, so that it stops when this process is gone, however it went.
    """

    def __init__(self, command: list[str], count: int, health_file: Path | None) -> None:
        self._children = [
            Child(number, command, _numbered(health_file, number)) for number in range(1, count + 1)
        ]
        self._health_file = health_file
        self._asked = threading.Event()

    def run(self) -> tuple[Exit, str | None]:
        """Run until a signal, or the end of a child that stops all; return code and last line."""
        health = None if self._health_file is None else HealthFile(self._health_file)
        ended: Exit | None = None
        try:
            with stop_signals(self._asked.set):
                next_health = 0.0
                while not self._asked.is_set() and ended is None:
                    ended = self._look()
                    if health is not None and time.monotonic() >= next_health:
                        health.write(self._health())
                        next_health = time.monotonic() + 1.0
                    self._asked.wait(_LOOK)
        finally:
            killed = self._stop_all()
            if health is not None:
                health.__exit__(None, None, None)
        for child in self._children:
            if child.critical is not None:
                return Exit.CRITICAL, child.critical
        return (Exit.FAILED if killed else Exit.OK) if ended is None else ended, None

    def _look(self) -> Exit | None:
        """Start what is to be started; return how it all ended, if one child's end says so."""
        for child in self._children:
            if not child.is_running:
                child.start_when_due()
                continue
            code = child.ended()
            if code is None:
                continue
            if code in _FINAL:
                return Exit(code)
            if code == Exit.OK and child.by_itself:
                logger.info("process %d was stopped from inside; all are stopped", child.number)
                return Exit.OK
            child.wait_before_next(code)
        return None

    def _stop_all(self) -> bool:
        """Stop every child; return whether one had to be killed."""
        running = [child for child in self._children if child.is_running]
        for child in running:
            child.terminate()
        deadline = time.monotonic() + _PATIENCE
        killed = False
        for child in running:
            if not child.wait(max(0.0, deadline - time.monotonic())):
                logger.error("process %d did not stop in time; it is killed", child.number)
                child.kill()
                killed = True
        return killed

    def _health(self) -> dict[str, object]:
        return {"pid": os.getpid(), "processes": [child.health() for child in self._children]}


class Child:
    """One place in the row of processes, and whoever holds it now."""

    def __init__(self, number: int, command: list[str], health_file: Path | None) -> None:
        self.number = number
        self.critical: str | None = None
        self.by_itself = False
        self._command = command
        self._health_file = health_file
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._restarts = -1
        self._pause = 0.0
        self._started = 0.0
        self._due = 0.0

    @property
    def is_running(self) -> bool:
        """Whether a process holds the place, as far as was seen."""
        return self._process is not None

    def start_when_due(self) -> None:
        """Start a process, unless the last one died a moment ago."""
        if time.monotonic() < self._due:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            own = ["--child", str(self.number), str(theirs.fileno())]
            health = [] if self._health_file is None else ["--health-file", str(self._health_file)]
            self._process = subprocess.Popen(
                [*self._command, *own, *health],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        ours.setblocking(False)
        self._line = ours
        self._started = time.monotonic()
        self._restarts += 1
        logger.info("process %d runs (pid %d)", self.number, self._process.pid)

    def ended(self) -> int | None:
        """Return the exit code of the process if it ended, None while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._read_report()
            self._is_gone()
        return code

    def wait_before_next(self, code: int) -> None:
        """Set when the next process is to be started: 1, 2, 4 … 30 s after the death."""
        steady = time.monotonic() - self._started > _STEADY
        self._pause = (
            _FIRST_PAUSE if steady or not self._pause else min(2 * self._pause, _LONGEST_PAUSE)
        )
        self._due = time.monotonic() + self._pause
        how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
        logger.error("process %d %s; another follows in %g s", self.number, how, self._pause)

    def terminate(self) -> None:
        """Ask the process to stop cleanly."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float) -> bool:
        """Wait for the end of the process; return whether it came."""
        assert self._process is not None
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self._read_report()
        self._is_gone()
        return True

    def kill(self) -> None:
        """End the process at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._is_gone()

    def _is_gone(self) -> None:
        """Forget the process, and what it last said: a killed one could not take that back."""
        self._process = None
        if self._health_file is not None:
            self._health_file.unlink(missing_ok=True)

    def health(self) -> dict[str, object]:
        """Return what is known of the process."""
        said: object = None
        if self._health_file is not None:
            try:
                said = json.loads(self._health_file.read_text())
            except (OSError, ValueError):
                said = None  # it has not written any yet, or died
        pid = None if self._process is None else self._process.pid
        return {
            "number": self.number,
            "pid": pid,
            "restarts": max(0, self._restarts),
            "health": said,
        }

    def _read_report(self) -> None:
        if self._line is None:
            return
        line, self._line = self._line, None
        with line:
            try:
                text = line.recv(65_536)
            except OSError:
                text = b""
        try:
            report = json.loads(text) if text else {}
        except ValueError:
            report = {}  # it was killed while it wrote
        self.by_itself = bool(report.get("by_itself"))
        self.critical = report.get("critical") or self.critical


def _numbered(path: Path | None, number: int) -> Path | None:
    return None if path is None else path.with_name(f"{path.name}.{number}")
