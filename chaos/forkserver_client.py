"""The nursery as seen from the run: starts processes, tells how they ended, leaves none behind."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from timeoutmgr.testing.chaos.processes import ChaosFailed, environment, last_lines

_BETWEEN_LOOKS: Final = 0.005


class Nursery:
    """Starts children by forking from one prepared process. Used by one thread.

    *urls* name the servers whose drivers are imported ahead. Raises ChaosFailed once the nursery
    itself has died: what it gave birth to has nobody then who could tell how it ended.
    """

    def __init__(self, log: Path, urls: Sequence[str] = ()) -> None:
        self._log = log
        self._numbers = itertools.count(1)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "timeoutmgr.testing.chaos.nursery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment(),
                text=True,
                # A group of its own: it ends as a whole, and Ctrl-C reaches only the run.
                process_group=0,
            )
        self.ask("import", list(urls))

    @property
    def pid(self) -> int:
        """Its process id, which is the process group of all its children."""
        return self._process.pid

    def start(
        self, entry: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> "Child":
        """Call the function *entry* (``module:name``) in a process of its own.

        It finds *arguments* in ``sys.argv``; what it prints is added to *log*.
        """
        order = {
            "entry": entry,
            "arguments": list(arguments),
            "log": str(log),
            "environment": dict(environment),
        }
        return Child(self, self.ask("start", order))

    def ask(self, order: str, given: Any) -> Any:
        """Return the answer to an order."""
        number = next(self._numbers)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([number, order, given]) + "\n")
            self._process.stdin.flush()
            # An answer to nobody is left where a signal has ended the question before.
            while line := self._process.stdout.readline():
                answered, answer = json.loads(line)
                if answered == number:
                    return answer
        except BrokenPipeError:
            pass
        raise ChaosFailed(f"the nursery has ended:\n{last_lines(self._log)}")

    def close(self) -> None:
        """End it, and every process that it gave birth to; twice is fine."""
        if self._process.returncode is not None:
            return
        # Also those of a nursery that has died: a group is there as long as one of it is.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # an order that nobody reads any more
                pipe.close()


class Child:
    """A process that the nursery gave birth to; used like one of ``subprocess``."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid: Final = pid
        self._nursery = nursery
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, a signal's as a negative number; None while it runs."""
        if self._code is None:
            self._code = self._nursery.ask("ended", self.pid)
        return self._code

    def wait(self, timeout: float) -> int:
        """Return the exit code; raises subprocess.TimeoutExpired after *timeout* seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_BETWEEN_LOOKS)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is known to be gone."""
        if self._code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.send_signal(signal.SIGKILL)
