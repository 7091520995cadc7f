"""``run --processes N``: the parent, which starts and supervises its children."""

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

from timeoutmgr.cli.endpoint_process import HealthFile, stop_signals
from timeoutmgr.cli.exits import Exit

logger = logging.getLogger(__name__)

_POLL_INTERVAL: Final = 0.1
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_STEADY: Final = 60.0
"""Seconds after which a child has shown that it can run: its next death counts as the first."""
_PATIENCE: Final = 90.0
"""Seconds that children get to stop cleanly, somewhat more than an endpoint takes at most."""
# A restart would end the same way.
_FINAL: Final = frozenset({Exit.USAGE, Exit.CONFIGURATION, Exit.CRITICAL})


def command_line(config: Path | None, app: str | None, *, verbose: bool) -> list[str]:
    """Return the command that runs this program again with the same settings."""
    command = [sys.executable, "-m", "timeoutmgr"]
    command += ["--config", str(config)] if config is not None else []
    command += ["--app", app] if app is not None else []
    return [*command, *(["--verbose"] if verbose else []), "run"]


class Supervisor:
    """Starts children, starts them again when they die, and stops all of them together.

    A child is a fresh process: threads and connections do not survive a fork. It holds the end
    of a socket, so that it stops when this process ends, however it ended.
    """

    def __init__(self, command: list[str], count: int, health_file: Path | None) -> None:
        self._children = [
            Child(number, command, _numbered(health_file, number)) for number in range(1, count + 1)
        ]
        self._health_file = health_file
        self._asked = threading.Event()

    def run(self) -> tuple[Exit, str | None]:
        """Run until a signal, or the end of a child that ends all; return code and last line."""
        health = None if self._health_file is None else HealthFile(self._health_file)
        ended: Exit | None = None
        try:
            with stop_signals(self._asked.set):
                next_health = 0.0
                while not self._asked.is_set() and ended is None:
                    ended = self._step()
                    if health is not None and time.monotonic() >= next_health:
                        health.write(self._health())
                        next_health = time.monotonic() + 1.0
                    self._asked.wait(_POLL_INTERVAL)
        finally:
            killed = self._stop_all()
            if health is not None:
                health.__exit__(None, None, None)
        for child in self._children:
            if child.critical is not None:
                return Exit.CRITICAL, child.critical
        return (Exit.FAILED if killed else Exit.OK) if ended is None else ended, None

    def _step(self) -> Exit | None:
        """Start due children; return the exit code if the end of a child ends the run."""
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
                logger.info(
                    "endpoint of process %d stopped itself; supervisor stops all processes",
                    child.number,
                    extra={"event": "endpoint_stopped"},
                )
                return Exit.OK
            child.wait_before_next(code)
        return None

    def _stop_all(self) -> bool:
        """Stop every child; return whether any child had to be killed."""
        running = [child for child in self._children if child.is_running]
        for child in running:
            child.terminate()
        deadline = time.monotonic() + _PATIENCE
        killed = False
        for child in running:
            if not child.wait(max(0.0, deadline - time.monotonic())):
                logger.error(
                    "supervisor kills process %d, which did not stop in time",
                    child.number,
                    extra={"event": "process_killed"},
                )
                child.kill()
                killed = True
        return killed

    def _health(self) -> dict[str, object]:
        return {"pid": os.getpid(), "processes": [child.health() for child in self._children]}


class Child:
    """A numbered place for a process, and the process that runs in it."""

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
        logger.info(
            "supervisor started process %d (pid %d)",
            self.number,
            self._process.pid,
            extra={"event": "process_started"},
        )

    def ended(self) -> int | None:
        """Return the exit code of the process if it ended, None while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._read_report()
            self._forget()
        return code

    def wait_before_next(self, code: int) -> None:
        """Set when the next process is to be started: 1, 2, 4 … 30 s after the death."""
        steady = time.monotonic() - self._started > _STEADY
        self._pause = (
            _FIRST_PAUSE if steady or not self._pause else min(2 * self._pause, _LONGEST_PAUSE)
        )
        self._due = time.monotonic() + self._pause
        how = f"ended by signal {-code}" if code < 0 else f"exited with {code}"
        logger.error(
            "supervisor restarts process %d in %g s: %s",
            self.number,
            self._pause,
            how,
            extra={"event": "process_ended"},
        )

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
        self._forget()
        return True

    def kill(self) -> None:
        """End the process at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        """Forget the process, and remove its health file: a killed process could not remove it."""
        self._process = None
        if self._health_file is not None:
            self._health_file.unlink(missing_ok=True)

    def health(self) -> dict[str, object]:
        """Return the state of the process, for the health file."""
        said: object = None
        if self._health_file is not None:
            try:
                said = json.loads(self._health_file.read_text())
            except (OSError, ValueError):
                said = None  # the process has not written it yet, or died
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
            report = {}  # the process was killed while it wrote
        self.by_itself = bool(report.get("by_itself"))
        self.critical = report.get("critical") or self.critical


def _numbered(path: Path | None, number: int) -> Path | None:
    return None if path is None else path.with_name(f"{path.name}.{number}")
