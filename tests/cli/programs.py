"""The command line as a user runs it: real processes in a folder of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timeoutmgr.testing.crashing import VARIABLE

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 40.0


def environment(**more: str) -> dict[str, str]:
    """The environment of a program: no settings but *more*, and the test run's own mark."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIMEOUTMGR_") or name.startswith("TIMEOUTMGR_TEST_")
    }
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def wait_until(claim: Callable[[], bool], what: str) -> None:
    """Look until *claim* holds; there is no signal between two programs to wait for."""
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        pause.wait(0.05)


class Ended(subprocess.CompletedProcess[str]):
    """A program that has ended."""

    def json(self) -> Any:
        """What it printed, which must be one JSON document."""
        return json.loads(self.stdout)


class Program:
    """A program that runs; its output is collected as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._came = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", process.stdout), ("err", process.stderr))
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


class Nursery:
    """Runs commands that have nothing to import any more; see ``tests.cli.nursery``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.nursery"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def run(self, order: dict[str, Any]) -> int:
        """Return the exit code of the command that *order* describes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        if not ready:
            self.close()  # what hangs is a child of it
        assert ready, f"{order['arguments']} has not ended within {PATIENCE:g} s"
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it and what it runs; twice is fine."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


class Folder:
    """A working folder with a settings file and an app, where programs are run."""

    def __init__(self, path: Path, endpoint: str, nursery: Nursery) -> None:
        self.path = path
        self.endpoint = endpoint
        self._nursery = nursery
        self.variables: dict[str, str] = {}
        self._started: list[Program] = []

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(text)
        return path

    def run(self, *arguments: str, stdin: bytes = b"") -> Ended:
        """Run a command to its end, in a process of its own."""
        if VARIABLE in self.variables:
            return self._run_until_it_dies(arguments, stdin)
        with tempfile.TemporaryDirectory() as streams:
            inp, out, err = (Path(streams, name) for name in ("in", "out", "err"))
            inp.write_bytes(stdin)
            code = self._nursery.run(
                {
                    "arguments": arguments,
                    "folder": str(self.path),
                    "environment": environment(**self.variables),
                    "streams": [str(inp), str(out), str(err)],
                }
            )
            return Ended(arguments, code, out.read_text(), err.read_text())

    def _run_until_it_dies(self, arguments: tuple[str, ...], stdin: bytes) -> Ended:
        """Run a command with a crash point armed, which the command itself never does."""
        done = subprocess.run(
            [sys.executable, "-m", "timeoutmgr.testing.crashing", *arguments],
            cwd=self.path,
            env=environment(**self.variables),
            input=stdin,
            capture_output=True,
            timeout=PATIENCE,
        )
        return Ended(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str) -> Program:
        """Start one as a user does; it runs until it is stopped, or the test ends."""
        process = subprocess.Popen(
            [sys.executable, "-m", "timeoutmgr", *arguments],
            cwd=self.path,
            env=environment(**self.variables, PYTHONUNBUFFERED="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        program = Program(process)
        self._started.append(program)
        return program

    def close(self) -> None:
        for program in self._started:
            if program.process.poll() is None:
                program.process.kill()
            program.wait()
