"""Starts ``child.py`` and reads its output."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from tests.acceptance.place import Place

_ROOT: Final = Path(__file__).parents[2]


class Child:
    """A process with the endpoint of *place*: its timeout manager, and no handler."""

    def __init__(self, place: Place, **more: Any) -> None:
        given = {
            "name": place.name,
            "error_queue": f"{place.name}.error",
            "transport": place.transport_url,
            "store": place.store_url,
            "mode": place.pair.mode.value if place.pair.mode else None,
            **more,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child.py")), json.dumps(given)],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def running(self) -> Self:
        """Return once the endpoint runs."""
        self.wait_for_line(" runs (")
        return self

    def wait_for_line(self, part: str, timeout: float = 30) -> str:
        """Return the next line that has *part* in it."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"{part!r} was never said, but: {''.join(self.said[-30:])}")
            if part in line:
                return line

    def go(self) -> None:
        """Let an installer begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout: float = 30) -> int:
        """Return the exit code once it ended."""
        code = self._process.wait(timeout)
        self._reader.join(10)
        return code

    def kill(self) -> None:
        """Send SIGKILL; fine if it has ended."""
        self._process.kill()
        self.wait()

    def resident(self) -> int:
        """Return its resident memory in KiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1])

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self.said.append(line)
            self._lines.put(line)
        self._lines.put(None)
