"""The command line as a user runs it: real processes in a folder of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.crash_command import VARIABLE
from chaos.forkserver_client import Child, ForkServer, Streams
from chaos.processes import clean_variables
from tests.support.forked_programs import COMMAND, COMMAND_IN_GROUP

PATIENCE = 40.0


def environment(**more: str) -> dict[str, str]:
    """The environment of a program: no settings but *more*, and the test run's own mark."""
    return {**clean_variables(), **more}


def wait_until(claim: Callable[[], bool], what: str) -> None:
    """Poll until *claim* is true; two programs have no common signal to wait for."""
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        pause.wait(0.05)


class Ended(subprocess.CompletedProcess[str]):
    """A program that has ended."""

    def json(self) -> Any:
        """Its output, which must be a single JSON document."""
        return json.loads(self.stdout)


class Program:
    """A program that runs; a thread collects its output."""

    def __init__(self, process: subprocess.Popen[str] | Child, out: Any, err: Any) -> None:
        self.process = process
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._came = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", out), ("err", err))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def out(self) -> list[str]:
        with self._came:
            return list(self._lines["out"])

    @property
    def err(self) -> list[str]:
        with self._came:
            return list(self._lines["err"])

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Wait until *text* was printed on so many lines."""

        def is_there() -> bool:
            lines = [*self._lines["out"], *self._lines["err"]]
            return sum(text in line for line in lines) >= times

        with self._came:
            there = self._came.wait_for(is_there, PATIENCE)
        assert there, f"{text!r} did not come in {self.out} {self.err}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Return the exit code once all output is read."""
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        return code

    def _read(self, name: str, stream: Any) -> None:
        with stream:
            for line in stream:
                with self._came:
                    self._lines[name].append(line.rstrip("\n"))
                    self._came.notify_all()


class Folder:
    """A working folder with a settings file and an app, where programs are run."""

    def __init__(self, path: Path, endpoint: str, fork_server: ForkServer) -> None:
        self.path = path
        self.endpoint = endpoint
        self._fork_server = fork_server
        self.variables: dict[str, str] = {}
        self._started: list[Program] = []
        self._programs = 0

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(text)
        return path

    def run(self, *arguments: str, stdin: bytes = b"") -> Ended:
        """Run a command to its end, in a process of its own."""
        entry = "chaos.crash_command:main" if VARIABLE in self.variables else COMMAND_IN_GROUP
        with tempfile.TemporaryDirectory() as streams:
            inp, out, err = (Path(streams, name) for name in ("in", "out", "err"))
            inp.write_bytes(stdin)
            child = self._fork_server.start(
                entry, arguments, Streams(out, err, inp), self.variables, self.path
            )
            try:
                code = child.wait(PATIENCE)
            finally:
                child.kill()  # a child that hangs; an ended child gets no signal
            return Ended(arguments, code, out.read_text(), err.read_text())

    def start(self, *arguments: str) -> Program:
        """Start a program as a user does; it runs until it is stopped, or the test ends."""
        self._programs += 1
        output, errors = (self.path / f".{name}-{self._programs}" for name in ("out", "err"))
        os.mkfifo(output)
        os.mkfifo(errors)
        process = self._fork_server.start(
            COMMAND, arguments, Streams(output, errors), self.variables, self.path
        )
        program = Program(process, output.open(), errors.open())
        output.unlink()  # both ends are open, and some tests copy the folder
        errors.unlink()
        self._started.append(program)
        return program

    def close(self) -> None:
        for program in self._started:
            if program.process.poll() is None:
                program.process.kill()
            program.wait()
