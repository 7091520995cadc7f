"""Starts ``child.py``, sends it commands and keeps its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from timeoutmgr.testing.signals import Signal

_ROOT: Final = Path(__file__).parents[2]

Said = dict[str, Any]


class Child:
    """A process with an endpoint that has a timeout manager; *env* may make its clock wrong.

    With *goes_on* it only reports critical errors; otherwise the endpoint's default applies.
    """

    def __init__(
        self,
        name: str,
        *,
        transport: str,
        store: str,
        env: Mapping[str, str],
        poll: float,
        goes_on: bool = True,
    ) -> None:
        self.name: Final = name
        given = {
            "name": name,
            "transport": transport,
            "store": store,
            "poll": poll,
            "goes_on": goes_on,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child.py")), json.dumps(given)],
            env={**os.environ, **env, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._signal = Signal()
        self._said: list[Said] = []
        self._complaints: list[str] = []
        readers = {self._process.stdout: self._hear, self._process.stderr: self._read}
        self._readers = [
            threading.Thread(target=read, args=(pipe,)) for pipe, read in readers.items()
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def running(self) -> Self:
        """Return once the endpoint runs."""
        self.hear("runs")
        return self

    def command(self, line: str) -> None:
        """Have it do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def heard(self, what: str) -> list[Said]:
        """Return its lines about *what* so far."""
        return [said for said in list(self._said) if said["say"] == what]

    def hear(self, what: str, count: int = 1, timeout: float = 30) -> Said:
        """Return the *count*th thing that it says of *what*."""
        self._until(lambda: len(self.heard(what)) >= count, f"{count} {what}", timeout)
        return self.heard(what)[count - 1]

    def arrival(self, message_id: str, timeout: float = 30) -> Said:
        """Return the first arrival of *message_id*."""

        def found() -> list[Said]:
            return [said for said in self.heard("got") if said["id"] == message_id]

        self._until(lambda: bool(found()), f"arrival of {message_id}", timeout)
        return found()[0]

    def counted(self, event: str) -> int:
        """Return how often its telemetry has counted *event*."""
        before = len(self.heard("counts"))
        self.command("counts")
        return int(self.hear("counts", before + 1).get(event, 0))

    def wait_for_count(self, event: str, count: int, timeout: float = 30) -> None:
        """Return once its telemetry has counted *event* *count* times."""
        deadline = time.monotonic() + timeout
        while (seen := self.counted(event)) < count:
            assert time.monotonic() < deadline, f"{seen} of {count} {event}"
            threading.Event().wait(0.05)

    def wait(self, timeout: float = 30) -> int:
        """Return its exit code once it ended."""
        code = self._process.wait(timeout)
        for reader in self._readers:
            reader.join(10)
        return code

    def _until(self, holds: Callable[[], bool], what: str, timeout: float) -> None:
        def so_far() -> str:
            return f"{what}; it said {self._said[-20:]}\n{''.join(self._complaints[-40:])}"

        self._signal.wait_until(holds, so_far, timeout)

    def _hear(self, output: IO[str]) -> None:
        for line in output:
            with self._signal.change():
                self._said.append(json.loads(line))

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._complaints.append(line)
