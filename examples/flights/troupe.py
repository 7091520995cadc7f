"""The processes of a run: started, awaited, killed, stopped."""

import subprocess
import sys
from pathlib import Path
from typing import IO, Final

from scene import Scene

from chaos import ChaosFailed
from chaos.processes import clean_variables, last_lines, stop, wait_for

HERE: Final = Path(__file__).parent


class Process:
    """A child process. Its output goes to a log beside the scene's other files."""

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
        """Kill the process like a crash: nothing is closed, flushed or returned to a queue."""
        self.killed = True
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """Ask it to stop cleanly; kill it after our patience. A dead process is fine."""
        stop(self._child)
        if self._child.stdout is not None:
            self._child.stdout.close()

    def require_well(self, *, may_end: bool = False) -> None:
        """Raise ChaosFailed if it is gone and should not be."""
        if self.code is not None and not self.killed and not (may_end and self.code == 0):
            raise ChaosFailed(f"{self.name} ended with code {self.code}:\n{self.last_words()}")

    def last_words(self) -> str:
        return last_lines(self._log)


class Server(Process):
    """A ``timeoutmgr run`` of the endpoint that *what* names; a health file shows that it runs."""

    def __init__(self, scene: Scene, name: str, what: list[str]) -> None:
        self._health = scene.file(f"{name}.health")
        command = ["-m", "timeoutmgr", *what, "run", "--health-file", str(self._health)]
        super().__init__(scene, name, command)

    def wait_until_ready(self) -> None:
        """Wait until the endpoint runs; raise ChaosFailed if it does not start."""
        if not wait_for(self._health, lambda: self.code is None):
            raise ChaosFailed(f"{self.name} does not start:\n{self.last_words()}")


def worker(scene: Scene, number: int) -> Server:
    """Start a worker; workers compete for the endpoint of the timeout manager."""
    return Server(scene, f"flights-{number}", ["--config", str(scene.file("flights.toml"))])


def board(scene: Scene) -> Server:
    """Start the consumer."""
    return Server(scene, "board", ["--app", "app:board"])


def producer(scene: Scene) -> Process:
    """Start the producer; its first line of output is when the day begins."""
    script, path = str(HERE / "producer.py"), str(scene.file("scene.json"))
    return Process(scene, "producer", [script, path], piped=True)


def _environment(scene: Scene) -> dict[str, str]:
    return {**clean_variables(), "FLIGHTS_SCENE": str(scene.file("scene.json"))}
