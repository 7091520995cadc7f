"""Workers of a Celery app, and parts of a program that need the app: each is a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BENCHMARKS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An app: its broker, its store (empty for stock Celery), and a folder for its files."""

    broker: str
    store: str
    name: str
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def environment(self) -> dict[str, str]:
        own = {"BROKER": self.broker, "STORE": self.store, "NAME": self.name}
        path = os.pathsep.join([str(_BENCHMARKS), str(_BENCHMARKS.parent)])
        return {**os.environ, **own, "LOG": str(self.log), "PYTHONPATH": path}

    def part(self, name: str, *arguments: object) -> Any:
        """Run a part of ``harness.celery_parts`` in a separate process; return its answer."""
        command = [sys.executable, "-m", "harness.celery_parts", name, *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the tasks; a killed process may have left an incomplete line."""
        found = []
        for line in self.log.read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def worker(self) -> "subprocess.Popen[bytes]":
        """Start a worker of two processes, which also dispatches the tasks of the store."""
        command = [sys.executable, "-m", "celery", "-A", "harness.celery_app", "worker"]
        with open(self.folder / "worker.log", "ab") as log:
            return subprocess.Popen(
                [*command, "-c", "2", "-l", "WARNING"],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def kill(worker: "subprocess.Popen[bytes]") -> None:
    """Kill a worker with all its processes, like a crash of the machine."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


@contextmanager
def running(setting: Setting) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a worker during the block."""
    worker = setting.worker()
    try:
        yield worker
    finally:
        kill(worker)
