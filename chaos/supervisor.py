"""Supervised processes of a run: start, kill, pause, restart and stop."""

import logging
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.environment import ENVIRONMENT, PROCESS
from chaos.forkserver_client import Child, ForkServer, Streams
from chaos.incidents import Incident
from chaos.plan import FaultKind
from chaos.processes import PATIENCE, ChaosFailed, last_lines, stop, wait_for
from timeoutmgr.message.instants import Micros

logger = logging.getLogger(__name__)

RESTART_PAUSE: Final = 0.5
"""Seconds until a process that ended by itself is started again."""


@dataclass(slots=True, kw_only=True)
class SupervisedProcess:
    """A process with all its incarnations, each forked by the fork server.

    The process calls the function *entry*, which finds *arguments* in ``sys.argv`` and reads the
    file *environment*. Output goes to *log*; the first incarnation creates the file *ready*.
    """

    name: str
    fork_server: ForkServer
    entry: str
    arguments: list[str] = field(default_factory=list)
    environment: Path
    log: Path
    ready: Path
    incarnations: int = 0
    ended: int = 0
    """Number of ends without a kill."""
    _child: Child | None = None
    _paused: Micros | None = None
    _resume: float = 0.0
    _restart_at: float | None = None
    _is_kept: bool = field(default=True)

    @property
    def incarnation(self) -> str:
        """Name of the present incarnation."""
        return f"{self.name}#{self.incarnations}"

    @property
    def pid(self) -> int:
        """Process id."""
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
        """Start the next incarnation."""
        self.incarnations += 1
        self._restart_at = None
        with self.log.open("ab") as log:
            log.write(f"--- {self.incarnation}\n".encode())
        variables = {ENVIRONMENT: str(self.environment), PROCESS: self.incarnation}
        streams = Streams(self.log)
        self._child = self.fork_server.start(self.entry, self.arguments, streams, variables)

    def wait_until_ready(self) -> None:
        """Return when the process is ready; raise ChaosFailed if it ends before."""
        if not wait_for(self.ready, lambda: self.code is None):
            raise ChaosFailed(f"{self.name} does not start:\n{self.last_words()}")

    def kill(self) -> list[Incident]:
        """Kill it as a crash would, and start it again; return the incidents."""
        if self.code is not None:
            return []
        befell = self._resumed()
        begin = now()
        self._running.kill()
        self._running.wait(PATIENCE)
        befell.append(
            Incident(kind=FaultKind.KILL, process=self.incarnation, begin=begin, end=now())
        )
        self.start()
        return befell

    def pause(self, seconds: float) -> None:
        """Stop it for *seconds*, at least; a second pause may prolong the first."""
        if self.code is not None:
            return
        if self._paused is None:
            self._paused = now()
            self._running.send_signal(signal.SIGSTOP)
        self._resume = max(self._resume, time.monotonic() + seconds)

    def supervise(self) -> list[Incident]:
        """Continue the process after its pause, start it after its end; return ended pauses."""
        befell: list[Incident] = []
        if self._paused is not None and time.monotonic() >= self._resume:
            befell = self.resume()
        if self._is_kept and self.code is not None:
            if self._restart_at is None:
                self.ended += 1
                logger.warning("%s ended with code %s", self.incarnation, self.code)
                self._restart_at = time.monotonic() + RESTART_PAUSE
            elif time.monotonic() >= self._restart_at:
                self.start()
        return befell

    def resume(self) -> list[Incident]:
        """Continue it if it is paused; return the pause."""
        if self._paused is not None and self.code is None:
            self._running.send_signal(signal.SIGCONT)
        return self._resumed()

    def stop(self) -> None:
        """Ask it to stop cleanly; kill it after our patience. A dead process is fine."""
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
        return [Incident(kind=FaultKind.PAUSE, process=self.incarnation, begin=begin, end=now())]


def now() -> Micros:
    """Return this host's time."""
    return time.time_ns() // 1_000
