"""The processes of a run: started, killed, paused, started again, and at the end stopped."""

import logging
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.births import Child, Nursery
from timeoutmgr.testing.chaos.incidents import Incident
from timeoutmgr.testing.chaos.plan import FaultKind
from timeoutmgr.testing.chaos.processes import PATIENCE, ChaosFailed, last_lines, stop, wait_for
from timeoutmgr.testing.chaos.scene import PROCESS, SCENE

logger = logging.getLogger(__name__)

BEFORE_THE_NEXT_LIFE: Final = 0.5
"""Seconds after which a process is started again that ended by itself."""


@dataclass(slots=True, kw_only=True)
class Part:
    """A process with all its lives, one after the other, each born in the nursery.

    It is the function *entry*, which finds *arguments* in ``sys.argv``. *scene* is the file that
    it reads; its output goes to *log*; it makes the file *ready* in its first life, once it works.
    """

    name: str
    nursery: Nursery
    entry: str
    arguments: list[str] = field(default_factory=list)
    scene: Path
    log: Path
    ready: Path
    lives: int = 0
    ended: int = 0
    """How often it ended by itself."""
    _child: Child | None = None
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
        environment = {SCENE: str(self.scene), PROCESS: self.life}
        self._child = self.nursery.start(self.entry, self.arguments, self.log, environment)

    def wait_until_ready(self) -> None:
        """Return when it works; raise ChaosFailed where it does not."""
        if not wait_for(self.ready, lambda: self.code is None):
            raise ChaosFailed(f"{self.name} does not start:\n{self.last_words()}")

    def kill(self) -> list[Incident]:
        """Kill it as a crash would, and start it again; return what befell it."""
        if self.code is not None:
            return []
        befell = self._resumed()
        begin = now()
        self._running.kill()
        self._running.wait(PATIENCE)
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
        stop(self._child)

    def last_words(self) -> str:
        """Return the end of its log."""
        return last_lines(self.log)

    @property
    def _running(self) -> Child:
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
