"""Starts ``child.py`` and reads its output."""

from __future__ import annotations

import json
import os
import queue
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from chaos.forkserver_client import ForkServer, Streams
from tests.acceptance.place import Place


class Child:
    """A process with the endpoint of *place*: its timeout manager, and no handler."""

    def __init__(self, fork_server: ForkServer, place: Place, **more: Any) -> None:
        given = {
            "name": place.name,
            "error_queue": f"{place.name}.error",
            "transport": place.transport_url,
            "store": place.store_url,
            "mode": place.pair.mode.value if place.pair.mode else None,
            **more,
        }
        self._streams = tempfile.TemporaryDirectory()
        asked, answered = (Path(self._streams.name, name) for name in ("in", "out"))
        os.mkfifo(asked)
        os.mkfifo(answered)
        self._asked = os.open(asked, os.O_RDWR)  # only to write: so the child does not wait for it
        self._process = fork_server.start(
            "tests.acceptance.child:main",
            [json.dumps(given)],
            Streams(answered, input=asked),
            variables={},
        )
        output = answered.open()  # once the child has opened its end
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(output,))
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
        os.close(self._asked)
        self._streams.cleanup()

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
        os.write(self._asked, b"\n")

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

    def own_memory(self) -> int:
        """Return the child's memory in KiB, without pages shared with the fork server."""
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return sum(int(line.split()[1]) for line in rollup.splitlines() if "Private_" in line)

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self.said.append(line)
                self._lines.put(line)
        self._lines.put(None)
