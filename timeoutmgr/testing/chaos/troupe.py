"""The processes of a run: started, killed, paused, started again, and at the end stopped."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.incidents import Incident
from timeoutmgr.testing.chaos.plan import FaultKind
from timeoutmgr.testing.chaos.scene import PROCESS, SCENE

logger = logging.getLogger(__name__)

PATIENCE: Final = 30.0
"""Seconds that a process may take to start, and to stop."""
BEFORE_THE_NEXT_LIFE: Final = 0.5
"""Seconds after which a process is started again that ended by itself."""


class ChaosFailed(Exception):
    """The run could not be carried out; the text holds the end of a log where there is one."""


@dataclass(slots=True, kw_only=True)
class Part:
    """A process with all its lives, one after the other. It is a child of this one.

    *scene* is the file that it reads; its output goes to *log*; it makes the file *ready* in its
    first life, once it works.
    """

    name: str
    command: list[str]
    scene: Path
    log: Path
    ready: Path
    lives: int = 0
    ended: int = 0
    """How often it ended by itself."""
    _child: subprocess.Popen[bytes] | None = None
    _paused: Micros | None = None
    _resume: float = 0.0
    _next_life: float | None = None
    _is_kept: bool = field(default=True)

    @property
    def life(self) -> str:
        """The name of its present life."""
        return f"{self.name}#{self.lives}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._running.poll()

    @property
    def is_paused(self) -> bool:
        """Whether it is stopped now."""
        return self._paused is not None

    def start(self) -> None:
        """Start its next life."""
        self.lives += 1
        self._next_life = None
        with self.log.open("ab") as log:
            log.write(f"--- {self.life}\n".encode())
            log.flush()
            self._child = subprocess.Popen(
                [sys.executable, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(self.scene, self.life),
            )

    def wait_until_ready(self) -> None:
        """Return when it works; raise ChaosFailed where it does not."""
        deadline = time.monotonic() + PATIENCE
        while not self.ready.exists():
            if self.code is not None or time.monotonic() > deadline:
                raise ChaosFailed(f"{self.name} does not start:\n{self.last_words()}")
            time.sleep(0.02)

    def kill(self) -> list[Incident]:
        """Kill it as a crash would, and start it again; return what befell it."""
        if self.code is not None:
            return []
        befell = self._resumed()
        begin = now()
        self._running.kill()
        self._running.wait()
        befell.append(Incident(kind=FaultKind.KILL, process=self.life, begin=begin, end=now()))
        self.start()
        return befell

    def pause(self, seconds: float) -> None:
        """Stop it for *seconds*; a longer pause than the present one prolongs it."""
        if self.code is not None:
            return
        if self._paused is None:
            self._paused = now()
            self._running.send_signal(signal.SIGSTOP)
        self._resume = max(self._resume, time.monotonic() + seconds)

    def tend(self) -> list[Incident]:
        """Continue it when its pause is over, start it when it is gone; return ended pauses."""
        befell: list[Incident] = []
        if self._paused is not None and time.monotonic() >= self._resume:
            befell = self.resume()
        if self._is_kept and self.code is not None:
            if self._next_life is None:
                self.ended += 1
                logger.warning("%s ended with code %s", self.life, self.code)
                self._next_life = time.monotonic() + BEFORE_THE_NEXT_LIFE
            elif time.monotonic() >= self._next_life:
                self.start()
        return befell

    def resume(self) -> list[Incident]:
        """Continue it if it is paused; return the pause."""
        if self._paused is not None and self.code is None:
            self._running.send_signal(signal.SIGCONT)
        return self._resumed()

    def stop(self) -> None:
        """Ask it to stop cleanly; kill what does not. Being dead already is fine."""
        self._is_kept = False
        if self._child is None:
            return
        self.resume()
        if self.code is None:
            self._running.send_signal(signal.SIGTERM)
        try:
            self._running.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            logger.warning("%s did not stop within %g s", self.life, PATIENCE)
            self._running.kill()
            self._running.wait()

    def last_words(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, "it was started"
        return self._child

    def _resumed(self) -> list[Incident]:
        if self._paused is None:
            return []
        begin, self._paused, self._resume = self._paused, None, 0.0
        return [Incident(kind=FaultKind.PAUSE, process=self.life, begin=begin, end=now())]


def now() -> Micros:
    """Return this host's time."""
    return time.time_ns() // 1_000


def _environment(scene: Path, life: str) -> dict[str, str]:
    # Settings of somebody's own endpoints must not reach into the run.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIMEOUTMGR_") or name.startswith("TIMEOUTMGR_TEST_")
    }
    return {**kept, SCENE: str(scene), PROCESS: life}
