"""A private server: on a free port, with its files in a folder, to be killed at will."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from tests.services.processes import (
    DidNotStart,
    Process,
    free_port,
    kill,
    send_to_family,
    spawn,
    stop,
    wait_until,
)
from tests.services.run import RUN_VARIABLE


def made_once(name: str, data: Path, make: Callable[[], None]) -> None:
    """Have *make* fill the folder *data* once in a run of the tests; later *data* is a copy.

    Programs that make the first files of a server take most of the time until it answers.
    """
    run = os.environ.get(RUN_VARIABLE)
    if run is None:
        make()
        return
    template = Path(run, "templates", name)
    template.parent.mkdir(exist_ok=True)
    with template.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            make()
            _copy(data, template.with_suffix(".new"))
            template.with_suffix(".new").rename(template)
            return
    _copy(template, data)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with the owners of its files."""
    subprocess.run(["cp", "-a", source, target], check=True)


class PrivateServer(ABC):
    """A server of the tests' own; another process can end it by its ``pids.json``.

    *folder* must not exist; it is made here and removed by :meth:`remove`.
    """

    ask_to_stop: ClassVar[signal.Signals] = signal.SIGTERM
    seconds_to_start: ClassVar[float] = 60

    def __init__(self, folder: Path) -> None:
        missing = self.missing_programs()
        if missing:
            raise DidNotStart(f"not installed: {', '.join(missing)}")
        self.folder = folder
        self.port = free_port()
        self._processes: list[Process] = []
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self._prepare()

    @classmethod
    @abstractmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it answers once it is started."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make the files that the first start needs."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the program and its arguments."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it does its work."""

    def _user(self) -> str | None:
        """Return the user of the server's processes, if it must not run as the tests' user."""
        return None

    def _env(self) -> Mapping[str, str]:
        return {}

    def _companions(self) -> list[list[str]]:
        """Return the commands of processes that must run before it."""
        return []

    def start(self) -> None:
        """Start it, on the same port and files as before, and return when it answers."""
        output = self.folder / "output.txt"
        for command in [*self._companions(), self._command()]:
            process = spawn(
                command, folder=self.folder, output=output, user=self._user(), env=self._env()
            )
            self._processes.append(process)
            write_processes(self.folder, self._processes, self.ask_to_stop)
        try:
            wait_until(self._answers, process, seconds=self.seconds_to_start, output=output)
        except DidNotStart:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop it cleanly; stopping twice is fine."""
        for process in reversed(self._processes):
            stop(process, self.ask_to_stop)
        self._processes.clear()

    def kill(self) -> None:
        """End it by SIGKILL; it loses all unwritten data."""
        for process in reversed(self._processes):
            kill(process)
        self._processes.clear()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop its processes by SIGSTOP while the block runs: it answers nothing, and is there."""
        for process in self._processes:
            send_to_family(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in self._processes:
                send_to_family(process, signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def write_processes(folder: Path, processes: list[Process], ask: signal.Signals) -> None:
    """Record *processes*, so that the end of the run can end them."""
    text = json.dumps([(process.pid, process.born, int(ask)) for process in processes])
    part = folder / "pids.json.part"
    part.write_text(text)
    os.replace(part, folder / "pids.json")


def stop_all(run_folder: Path) -> None:
    """Stop every private server that a run has noted and not stopped."""
    for noted in run_folder.glob("**/pids.json"):
        for pid, born, ask in reversed(json.loads(noted.read_text())):
            stop(Process(pid, born), signal.Signals(ask))
