"""The client of the fork server, which starts processes, and reports how they ended."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chaos.processes import ChaosFailed, clean_variables, last_lines

_POLL_INTERVAL: Final = 0.005


@dataclass(frozen=True, slots=True)
class Streams:
    """Files of a process: *output* and *errors* are appended to; by default they are one file."""

    output: Path
    errors: Path | None = None
    input: Path = Path(os.devnull)

    @property
    def paths(self) -> list[str]:
        """Paths of input, output and errors."""
        return [str(path) for path in (self.input, self.output, self.errors or self.output)]


class ForkServer:
    """Starts children by forking from one prepared process. Used by one thread.

    The server imports *modules* ahead. Raises ChaosFailed once the server has died: then no
    process can tell how its children ended.
    """

    def __init__(self, log: Path, modules: Sequence[str] = ()) -> None:
        self._log = log
        self._numbers = itertools.count(1)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.forkserver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=clean_variables(),
                text=True,
                # A group of its own: it ends as a whole, and Ctrl-C reaches only the run.
                process_group=0,
            )
        self.ask("import", list(modules))

    @property
    def pid(self) -> int:
        """Its process id, which is the process group of all its children."""
        return self._process.pid

    def start(
        self,
        entry: str,
        arguments: Sequence[str],
        streams: Streams,
        variables: Mapping[str, str],
        folder: Path | None = None,
    ) -> "Child":
        """Call the function *entry* (``module:name``) in a new process, in *folder*.

        The function finds *arguments* in ``sys.argv``; the environment has *variables*, but no
        settings.
        """
        order = {
            "entry": entry,
            "arguments": list(arguments),
            "streams": streams.paths,
            "variables": {**clean_variables(), **variables},
            "folder": None if folder is None else str(folder),
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
            # A signal may have interrupted an earlier question: skip its answer.
            while line := self._process.stdout.readline():
                answered, answer = json.loads(line)
                if answered == number:
                    return answer
        except BrokenPipeError:
            pass
        raise ChaosFailed(f"the fork server has ended:\n{last_lines(self._log)}")

    def close(self) -> None:
        """Kill the server and its children; a second call is a no-op."""
        if self._process.returncode is not None:
            return
        # A group outlives its leader: kill the children of a dead server too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # an order that the server did not read
                pipe.close()


class Child:
    """A child of the fork server, with the interface of ``subprocess.Popen``."""

    def __init__(self, fork_server: ForkServer, pid: int) -> None:
        self.pid: Final = pid
        self._fork_server = fork_server
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, a signal's as a negative number; None while it runs."""
        if self._code is None:
            self._code = self._fork_server.ask("ended", self.pid)
        return self._code

    def wait(self, timeout: float) -> int:
        """Return the exit code; raises subprocess.TimeoutExpired after *timeout* seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_INTERVAL)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the child is known to have ended."""
        if self._code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the child as a crash would."""
        self.send_signal(signal.SIGKILL)
