"""The processes of a run: started, awaited, killed, stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Final

from scene import Scene

HERE: Final = Path(__file__).parent
PATIENCE: Final = 30.0
"""Seconds that a process may take to be ready, and to stop."""


class Failed(Exception):
    """A process did not do what it should; the text holds the end of its log."""


class Process:
    """One child process. Its output goes to a log beside the scene's other files."""

    def __init__(self, scene: Scene, name: str, command: list[str], *, piped: bool = False) -> None:
        self.name: Final = name
        self.killed = False
        self._log = scene.file(f"{name}.log")
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                cwd=HERE,
                env=_environment(scene),
                text=True,
            )

    @property
    def output(self) -> IO[str]:
        assert self._child.stdout is not None, "started with piped=True"
        return self._child.stdout

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._child.poll()

    @property
    def state(self) -> str:
        if self.code is None:
            return "alive"
        return "killed" if self.killed else "ended" if self.code == 0 else f"failed ({self.code})"

    def kill(self) -> None:
        """Kill it as a crash would: nothing is closed, flushed or handed back."""
        self.killed = True
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """Ask it to stop cleanly; kill what does not. Being dead already is fine."""
        if self.code is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def require_well(self, *, may_end: bool = False) -> None:
        """Raise Failed if it is gone and should not be."""
        if self.code is not None and not self.killed and not (may_end and self.code == 0):
            raise Failed(f"{self.name} ended with code {self.code}:\n{self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


class Server(Process):
    """A ``timeoutmgr run``, of an endpoint that *what* names; its health file says that it runs."""

    def __init__(self, scene: Scene, name: str, what: list[str]) -> None:
        self._health = scene.file(f"{name}.health")
        command = ["-m", "timeoutmgr", *what, "run", "--health-file", str(self._health)]
        super().__init__(scene, name, command)

    def wait_until_ready(self) -> None:
        """Return when the endpoint runs; raise Failed where it does not."""
        deadline = time.monotonic() + PATIENCE
        while not self._health.exists():
            self.require_well()
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} is not ready after {PATIENCE:g} s:\n{self.last_words()}")
            time.sleep(0.02)


def worker(scene: Scene, number: int) -> Server:
    """Start one of the processes that compete for the endpoint of the timeout manager."""
    return Server(scene, f"flights-{number}", ["--config", str(scene.file("flights.toml"))])


def board(scene: Scene) -> Server:
    """Start the consumer."""
    return Server(scene, "board", ["--app", "app:board"])


def producer(scene: Scene) -> Process:
    """Start the producer; its first line of output is when the day begins."""
    script, path = str(HERE / "producer.py"), str(scene.file("scene.json"))
    return Process(scene, "producer", [script, path], piped=True)


def _environment(scene: Scene) -> dict[str, str]:
    # Settings of somebody's own endpoints must not reach into the example.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIMEOUTMGR_") or name.startswith("TIMEOUTMGR_TEST_")
    }
    if path := kept.get("PYTHONPATH"):
        folders = [str(Path(folder).resolve()) for folder in path.split(os.pathsep) if folder]
        kept["PYTHONPATH"] = os.pathsep.join(folders)
    return {**kept, "FLIGHTS_SCENE": str(scene.file("scene.json"))}
